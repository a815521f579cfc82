"""The report of 2,000 examples in a real browser."""

import logging
import time

import pytest

import anchorlens as al
from tests.figures.browser import visited

from .large import enlarged

pytestmark = pytest.mark.slow

# Seconds until the table answers, in headless Chromium.
SOON = 2.0


@pytest.fixture(scope="module")
def large(swap, tmp_path_factory):
    """2,000 examples, two anchors, each with its null, at 30 layers; with the seconds that writing
    took.
    """
    result = enlarged(swap, examples=2000, layers=30)
    result.curves(controls=True)  # statistics are the sweep's, not the report's
    result.contrasts()
    began = time.perf_counter()
    path = al.save_report(result, tmp_path_factory.mktemp("large") / "large.html")
    return path, time.perf_counter() - began


def test_two_thousand_examples_open_soon(large, record_property):
    path, wrote = large
    size = path.stat().st_size
    usable = """() => {
      const search = document.querySelector("#search"), count = () => document.querySelector("#count")?.textContent ?? "";
      if (!count().startsWith("2000 ") || !document.querySelector("#examples tbody tr")) return false;
      search.value = "row-1999";
      search.dispatchEvent(new Event("input"));
      const found = count().startsWith("1 of 2000");
      search.value = "";
      search.dispatchEvent(new Event("input"));
      return found && performance.now() / 1000;
    }"""
    seconds, whole = [], []
    for _ in range(2):
        with visited(path) as page:
            page.reload(wait_until="commit")
            seconds.append(page.wait_for_function(usable, polling=20).json_value())
            page.wait_for_function("() => document.querySelector('figure .traces')", polling=20)
            whole.append(page.evaluate("() => performance.now() / 1000"))
    told = (
        f"written in {wrote:.1f} s, {size / 1e6:.1f} MB; table after {min(seconds):.2f} s, figure"
        f" after {min(whole):.2f} s"
    )
    record_property("report of 2,000 examples", told)
    logging.getLogger(__name__).info(told)  # shown by --log-cli-level=INFO
    assert min(seconds) < SOON, told
    assert size < 12e6, told


def test_many_examples_are_shown_a_hundred_at_a_time(large):
    with visited(large[0]) as page:
        assert (
            page.locator("#printed").text_content()
            == "100 of 2000 examples; the page itself has all."
        )
        assert not page.locator("#printed").is_visible()  # for paper
        rows = page.locator("#examples tbody tr")
        assert rows.count() == 100
        more = page.locator("#more")
        more.focus()
        page.keyboard.press("Enter")
        assert rows.count() == 200
        # Where the button was, the first new row has the focus.
        assert (
            page.evaluate(
                "() => [...document.querySelectorAll('.open')].indexOf(document.activeElement)"
            )
            == 100
        )
        assert len({rows.nth(k).locator(".open").text_content() for k in (0, 50, 100, 150)}) == 4
        page.fill("#search", "row-77")
        assert rows.count() == 11  # row-77 and row-770 to row-779
        assert more.is_hidden()
