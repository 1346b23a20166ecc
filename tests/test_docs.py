"""The documentation: every snippet runs, every table is the one that was measured."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets():
    """Each block of Python, and what it prints where the next block shows that."""
    for page in PAGES:
        blocks: list = list(FENCED.finditer(page.read_text()))
        for number, (block, following) in enumerate(zip(blocks, [*blocks[1:], None], strict=False)):
            if block["language"] == "python":
                shown = following["text"] if following and not following["language"] else None
                yield pytest.param(block["text"], shown, id=f"{page.name}-{number}")


SNIPPETS = list(snippets())


@pytest.mark.parametrize(("code", "shown"), SNIPPETS)
def test_a_snippet_runs_and_prints_what_the_page_shows(code, shown):
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if shown is not None:
        assert done.stdout == shown


def test_there_are_snippets():
    assert sum(each.values[1] is not None for each in SNIPPETS) >= 2


def test_measured_tables_are_current():
    command = [sys.executable, str(ROOT / "docs/include.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_names_every_target_it_needs():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", "".join(page.read_text() for page in PAGES)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
