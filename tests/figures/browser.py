"""A saved page in a headless Chromium: what a script finds in it, or a picture of it."""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from anchorlens.figures.page import save_html

# Before anything else, so that no error is missed.
_LISTEN = """<script>
window.faults = [];
window.addEventListener("error", (event) => window.faults.push(event.message));
for (const kind of ["error", "warn"]) console[kind] = (...said) => window.faults.push(said.join(" "));
</script>"""
_ASK = """<script>
const gd = document.getElementById("anchorlens-figure");
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const texts = () => [...gd.querySelectorAll(".traces .legendtext, .traces .legend2text")];
const legendOf = (name) => texts().find((one) => one.textContent === name).closest(".traces");
const shown = () => gd.data.filter((t) => t.visible === undefined || t.visible === true).map((t) => t.name + "|" + (t.xaxis || "x"));
async function click(name, times) {
  for (let k = 0; k < times; k++) {
    const toggle = legendOf(name).querySelector(".legendtoggle, .legend2toggle");
    for (const kind of ["mousedown", "mouseup"]) toggle.dispatchEvent(new MouseEvent(kind, { bubbles: true, view: window }));
  }
  await wait(900); // plotly waits for a second click
}
window.addEventListener("load", async () => {
  await wait(400);
  const answer = await (async () => { SCRIPT })().catch((why) => { window.faults.push(String(why)); });
  const told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify({ answer, faults: window.faults });
  document.body.append(told);
});
</script>"""


def chromium() -> str:
    """The path of a Chromium; skips the test where there is none."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    path = next((one for one in found if one), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    return path


def run(folder: Path, width: int, *more: str) -> str:
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    command = [chromium(), *quiet.split(), "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", "--virtual-time-budget=20000", *more]
    done = subprocess.run(
        command, check=True, capture_output=True, timeout=180, text=True, env={**os.environ, "LANG": "C.UTF-8"}
    )
    return done.stdout


def asked(figure: go.Figure, folder: Path, width: int, script: str) -> Any:
    """What an asynchronous script returns in the saved page of a figure; fails where the page reports an error or a warning."""
    page = save_html(figure, folder / "page.html")
    text = page.read_text(encoding="utf8")
    end = "</body>\n</html>"
    text = text.replace("<head>", f"<head>{_LISTEN}", 1).replace(end, f"{_ASK.replace('SCRIPT', script)}{end}")
    page.write_text(text, encoding="utf8")
    told = re.search(r'<pre id="told">(.*?)</pre>', run(folder, width, "--dump-dom", page.as_uri()), re.DOTALL)
    assert told is not None, "the page's script did not finish"
    found = json.loads(unescape(told[1]))
    assert found["faults"] == []
    return found["answer"]
