"""The documentation: every snippet runs, every table is the one that was measured."""

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from torchgraft.checking.property import COMPILER
from torchgraft.cli import app
from torchgraft.machine.processes import clean_processes
from translations import translations

ROOT = Path(__file__).parent.parent
OTHERS = [ROOT / name for name in ("AGENTS.md", "CONTRIBUTING.md")]
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted((ROOT / "docs").rglob("*.md")), *OTHERS]
# Their code is that of the English pages, which tests/test_translations.py compares.
TRANSLATED = {page for _, _, page in translations()}
# A block that names a file is part of a longer example: it is that file.
FENCED = re.compile(r"^```(?P<language>\w*)(?: (?P<file>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
# Modules that blocks may import and that are no part of the environment of the tests.
LANGUAGES = ("tvm_ffi", "tilelang", "helion", "cutlass", "triton")


THE_READERS_FOLDER = "/home/you"
# What a check says now and then where there is no terminal.
PROGRESS = re.compile(r"^\d+ of \d+ done after \d+ s.*\n", re.MULTILINE)


def snippets():
    """Each block of Python, and what it prints where the next block shows that."""
    for page in PAGES:
        if page in TRANSLATED:
            continue
        blocks: list = list(FENCED.finditer(page.read_text()))
        for number, (block, following) in enumerate(zip(blocks, [*blocks[1:], None], strict=False)):
            if block["language"] == "python" and not block["file"]:
                shown = following["text"] if following and not following["language"] else None
                missing = [name for name in LANGUAGES if name in block["text"] and not importlib.util.find_spec(name)]
                reason = f"there is no {', '.join(missing)}: `make languages` installs it"
                marks = [pytest.mark.skip(reason=reason)] if missing else []
                yield pytest.param(block["text"], shown, id=f"{page.name}-{number}", marks=marks)


SNIPPETS = list(snippets())


@pytest.mark.parametrize(("code", "shown"), SNIPPETS)
def test_a_snippet_runs_and_prints_what_the_page_shows(code, shown, tmp_path):
    # Compilers of other languages read the lines of a function from its file.
    source, output, errors = tmp_path / "snippet.py", tmp_path / "output", tmp_path / "errors"
    source.write_text(code)
    # Of their own, as a reader's are, and with PyTorch, which takes seconds to import, there already.
    process = clean_processes(COMPILER).Process(target=run_snippet, args=(source, output, errors))
    process.start()
    process.join()
    assert process.exitcode == 0, errors.read_text()
    if shown is not None:
        assert output.read_text() == shown


def run_snippet(source, output, errors):
    for stream, path in ((sys.stdout, output), (sys.stderr, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream.fileno())
    warnings.simplefilter("ignore")
    exec(compile(source.read_text(), str(source), "exec"), {"__name__": "__main__"})


def test_there_are_snippets():
    assert sum(each.values[1] is not None for each in SNIPPETS) >= 2


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("README.md", "cube/lib/mykernels_cpu.so"),
        # The reference goes on with the operator of the guide.
        pytest.param(
            "docs/check.md docs/check/reference.md", "squared_relu/lib/mykernels_cpu.so", marks=pytest.mark.slow
        ),
        ("docs/operators.md", "norm/src/norm/cuda.cu"),
        ("docs/real-inputs.md", "row_softmax.py"),
        pytest.param("docs/cpp.md", "build/serve", marks=pytest.mark.slow),
        pytest.param("docs/from-tutorials.md", "scaled/build/scaled_cpu.so", marks=pytest.mark.slow),
    ],
)
def test_a_page_that_makes_files_does_what_it_shows(tmp_path, page, made):
    """Goes through a page as a reader would: writes its files, applies its changes, runs its commands."""
    environment = _with_graft_on_path(tmp_path)
    place = tmp_path / "empty"
    place.mkdir()
    printed = ""
    blocks = list(FENCED.finditer("".join((ROOT / each).read_text() for each in page.split())))
    # What stands before the first file is about how to install torchgraft.
    first = next((number for number, block in enumerate(blocks) if block["file"]), 0)
    for block in blocks[first:]:
        path = place / (block["file"] or "")
        if block["language"] == "diff":
            removed, added = ("\n".join(re.findall(rf"^\{sign}(.*)$", block["text"], re.MULTILINE)) for sign in "-+")
            assert removed in path.read_text()
            path.write_text(path.read_text().replace(removed, added))
        elif block["file"]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(block["text"])
        elif block["language"] == "sh":
            command = ["bash", "-c", block["text"].replace(THE_READERS_FOLDER, str(place))]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=environment)
            assert not PROGRESS.sub("", done.stderr)
            # These pages show what a check finds.
            assert done.returncode == 0 or page.startswith(("docs/check.md", "docs/real-inputs.md")), done.stdout
            printed = done.stdout.replace(str(place), THE_READERS_FOLDER)
        elif printed and not block["language"]:
            assert shows(block["text"], printed), printed
            printed = ""
    assert (place / made).is_file()


def shell_commands():
    """Each call of `graft` in a block of shell commands, without what a shell does beside it."""
    for page in PAGES:
        for block in FENCED.finditer(page.read_text()) if page not in TRANSLATED else ():
            for line in block["text"].replace("\\\n", "").splitlines() if block["language"] in ("sh", "bash") else ():
                if line.startswith("graft "):
                    words = shlex.split(line, comments=True)
                    yield pytest.param(page, words[1:], id=f"{page.name}: {' '.join(words)}")


COMMANDS = list(shell_commands())


@pytest.mark.parametrize(("page", "words"), [each for each in COMMANDS if each.values[1][0] in ("new", "adopt")])
def test_a_command_that_takes_seconds_runs_as_it_is_shown(page, words, tmp_path, monkeypatch):
    """In a folder with the files of the page, and nothing else; with those of a package if the command changes it."""
    monkeypatch.chdir(tmp_path)
    for block in FENCED.finditer(page.read_text()):
        if block["file"] and ("/" not in block["file"] or "--into" in words):
            (tmp_path / block["file"]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / block["file"]).write_text(block["text"])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("words", [pytest.param(each.values[1], id=each.id) for each in COMMANDS])
def test_a_command_that_a_page_shows_is_one(words):
    """Many would take minutes: their options are read, and nothing runs."""

    def do_nothing(command):
        for each in getattr(command, "commands", {}).values():
            do_nothing(each)
        if not hasattr(command, "commands"):
            command.callback = lambda **options: None

    command = typer.main.get_command(app)
    do_nothing(command)
    command.main(words, standalone_mode=False)


def test_a_command_that_is_none_is_found():
    for words in (["bench", "overhead", "--quick"], ["benchmark"], ["check", "--overhead"]):
        with pytest.raises(Exception, match="No such"):
            test_a_command_that_a_page_shows_is_one(words)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_no_page_lists_commits():
    """Which sources a result is of, its hash tells; a page says whether they are these."""
    results = [*(ROOT / "benchmarks/results").rglob("*.md"), *(ROOT / "docs/fragments").glob("*.md")]
    for page in (*PAGES, *results):
        assert not re.search(r"\bcommit [0-9a-f]{7}", page.read_text()), page


def _with_graft_on_path(folder: Path) -> dict[str, str]:
    graft = folder / "bin/graft"
    graft.parent.mkdir()
    graft.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m torchgraft "$@"\n')
    graft.chmod(0o755)
    path = os.pathsep.join((str(graft.parent), str(Path(sys.executable).parent), os.environ["PATH"]))
    # A machine with a GPU would show a column more.
    return {**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": ""}


def shows(text: str, printed: str) -> bool:
    """Whether what a page shows is what was printed, in order, with anything in place of `...`."""
    parts = map(re.escape, re.split(r"(?<!\.)\.{3}(?!\.)\n?", _without_figures(text)))
    return re.search(".*".join(parts), _without_figures(printed), re.DOTALL) is not None


def _without_figures(text: str) -> str:
    """Without what differs from one machine, or one property more, to the next: times, counts, spaces at the end."""
    text = re.sub(r"(\d+ min )?[\d.]+ s$|\d+(?= passed| failed| not applicable)", "N", text, flags=re.MULTILINE)
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "script",
    [
        "properties",
        "stressed",
        "results",
        "goals",
        "depthwise",
        "diagrams",
        "pictures",
        "support",
        "evidence",
        "census",
        "recurrences",
        "translations",
        "include",
    ],
)
def test_what_a_script_writes_is_current(script, monkeypatch, capsys):
    path = ROOT / f"tools/docs/{script}.py"
    # In this process: each of another would import PyTorch first.
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [str(path), "--check"])
    status = runpy.run_path(str(path), run_name="script")["main"]()
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", FENCED.sub("", page.read_text())):
        path = page.parent / target if target else page
        assert path.exists(), target
        # The headings of the reference are made for the site, whose build checks links to them.
        if anchor and path.suffix == ".md" and path.parent.name != "api":
            assert anchor in anchors(path), f"{target}#{anchor}"


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in shown]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return {f"{name}-{count}" if count else name for name, count in zip(names, before, strict=True)}


def test_the_readme_names_every_target_it_needs():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`make ([a-z-]+)`", "".join(page.read_text() for page in PAGES)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_listed_kernel_leads_to_a_file(monkeypatch):
    """The table of docs/results finds the file of any kernel that a row may name."""
    monkeypatch.syspath_prepend(ROOT / "tools/docs")
    from kernel_files import file_of

    tables = sorted((ROOT / "src/torchgraft/operators").glob("*/cuda/kernel_table.h"))
    assert len(tables) > 1
    for table in tables:
        folder = table.parents[1]
        names = re.findall(r"^  ROW\((\w+),", table.read_text(), re.MULTILINE)
        assert names
        for name in names:
            # The kernel or its launcher is there, and not in another file.
            assert re.search(rf"\b(?:launch_)?{name}\s*[(<]", file_of(folder, name).read_text()), name
        with pytest.raises(LookupError, match="no file for the kernel nothing_such: name the kernel after its file"):
            file_of(folder, "nothing_such")
