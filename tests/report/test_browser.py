"""The report in a real browser, as people use it: with a mouse, with a keyboard alone, in the dark,
on a telephone, on paper.
"""

import json
import re
from collections import Counter
from dataclasses import replace

import pytest

import anchorlens as al
from anchorlens.results.findings import CLAIMS, Findings
from tests.figures.browser import faint, tabbed, visited

pytestmark = pytest.mark.slow

CELL = "#examples tbody tr:not(.detail) td:nth-child({})"
HEADS = [
    "question",
    "answer",
    "label",
    "pathway",
    "P before",
    "ΔP by layer",
    "largest ΔP",
    "at layer",
]
# Names of the traces of the first figure that are not hidden.
SHOWN = """() => document.querySelector("figure .plot").data
  .filter((trace) => trace.visible !== "legendonly").map((trace) => trace.name)"""


@pytest.fixture(scope="module")
def report(sweeps, tmp_path_factory):
    """Two protocols, with labels and pathways: every filter there is."""
    return al.save_report(
        list(sweeps), tmp_path_factory.mktemp("report") / "report.html", title="Two sweeps"
    )


@pytest.fixture(scope="module")
def data(report):
    (text,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>',
        report.read_text("utf8"),
        re.DOTALL,
    )
    return json.loads(text)


def column(page, name):
    cells = page.locator(CELL.format(HEADS.index(name) + 1)).all_text_contents()
    return (
        [float(text.replace("−", "-")) for text in cells]
        if name in ("P before", "largest ΔP", "at layer")
        else cells
    )


def drawn(page):
    """Scroll through the page, so that every figure is drawn."""
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
        page.wait_for_function(
            "(figure) => figure.querySelectorAll('.traces').length > 0", arg=figure.element_handle()
        )
    page.wait_for_timeout(300)


def unfolded(page, rows=1):
    """Draw all figures, and open some examples."""
    drawn(page)
    for row in page.locator(".open").all()[:rows]:
        row.click()
    page.wait_for_selector(".chart .main-svg")


@pytest.fixture(scope="module")
def cards(sweeps, tmp_path_factory):
    """Findings of two sweeps with long cells, and layers."""
    row = ("exact_question", "norm_matched", "-56.0 [-76.0, -35.8]", "12", CLAIMS[-1], "12, 22")
    heads = ("anchor", "null", "curve minus null [joint 95 %]", "layer", "status", "layers")
    donor = ("exact_question", "donor's answer", *row[2:])  # a name that is also a status
    findings = Findings(headline="P falls.", rows=(row, donor), columns=heads)
    planted = [replace(one, _memo={**one._memo, "findings": findings}) for one in sweeps]
    return al.save_report(planted, tmp_path_factory.mktemp("cards") / "report.html")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [390, 700, 1280, 1920])
def test_no_column_of_the_findings_is_cut(cards, width):
    with visited(cards, width=width) as page:
        tables = page.locator("article .scroll")
        assert tables.count() == 2
        for table in tables.all():
            assert table.evaluate("(one) => one.scrollWidth <= one.clientWidth")
            assert table.locator(".chip").all_text_contents() == [CLAIMS[-1]] * 2
            box = table.bounding_box()
            for cell in table.locator("td[data-name=layers]").all():
                own = cell.bounding_box()
                assert cell.text_content() == "12, 22"
                assert own["width"] > 20
                assert own["x"] + own["width"] <= box["x"] + box["width"] + 1
            head = table.locator("th", has_text="layers")
            before = table.locator("td[data-name=layers]").first.evaluate(
                "(one) => getComputedStyle(one, '::before').content"
            )
            # Each value has the name of its column, above it or in front of it.
            assert head.bounding_box() is not None or before.startswith('"layers')


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1000, True), (1920, False)])
def test_it_fits_every_window_asks_no_network_and_every_text_can_be_read(report, width, dark):
    with visited(report, width=width, dark=dark) as page:
        unfolded(page, 2)
        panels = (
            "() => Object.values(document.querySelector('figure"
            " .plot')._fullLayout._plots).map((one) => one.xaxis._offset)"
        )
        assert len(set(page.evaluate(panels))) == (
            1 if width < 900 else 2
        )  # below each other, or side by side
        page.evaluate(
            "() => document.querySelectorAll('details').forEach((one) => { one.open = true; })"
        )
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        # Nothing is cut off: what is wider than its box can be scrolled there, and no text of a
        # table leaves the page.
        over = page.evaluate(
            """() => [...document.querySelectorAll("main *")]
              .filter((one) => !one.closest(".scroll, .chart, .hidden, svg") && one.getClientRects().length
                && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
        )
        assert over == []
        ground, paper = page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, document.querySelector('figure"
            " .plot').layout.paper_bgcolor]"
        )
        assert (ground, paper) == (
            ("rgb(20, 23, 26)", "#14171a") if dark else ("rgb(255, 255, 255)", "white")
        )
        page.wait_for_timeout(300)
        assert faint(page) == []
        page.fill("#search", "")  # its placeholder is a text too
        colour = "(part) => getComputedStyle(document.querySelector(part[0]), part[1]).color"
        told, soft = (
            page.evaluate(colour, part) for part in (["#search", "::placeholder"], [".meta"])
        )
        assert told == soft


def test_colours_follow_the_system_and_keep_what_was_hidden(report):
    with visited(report) as page:
        drawn(page)
        page.locator("figure .legendtoggle").first.click()
        hidden = (
            "() => document.querySelector('figure .plot').data.map((trace) => trace.visible ==="
            " 'legendonly')"
        )
        first = page.evaluate(hidden)
        page.wait_for_timeout(700)
        before = page.evaluate(hidden)
        assert sum(before) > sum(first)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            "() => document.querySelector('figure .plot').layout.paper_bgcolor === '#14171a'"
        )
        assert page.evaluate(hidden) == before


def test_the_table_is_searched_and_filtered(report, data):
    every = [row | {"sweep": k} for k, sweep in enumerate(data["sweeps"]) for row in sweep["rows"]]

    def expected(word="", **wanted):
        return sum(
            all(
                part in f"{row['question']} {row['answer']} {row['id']}".lower()
                for part in word.split()
            )
            and all(row[key] == value for key, value in wanted.items())
            for row in every
        )

    with visited(report) as page:
        count = lambda: int(page.locator("#count").text_content().split()[0])  # noqa: E731
        assert count() == len(every)
        page.locator("#search").click()
        page.keyboard.type("capital PERU")
        assert 0 < count() == expected("capital peru") < 10
        assert "What is the capital of Peru?" in column(page, "question")
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type("no such words")
        assert (count(), column(page, "question")) == (0, [])
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.press("Delete")
        assert count() == len(every)
        for key, value in (("sweep", 1), ("label", "false"), ("pathway", every[-1]["pathway"])):
            page.select_option(f"#{key}", str(value))
            assert count() == len(column(page, "question")) == expected(**{key: value})
            assert 0 < count() < len(every)
            page.select_option(f"#{key}", "")
        page.select_option("#sweep", "1")
        page.select_option("#label", "true")
        assert count() == expected(sweep=1, label="true") < expected(sweep=1)
        assert set(column(page, "label")) == {"true"}


def test_every_column_is_sorted_both_ways(report):
    with visited(report) as page:
        assert column(page, "largest ΔP") == sorted(column(page, "largest ΔP"))
        for name in ("P before", "largest ΔP", "at layer"):
            head = page.get_by_role("button", name=name, exact=True)
            page.locator("#examples thead button").first.click()  # another one first
            head.click()
            assert column(page, name) == sorted(column(page, name))
            assert page.locator("th[aria-sort='ascending']").all_text_contents() == [name]
            head.click()
            assert column(page, name) == sorted(column(page, name), reverse=True)
            assert page.locator("th[aria-sort='descending']").all_text_contents() == [name]
        for name in ("question", "answer", "label", "pathway"):
            page.get_by_role("button", name=name, exact=True).click()
            # The browser's own order of words: capitals beside small letters.
            ordered = page.evaluate(
                "(some) => some.toSorted(new Intl.Collator(undefined, { numeric: true }).compare)",
                column(page, name),
            )
            assert column(page, name) == ordered
            assert len(set(column(page, name))) > 1


def test_an_example_opens_into_its_tokens_and_its_own_curve(report, data):
    with visited(report) as page:
        for k, row in ((0, data["sweeps"][0]["rows"][3]), (1, data["sweeps"][1]["rows"][5])):
            page.select_option("#sweep", str(k))
            page.fill("#search", row["question"])
            at = column(page, "answer").index(row["answer"])
            page.locator(".open").nth(at).click()
            detail = page.locator(".detail")
            detail.locator(".main-svg").first.wait_for()
            assert detail.locator(".tokens").text_content() == "".join(row["tokens"])
            of = {p: name for name, where in row["marks"].items() for p in where}
            marked = page.evaluate(
                "() => [...document.querySelectorAll('.tokens span')].map((one) =>"
                " one.parentElement.className)"
            )
            assert marked == [
                f"r-{of[p].replace('cut:random_tokens', 'control')}" if p in of else "tokens"
                for p in range(len(row["tokens"]))
            ]
            grounds = page.evaluate(
                "() => [...document.querySelectorAll('.tokens mark')].map((one) =>"
                " getComputedStyle(one).backgroundColor)"
            )
            assert grounds
            assert "rgba(0, 0, 0, 0)" not in grounds
            assert set(detail.locator(".key mark").all_text_contents()) == {
                data["roles"][name] for name in row["marks"]
            }
            curves = page.evaluate(
                "() => document.querySelector('.chart').data.map(({ name, y }) => [name,"
                " Array.from(y)])"
            )
            assert dict(curves) == row["curves"]
            # The small curve of the row has the colours of its own curve.
            small, large = page.evaluate(
                "() => { const row = document.querySelector('.chart').closest('tr');"
                " const rgb = (c) => { const one = document.createElement('i');"
                " one.style.color = c; document.body.append(one);"
                " return getComputedStyle(one).color; };"
                " return [[...row.previousElementSibling.querySelectorAll('.spark path')]"
                ".map((one) => getComputedStyle(one).stroke),"
                " document.querySelector('.chart').data.filter((one) => one.line.dash !== 'dot')"
                ".map((one) => rgb(one.line.color))]; }"
            )
            assert small == large != []
            detail.get_by_text("Numbers").click()
            detail.locator("tbody tr").first.wait_for()
            assert detail.locator("tbody tr").count() == len(data["sweeps"][k]["layers"])
            page.locator(".open").nth(at).click()
            assert detail.count() == 0


def test_a_keyboard_reaches_everything(report):
    with visited(report) as page:
        unfolded(page)
        many = page.evaluate(
            "() => document.querySelectorAll('a[href], button, input, select, summary').length"
        )
        stops = tabbed(page)
        assert [stop["at"] for stop in stops] == list(
            range(len(stops))
        )  # all of them, in their order
        assert len(stops) >= 0.5 * many > 30
        assert [
            stop for stop in stops if not (stop["name"] and stop["ring"] and stop["seen"])
        ] == []
        names = Counter(stop["name"] for stop in stops)
        assert stops[0]["name"] == "Skip to the examples"
        for wanted in (
            "Provenance",
            "Caption",
            "ΔP minus",
            "Download plot as a PNG",
            "Numbers",
            "largest ΔP",
        ):
            assert any(wanted in name for name in names), wanted
        legend = page.locator("figure .traces").count()
        assert sum(stop["tag"] == "rect" for stop in stops) == legend > 4


def test_keys_do_what_clicks_do(report):
    with visited(report) as page:
        drawn(page)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")  # over the figures to the examples
        page.keyboard.press("Tab")
        assert page.evaluate("() => document.activeElement.id") == "search"
        page.keyboard.type("peru")
        found = page.locator("#count").text_content()
        assert 0 < int(found.split()[0]) < 10
        page.keyboard.press("Tab")
        page.keyboard.press("End")  # the last choice of a list
        assert page.locator("#count").text_content() != found
        page.keyboard.press("Home")
        page.locator("#search").fill("")
        head = page.get_by_role("button", name="P before", exact=True)
        for key, way in (("Enter", "ascending"), ("Space", "descending")):
            head.press(key)
            assert page.locator(f"th[aria-sort='{way}']").text_content() == "P before"
        row = page.locator(".open").nth(2)
        row.press("Enter")
        assert (row.get_attribute("aria-expanded"), page.locator(".detail").count()) == ("true", 1)
        row.press("Space")
        assert (row.get_attribute("aria-expanded"), page.locator(".detail").count()) == ("false", 0)
        summary = page.locator("summary").first
        summary.press("Enter")
        assert page.locator("details[open]").count() == 1


def test_keys_hide_and_restore_curves_and_turn_the_switch(report):
    with visited(report) as page:
        drawn(page)
        first = page.evaluate(SHOWN)
        entry = page.locator("figure .legendtoggle").nth(0)
        name = entry.get_attribute("aria-label")
        entry.focus()
        assert entry.get_attribute("aria-pressed") == "true"
        page.keyboard.press("Space")
        assert entry.get_attribute("aria-pressed") == "false"
        assert name not in page.evaluate(SHOWN)
        # The focus stays where it was, though all was drawn anew.
        assert page.evaluate("() => document.activeElement.getAttribute('aria-label')") == name
        page.keyboard.press("Enter")
        assert page.evaluate(SHOWN) == first
        page.locator("figure .updatemenu-header").focus()
        page.keyboard.press("Enter")
        page.locator(
            "figure .updatemenu-dropdown-button[aria-label='flips minus random_tokens']"
        ).press("Enter")
        page.locator(
            "figure .annotation", has_text="Difference from control: flips minus random_tokens"
        ).wait_for()


def test_its_parts_have_names_and_an_order(report):
    with visited(report) as page:
        unfolded(page)
        told = page.evaluate("""() => ({
              lang: document.documentElement.lang, title: document.title,
              heads: [...document.querySelectorAll("h1, h2, h3, h4")].map((one) => +one.tagName[1]),
              twice: [...document.querySelectorAll("[id]")].map((one) => one.id).filter((id, k, all) => all.indexOf(id) !== k),
              marks: ["header", "nav[aria-label]", "main", "footer"].map((one) => document.querySelectorAll(`body > ${one}`).length),
              figures: [...document.querySelectorAll("figure, .chart")].map((one) => one.getAttribute("aria-label")),
              unscoped: [...document.querySelectorAll("th:not([scope])")].length,
              sections: [...document.querySelectorAll("section")]
                .map((one) => document.getElementById(one.getAttribute("aria-labelledby")).textContent),
              broken: [...document.querySelectorAll("a[href^='#']")]
                .filter((one) => !document.querySelector(one.getAttribute("href"))).length,
              fields: [...document.querySelectorAll("input, select")].filter((one) => !one.labels.length).length,
            })""")
        assert (told["lang"], told["title"]) == ("en", "Two sweeps")
        assert told["heads"].count(1) == 1
        assert all(
            after - before <= 1
            for before, after in zip(told["heads"], told["heads"][1:], strict=False)
        )
        assert told["twice"] == []
        assert told["marks"] == [1, 1, 1, 1]
        assert all(len(text) > 30 for text in told["figures"])
        assert len(told["figures"]) >= 2
        assert (told["unscoped"], told["broken"], told["fields"]) == (0, 0, 0)
        assert told["sections"][0] == "Findings"  # the verdict first


def test_on_paper_it_is_light_and_nothing_is_cut(report, data, tmp_path):
    with visited(report, dark=True) as page:
        page.locator(".open").first.click()
        page.wait_for_selector(".chart .main-svg")
        page.evaluate("""() => addEventListener("beforeprint", async () => {
              for (let k = 0; k < 50; k++) await null;  // what is drawn for paper is drawn before the browser goes on
              const plot = document.querySelector("figure .plot");
              const figure = document.querySelector("figure").getBoundingClientRect();
              window.printed = { width: figure.width, height: figure.height, drawn: plot._fullLayout.width,
                paper: plot.layout.paper_bgcolor,
                chart: document.querySelector(".chart").clientWidth };
            })""")
        page.pdf(
            path=tmp_path / "report.pdf",
            format="A4",
            prefer_css_page_size=True,
            print_background=True,
        )
        assert page.evaluate("() => window.printed.width") <= 690
        assert (
            page.evaluate("() => window.printed.height") <= 1010
        )  # what a sheet of A4 leaves, so that no legend is torn off
        assert (
            page.evaluate("() => window.printed.drawn") == 1000
        )  # in the figure's own pixels, before it is made smaller
        assert page.evaluate("() => window.printed.chart") <= 690
        assert page.evaluate("() => window.printed.paper") == "white"
        page.wait_for_function(
            "() => document.querySelector('figure .plot').layout.paper_bgcolor === '#14171a'"
        )
        page.emulate_media(media="print")
        gone = page.evaluate(
            "() => ['nav', 'form', '.skip'].map((one) =>"
            " getComputedStyle(document.querySelector(one)).display)"
        )
        assert gone == ["none"] * 3
        # What is closed cannot be opened on paper; rows that are not printed are counted; heads
        # keep their words.
        assert not page.locator("details:not([open])").first.is_visible()
        printed, every = (
            page.locator("#examples tbody tr:not(.detail)").count(),
            sum(len(one["rows"]) for one in data["sweeps"]),
        )
        said = (
            "" if printed == every else f"{printed} of {every} examples; the page itself has all."
        )
        assert page.locator("#printed").text_content() == said
        assert (
            page.evaluate(
                "() => getComputedStyle(document.querySelector('#examples th button')).display"
            )
            == "contents"
        )
        # Nothing is wider than the sheet: the browser would shrink the whole page.
        page.set_viewport_size({"width": 688, "height": 1000})
        page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
        page.wait_for_timeout(1500)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 688
        assert (
            page.evaluate("() => getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
