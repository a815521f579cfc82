"""Saved pages in a headless Chromium."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

QUIET = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


def _path() -> str | None:
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    return next((one for one in found if one), None)


def has_chromium() -> bool:
    return _path() is not None


def chromium() -> str:
    """Return the path of a Chromium; skip the test where there is none."""
    path = _path()
    if path is None:
        pytest.skip("no Chromium is installed")
    return path


def run(folder: Path, width: int, *more: str) -> str:
    command = [chromium(), "--headless", "--no-sandbox", *QUIET]
    command += [
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},900",
        "--virtual-time-budget=20000",
        *more,
    ]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        timeout=180,
        text=True,
        env={**os.environ, "LANG": "C.UTF-8"},
    )
    return done.stdout


@contextmanager
def visited(
    path: Path, *, width: int = 1280, height: int = 900, dark: bool = False, **more: Any
) -> Iterator[Any]:
    """A Playwright page of a saved page, with real keys and clicks.

    It fails, at the end, where the page has said an error or a warning, or asked for anything
    beyond its own file. One browser a visit: Playwright's loop must not outlive it, as kaleido
    needs one of its own.
    """
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    own = path.resolve().as_uri()

    def asked_for(route: Any) -> None:
        url = route.request.url
        if url.split("#")[0] == own:
            route.continue_()
        else:
            faults.append(f"asked for {url}")
            route.abort()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", *QUIET]
        )
        scheme: Any = "dark" if dark else "light"
        page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme, **more
        )
        page.set_default_timeout(20_000)
        page.on(
            "console",
            lambda said: (
                faults.append(said.text) if said.type in ("error", "warning", "trace") else None
            ),
        )
        page.on("pageerror", lambda why: faults.append(str(why)))
        page.route("**/*", asked_for)
        page.goto(own)
        yield page
        browser.close()
    assert faults == []


# What a keyboard stops at, as the page has it; the order of the document is the order of the stops.
STOPS = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter((one) => one.tabIndex >= 0 && !one.disabled && one.getClientRects().length
    && getComputedStyle(one).visibility !== "hidden" && !one.closest("details:not([open]) > :not(summary)"))"""
# The stop that has the focus: which one, what it is called, and how it is marked.
STOP = f"""() => {{
  const one = document.activeElement, style = getComputedStyle(one);
  const label = one.getAttribute("aria-label") || (one.labels && one.labels[0] ? one.labels[0].textContent : one.textContent);
  const box = one.getBoundingClientRect();
  return {{ at: ({STOPS})().indexOf(one), body: one === document.body, name: label.trim(), tag: one.tagName,
    ring: one.matches(":focus-visible")
      && (style.outlineStyle === "auto" || style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1),
    seen: box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth }};
}}"""
# Every text that can be seen with its colour and what lies behind it, as [r, g, b]; opacities of
# all that holds it are applied.
TEXTS = """() => {
  const parsed = (colour) => {
    const all = colour.match(/[\\d.]+/g);
    if (!all) return [0, 0, 0, 0];
    const part = all.map(Number);
    return [part[0], part[1], part[2], part.length > 3 ? part[3] : 1];
  };
  const over = (top, alpha, under) => top.slice(0, 3).map((v, k) => alpha * v + (1 - alpha) * under[k]);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  function behind(node) {
    const layers = [];
    for (let one = node; one; one = one.parentElement) {
      if (one instanceof SVGElement) {
        // The arrow of a list lies on the rectangle of its header.
        const item = one.parentElement && one.parentElement.querySelector(
          ":scope > rect.updatemenu-item-rect, :scope > .updatemenu-header > rect.updatemenu-item-rect");
        if (item && item !== node) layers.push(parsed(getComputedStyle(item).fill));
        if (one.classList.contains("main-svg")) layers.push(parsed(getComputedStyle(one).backgroundColor));
        continue;
      }
      layers.push(parsed(getComputedStyle(one).backgroundColor));
      // Plotly's first sheet holds the figure's paper.
      const sheet = one.classList.contains("svg-container") && one.querySelector(".main-svg");
      if (sheet) layers.push(parsed(getComputedStyle(sheet).backgroundColor));
    }
    return layers.reverse().reduce((under, top) => over(top, top[3], under), dark ? [18, 18, 18] : [255, 255, 255]);
  }
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!text || node.closest("script, style, noscript, .hidden, .skip") || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    if (style.visibility === "hidden" || node.closest("details:not([open]) > :not(summary)")) continue;
    let opacity = 1;
    for (let one = node; one; one = one.parentElement) opacity *= parseFloat(getComputedStyle(one).opacity);
    if (!opacity) continue;
    const ink = parsed(node instanceof SVGElement ? style.fill : style.color), ground = behind(node);
    found.push({ text: text.slice(0, 60), ink: over(ink, ink[3] * opacity, ground), ground });
  }
  return found;
}"""


def contrast(one: list[float], other: list[float]) -> float:
    """The contrast ratio of two colours (WCAG 2.2, relative luminance)."""

    def light(colour: list[float]) -> float:
        parts = [v / 255 for v in colour]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def faint(page: Any, least: float = 4.5) -> list[tuple[str, float]]:
    """Texts of a page that cannot be told well from what lies behind them."""
    seen = page.evaluate(TEXTS)
    assert seen, "the page has no text"
    told = [(one["text"], round(contrast(one["ink"], one["ground"]), 2)) for one in seen]
    return sorted({pair for pair in told if pair[1] < least}, key=lambda pair: pair[1])


def tabbed(page: Any) -> list[dict[str, Any]]:
    """Every stop of a walk with the Tab key, from the top of the page to its end."""
    # The next stop follows what was clicked last: begin before everything.
    page.evaluate(
        "() => { document.body.tabIndex = -1; document.body.focus();"
        " document.body.removeAttribute('tabindex'); }"
    )
    page.evaluate("() => scrollTo(0, 0)")
    many, stops = page.evaluate(f"() => ({STOPS})().length"), []
    for _ in range(many + 5):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop["body"] or (stops and stop["at"] == stops[0]["at"]):
            break
        stops.append(stop)
    return stops
