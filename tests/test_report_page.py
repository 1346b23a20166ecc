"""The page of `graft bench --html`, in a real browser: it renders, sorts and filters, on a desktop and on a phone."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from reports import make_report, make_row
from torchgraft.benchmarking.load import Load
from torchgraft.benchmarking.page import render_page, render_picture
from torchgraft.benchmarking.page.charts import Axis, draw_ratios, short_rate


def test_the_page_is_one_file():
    page = render_page(make_report())
    # Nothing is fetched: every address is inside the page or is the page's own data.
    for address in re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", page):
        assert address.startswith(("#", "data:")), address
    assert "@import" not in page


def test_names_are_text_and_not_markup():
    page = render_page(make_report())
    assert "<b>one</b> image" not in page
    assert "&lt;b&gt;one&lt;/b&gt; image" in page


def test_the_picture_is_a_drawing_of_every_ratio():
    report = make_report()
    picture = render_picture(report)
    root = ElementTree.fromstring(picture)
    # The legend has dots too, without a title.
    dots = [each for each in root.iter() if "dot" in each.get("class", "").split() and len(each)]
    assert len(dots) == sum(bool(rival.ratio) for row in report.rows for rival in row.rivals.values())
    assert sum("loses" in each.get("class", "") for each in dots) == 1


@pytest.mark.parametrize(
    "rows",
    [[make_row(ratio=None)], [make_row(rivals={}, operations=0)], [make_row(), make_row(dtype="float16", rivals={})]],
)
def test_a_page_of_what_was_refused_or_has_no_rival(rows):
    assert "All rows" in render_page(make_report(rows))
    ElementTree.fromstring(render_picture(make_report(rows)))


def test_dots_do_not_hide_each_other():
    report = make_report([make_row(str(number), ratio=2 + number / 1000) for number in range(30)])
    [strip] = draw_ratios(report, 900).strips
    places = [(dot.x, dot.y) for dot in strip.dots]
    for one, (x, y) in enumerate(places):
        for other_x, other_y in places[one + 1 :]:
            assert (x - other_x) ** 2 + (y - other_y) ** 2 >= 100
        assert strip.top <= y <= strip.top + strip.height


@pytest.mark.parametrize(("low", "high"), [(0.5, 3), (0.01, 1e6), (1e9, 1e15), (2.1, 2.4)])
def test_ticks_are_apart_and_within(low, high):
    axis = Axis(low, high, 0, 400)
    places = [axis.at(tick) for tick in axis.ticks(30)]
    assert all(0 <= place <= 400 for place in places)
    assert all(other - one >= 30 for one, other in itertools.pairwise(places))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(4.283e12, "4.28 TFLOP/s"), (7.9e14, "790 TFLOP/s"), (1e9, "1 GFLOP/s"), (20.5e6, "20.5 MFLOP/s")],
)
def test_rates(value, shown):
    assert short_rate(value) == shown


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_text(render_page(make_report()))
    return path.as_uri()


def open_page(driver, address, width=1280, scheme="light"):
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(address)
    assert driver.get_log("browser") == []


def column(driver, name):
    """The texts of a column of the table, of the rows that are shown."""
    return driver.execute_script(
        """
        const table = document.getElementById("table");
        const headings = [...table.tHead.rows[0].cells];
        const index = headings.findIndex((each) => each.textContent.trim() === arguments[0]);
        return [...table.tBodies[0].rows].filter((row) => !row.hidden).map((row) => row.cells[index].innerText.trim());
        """,
        name,
    )


def click_heading(driver, name):
    driver.execute_script(
        """
        for (const button of document.querySelectorAll("#table th button"))
          if (button.textContent === arguments[0]) button.click();
        """,
        name,
    )


def click(driver, name):
    # By script: a click of the mouse would come while the page still scrolls there.
    driver.execute_script("document.getElementById(arguments[0]).click()", name)


def contrast(one, other):
    """The contrast of two colours, as the guidelines for accessible pages define it."""

    def luminance(colour):
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen_and_can_be_read(driver, address, width, scheme):
    open_page(driver, address, width, scheme)
    assert "A made-up card" in driver.title
    assert driver.execute_script("return document.documentElement.scrollWidth") == width
    shown = driver.execute_script(
        "return [...document.querySelectorAll('svg.plot')].filter((each) => each.checkVisibility()).length"
    )
    # The ratios and the roofline, each at one width; the bandwidth is folded.
    assert shown == 2
    # Letters of a plot are as large as they are drawn: it is not shrunk.
    scale = driver.execute_script(
        """
        const plot = [...document.querySelectorAll("svg.plot")].find((each) => each.checkVisibility());
        return plot.getBoundingClientRect().width / plot.viewBox.baseVal.width;
        """
    )
    assert 0.9 < scale < 1.2
    for selector in (
        "h1",
        "#machine summary",
        ".to-do li",
        ".answer li .slower",
        "p.quiet",
        "td.faster",
        "td.slower",
        "a",
        "dt",
        "td.float32, .label.float32",
    ):
        colours = driver.execute_script(
            """
            const element = document.querySelector(arguments[0]);
            let ground = element;
            while (getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
            return [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
            """,
            selector,
        )
        assert contrast(*colours) >= 4.5, (selector, colours)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_screen_says_am_i_faster_where_do_i_lose_and_how_far_from_the_floor(driver, address, width):
    open_page(driver, address, width)
    answers = driver.execute_script(
        """
        return [...document.querySelectorAll(".answer")].map((each) => [
          each.querySelector("h2").innerText,
          each.querySelector("p").innerText,
          each.querySelector("li")?.innerText.replaceAll("\\n", " ") ?? "",
          each.getBoundingClientRect().bottom <= innerHeight,
        ]);
        """
    )
    row = "twice, 64,512,14x14,k27 of another, fp32, contiguous"
    far = "twice, 128,32,112x112,k3 of a network, fp32, contiguous"
    assert answers == [
        ["Am I faster?", "1.88x the speed of pytorch", "", True],
        ["Where do I lose?", "1 of 6 rows is slower than a rival", f"0.50x {row} pytorch", True],
        [
            "How far from the floor?",
            "50% of the floor, the least time that this device allows",
            f"50% {far} memory",
            True,
        ],
    ]


def test_provenance_is_a_line_and_its_details_are_folded(driver, address):
    open_page(driver, address)
    line = driver.find_element("css selector", "#machine summary")
    # The row of a model has no hash of the sources of models, which are here.
    facts = ("8 rows, results verified", "1 at an earlier commit", "PyTorch 2.13.0", "torchgraft 0.1.0", "2026-01-02")
    assert line.text == " · ".join(facts)
    assert line.size["height"] < 30
    chip = driver.find_element("css selector", "#machine dd")
    assert not chip.is_displayed()
    line.click()
    assert chip.is_displayed()


def test_a_box_stands_only_where_the_reader_must_act(driver, tmp_path):
    done = [
        make_row(),
        make_row("fallen back", fallbacks=("no kernel for this dtype",)),
        make_row("refused", ratio=None),
    ]
    others = [make_row(others=1.4), make_row("odd", time=None, problem="it is wrong")]
    loaded = make_report(others, load=Load(2, 0.2), unmeasured=3)
    boxes = []
    for report in (make_report(done), loaded):
        (tmp_path / "bench.html").write_text(render_page(report))
        open_page(driver, (tmp_path / "bench.html").as_uri())
        boxes.append([each.text for each in driver.find_elements("css selector", ".to-do li")])
    assert boxes == [
        [],
        [
            *loaded.doubts,
            "1 row of ours was refused. twice, odd, fp32, contiguous: it is wrong. It has no time until that is fixed.",
        ],
    ]
    assert len(loaded.doubts) == 2


def test_of_many_losses_the_worst_are_shown_and_a_click_shows_all(driver, tmp_path):
    rows = [make_row(f"size {number}", ratio=1.2 - 0.1 * number) for number in range(8)]
    (tmp_path / "bench.html").write_text(render_page(make_report(rows)))
    open_page(driver, (tmp_path / "bench.html").as_uri())
    shown = [each.text for each in driver.find_elements("css selector", "#lose li b")]
    assert shown == ["0.50x", "0.60x", "0.70x"]
    click(driver, "all-losses")
    assert column(driver, "pytorch") == [f"{ratio:.2f}x ▼" for ratio in (0.9, 0.8, 0.7, 0.6, 0.5)]


def test_a_click_on_a_heading_sorts(driver, address):
    open_page(driver, address)
    click_heading(driver, "pytorch")
    ordered = ["12x", "3.0x", "2.0x", "1.20x", "1.01x ~", "0.50x ▼"]
    # What has no figure stays at the end.
    assert column(driver, "pytorch") == [*ordered, "refused", "refused"]
    click_heading(driver, "pytorch")
    assert column(driver, "pytorch") == [*reversed(ordered), "refused", "refused"]
    click_heading(driver, "sample")
    # Numbers by what they are, not letter by letter.
    names = [name.partition(" ")[0] for name in column(driver, "sample")]
    assert names[1:6] == ["8,3,64x64", "64,512,14x14,k27", *["128,32,112x112,k3"] * 3]
    states = driver.execute_script(
        "return [...document.querySelectorAll('#table th')].map((each) => each.getAttribute('aria-sort'))"
    )
    assert states.count("ascending") == 1
    assert states.count("none") == len(states) - 1


def test_it_filters(driver, address):
    open_page(driver, address)
    total = len(make_report().rows)
    count = "return document.getElementById('count').textContent"
    assert driver.execute_script(count) == f"{total} of {total} rows"
    search = driver.find_element("id", "find")
    search.send_keys("K27 another")
    assert column(driver, "sample") == ["64,512,14x14,k27 of another"]
    search.clear()
    click(driver, "losses")
    assert column(driver, "pytorch") == ["0.50x ▼"]
    assert driver.execute_script(count) == f"1 of {total} rows"
    click(driver, "losses")
    driver.find_element("css selector", "select[data-column=layout]").send_keys("channels_last")
    assert column(driver, "layout") == ["channels_last"]


def test_a_dot_says_what_it_is(driver, address):
    open_page(driver, address, 390)
    said = driver.execute_script(
        """
        const dot = document.querySelector("svg.narrow [data-tip]");
        dot.dispatchEvent(new MouseEvent("click", { bubbles: true }));
        const tip = document.getElementById("tip");
        const box = tip.getBoundingClientRect();
        return [tip.textContent, tip.hidden, box.left >= 0 && box.right <= innerWidth];
        """
    )
    name = "twice, 128,32,112x112,k3 of a network, fp32, contiguous"
    assert said == [f"{name}\n100 us, 50% of the floor (memory), 12x against pytorch", False, True]


def test_a_phone_shows_the_columns_that_matter_and_the_others_when_asked(driver, address):
    open_page(driver, address, 390)
    hidden = "return getComputedStyle(document.querySelector('#table th.minor')).display"
    assert driver.execute_script(hidden) == "none"
    click(driver, "wide")
    assert driver.execute_script(hidden) == "table-cell"
    # Within its own frame: the page does not become wider.
    assert driver.execute_script("return document.documentElement.scrollWidth") == 390
