"""The site of the docs: it builds without a warning, and every page can be read, on a desktop and on a phone."""

import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import contents
import headers
import public

ROOT = Path(__file__).parent.parent
# How torchgraft/text.h joins Text to PyTorch's and to our own templates.
SPECIALISED = {"ToImpl", "Word", "call", "internal", "text", "torchgraft"}
LISTED = public.LIST.read_text()
HEADERS = [path.name for path in sorted(headers.INCLUDE.glob("*.*")) if path.name not in headers.HIDDEN_HEADERS]


def test_every_page_of_the_docs_is_a_page_of_the_site():
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not page.startswith("docs/fragments/")} <= set(contents.pages())
    assert len(contents.pages()) == len(set(contents.pages()))


def test_every_operator_has_a_page_that_says_when_to_use_it_and_shows_its_functions():
    for folder in (ROOT / "src/torchgraft/operators").glob("*/__init__.py"):
        name = folder.parent.name
        assert f"docs/{name}.md" in contents.TREE["Operators"]
        page = (ROOT / f"docs/{name}.md").read_text()
        assert "## When to use it\n" in page
        assert f"<!-- reference: torchgraft.{name} -->" in page


def test_the_reference_holds_all_that_is_public():
    """A module, header or command that is new has its line in docs/api."""
    named = re.findall(r"<!-- reference: (.+) -->", "".join(page.read_text() for page in (ROOT / "docs/api").iterdir()))
    commands = [line for line in LISTED.splitlines() if re.fullmatch(r"graft \w+", line)]
    modules = [f"module {module.__name__}" for module in public.MODULES]
    assert sorted(named) == sorted([*modules, *commands, *(f"torchgraft/{name}" for name in HEADERS)])


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_says_what_each_of_its_functions_does(name):
    header = headers.read_header(name)
    assert header.comment
    assert headers.undocumented(header) == []
    declared = {each.name for each in header.declarations}
    listed = re.search(rf"^torchgraft/{re.escape(name)}: (.*)$", LISTED, re.MULTILINE)
    assert listed is not None
    text = (headers.INCLUDE / name).read_text()
    bodies = " ".join(each.body for each in header.declarations)
    for public_name in set(listed[1].split(", ")) - declared - headers.HIDDEN - SPECIALISED:
        # Members stand in the text of their class, and what a library exports is for tools.
        exported = rf'^extern "C"[^{{;]*\b{public_name}\('
        assert re.search(rf"\b{public_name}\b", bodies) or re.search(exported, text, re.MULTILINE), public_name


def test_nothing_is_hidden_that_is_not_there():
    text = "".join(path.read_text() for path in headers.INCLUDE.glob("*.*"))
    assert [name for name in headers.HIDDEN if not re.search(rf"\b{name}\b", text)] == []


def test_what_a_header_declares_is_read_with_its_comments():
    header = headers.parse_header(
        "example.h",
        """// What the header is for.
#pragma once

#include <cstdint>

namespace torchgraft {
namespace internal {
// Nobody's.
inline int hidden() { return 1; }
}  // namespace internal

// Adds up, and checks
// nothing.
template <typename T, int kCount = (1 << 2)>
inline T sum(const T& left, T right = T{}) {
  if (left) {
    return left;
  }
  return right;
}

template <typename T>
T sum(T alone) {
  return alone;
}

struct Named {
  int first = 0;  // a comment }

 private:
  int second = 0;
};

// Says more.
#if defined(ONE)
#define MORE(x) \\
  (x)
#else
#define MORE(x) x
#endif

[[noreturn]] void end();

}  // namespace torchgraft
""",
    )
    assert header.comment == "What the header is for."
    total, named, more, end = header.declarations
    assert (total.kind, total.namespace) == ("function", "torchgraft")
    assert total.signatures == [
        "template <typename T, int kCount = (1 << 2)> T sum(const T& left, T right = T{})",
        "template <typename T> T sum(T alone)",
    ]
    assert total.comment == "Adds up, and checks\nnothing."
    assert (named.kind, named.body) == ("struct", "struct Named {\n  int first = 0;  // a comment }\n};")
    assert (more.kind, more.signatures, more.comment) == ("macro", ["MORE(x)"], "Says more.")
    assert end.signatures == ["void end()"]
    assert headers.undocumented(header) == ["Named", "end"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [*(sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-E")]
    place = [*("-c", str(ROOT / "tools/site"), "-d", str(folder / "read"), str(ROOT), str(folder / "html"))]
    done = subprocess.run([*command, *place], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


class Links(HTMLParser):
    """The places that a page has, where it leads, and what it needs."""

    def __init__(self, page):
        super().__init__()
        self.places, self.links, self.needs = {""}, set(), set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.add(values["href"])
        elif tag in ("link", "script", "img"):
            self.needs |= {values[name] for name in ("href", "src") if values.get(name)}


@pytest.mark.slow
def test_every_link_leads_somewhere_and_nothing_is_fetched(site):
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert len(pages) > 50
    wrong = defaultdict(list)
    for page, found in pages.items():
        for address in found.links | found.needs:
            path, _, place = unquote(re.sub(r"\?[^#]*", "", address)).partition("#")
            target = (page.parent / path).resolve() if path else page
            if address.startswith(("http://", "https://")):
                # A reader may go elsewhere; a page takes nothing from there.
                if address in found.needs:
                    wrong[page.name].append(address)
            elif not target.is_file() or (target in pages and place not in pages[target].places):
                wrong[page.name].append(address)
    for style in site.rglob("*.css"):
        if fetched := re.findall(r"@import[^;]*|url\(\s*[\"']?(?:https?:)?//[^)]*", style.read_text()):
            wrong[style.name] += fetched
    assert not wrong, json.dumps(wrong, indent=1)


# What sticks out of the screen and does not scroll by itself.
STICKS_OUT = """
const isWide = (each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
const scrolls = (each) => each && (getComputedStyle(each).overflowX !== "visible" || scrolls(each.parentElement));
return [...document.querySelectorAll("article *")]
  .filter((each) => isWide(each) && !scrolls(each))
  .map((each) => each.tagName + ": " + each.textContent.slice(0, 60));
"""


@pytest.mark.slow
def test_every_page_fits_the_screen_and_says_nothing_to_the_console(site, driver):
    wrong = defaultdict(list)
    for page in sorted(set(site.rglob("*.html")) - {site / "index.html"}):  # which leads to the first page
        driver.get(page.as_uri())
        for width in (1280, 390):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            sticks_out = driver.execute_script(STICKS_OUT)
            if sticks_out or driver.execute_script("return document.documentElement.scrollWidth") != width:
                wrong[page.name].append(f"{width}: {sticks_out}")
        grounds = []
        for scheme in ("light", "dark"):
            features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
            grounds.append(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
        if grounds[0] == grounds[1]:
            wrong[page.name].append(f"light and dark have the same ground: {grounds}")
        wrong[page.name] += driver.get_log("browser")
    assert not any(wrong.values()), json.dumps(wrong, indent=1)


@pytest.mark.slow
def test_a_search_needs_no_server(site, driver):
    driver.get(f"{(site / 'search.html').as_uri()}?q=checked_product")
    deadline = time.monotonic() + 20
    while not (
        found := driver.execute_script("return [...document.querySelectorAll('#search-results a')].map(String)")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert any("docs/api/cpp.html" in address for address in found)


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_follows_the_page_where_that_is_not_as_the_system_is(site, driver, theme):
    other = {"light": "dark", "dark": "light"}[theme]
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": other}]}
    )
    driver.get((site / "docs/shift.html").as_uri())
    driver.execute_script("document.body.dataset.theme = arguments[0]", theme)
    schemes = driver.execute_script(
        "return [...document.querySelectorAll('article img')].map((each) => getComputedStyle(each).colorScheme)"
    )
    assert schemes == [theme]


@pytest.mark.slow
def test_names_options_and_signatures_are_shown_as_they_are_written(site):
    pages = ("tutorial", "api/commands", "api/torchgraft")
    tutorial, commands, python = (re.sub(r"<[^>]+>", "", (site / f"docs/{page}.html").read_text()) for page in pages)
    assert "src/rms_norm/__init__.py" in tutorial
    assert "Replaces --plot, --json and --markdown." in commands
    assert "grafted: tuple[str, ...] = ()" in python
    assert "input \u2013 (any shape)" in re.sub(r"<[^>]+>", "", (site / "docs/mul_constant.html").read_text())
