"""AGENTS.md, here and in what `graft new` makes: the commands and the files that they name are there."""

import io
import pydoc
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer.main

from torchgraft.authoring.new import make_package
from torchgraft.checking.explaining import explanations
from torchgraft.checking.properties import PROPERTIES
from torchgraft.cli import app

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SCHEMA = "(Tensor input, Tensor bias) -> Tensor"
PACKAGES = {
    "agents_complete": {},
    "agents_everything": {"cuda": True, "triton": True, "backward": True},
    "agents_cell": {"cell": True},
    "agents_shapes": {"schema": SCHEMA, "shapes": "... d, d -> ... d"},
}


@pytest.fixture(scope="module", params=["torchgraft", *PACKAGES])
def page(request, tmp_path_factory):
    if request.param == "torchgraft":
        return ROOT / "AGENTS.md"
    return make_package(request.param, tmp_path_factory.mktemp("made"), **PACKAGES[request.param]) / "AGENTS.md"


def commands_of(page):
    """The words of each command, in a block or within a sentence."""
    text = page.read_text()
    lines = [line for block in FENCED.findall(text) for line in block.splitlines()]
    return [shlex.split(each, comments=True) for each in (*lines, *re.findall(r"`([^`\n]+)`", FENCED.sub("", text)))]


def why_none(words):
    """Why words are no command of `graft`; empty if they are one."""
    command = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "commands") and rest:
        command = command.commands.get(rest[0]) or command.commands.get("run")
        if command is None:
            return f"graft has no command {rest[0]}"
        rest = rest if command.name == "run" else rest[1:]
    options = {option for parameter in command.params for option in parameter.opts}
    unknown = [
        each for each in rest if each.startswith("-") and each.partition("=")[0] not in {*options, "-", "--help"}
    ]
    return f"{' '.join(words)}: there is no {unknown[0]}" if unknown else ""


def test_each_command_is_one(page):
    found = [words for words in commands_of(page) if words[0] == "graft" and len(words) > 1]
    assert len(found) > 5
    assert not [said for said in map(why_none, found) if said]
    keys = [" ".join(words[2:]) for words in found if words[1] == "explain" and len(words) > 2 and words[2] != "--json"]
    assert keys
    assert set(keys) <= set(explanations())


@pytest.mark.parametrize("words", ["graft chekc x", "graft check x --qick", "graft bench overhead --quick"])
def test_what_is_no_command_is_found(words):
    assert why_none(words.split())


def test_each_option_within_a_sentence_is_one_of_a_command(page):
    def options(command):
        yield from (option for each in command.params for option in each.opts)
        for inner in getattr(command, "commands", {}).values():
            yield from options(inner)

    named = {words[0] for words in commands_of(page) if words[0].startswith("--")}
    assert named <= set(options(typer.main.get_command(app)))


def test_each_target_of_make_and_each_script_is_there(page):
    for words in commands_of(page):
        if words[0] == "make" and len(words) > 1:
            assert re.search(rf"^{words[1]}:", (page.parent / "Makefile").read_text(), re.MULTILINE), words
        if words[0].endswith("python") and words[1] == "-c":
            with redirect_stdout(io.StringIO()) as printed:
                exec(words[2], {"help": pydoc.Helper(output=printed)})
            assert printed.getvalue()
        elif words[0].endswith("python") and words[1] != "-m":
            assert (page.parent / words[1]).is_file(), words
        for word in words[1:]:
            if word.startswith("tests/"):
                assert (page.parent / word).is_file(), words


def test_a_package_with_kernels_in_cuda_names_the_emulator_that_runs_them(page):
    if page.parent != ROOT:
        assert ("--emulate" in page.read_text()) == any(page.parent.glob("src/*/cuda.cu"))


def test_the_properties_that_the_emulator_runs_are_named():
    text = (ROOT / "docs/check/reference.md").read_text()
    said = re.search(
        r"an emulator\]\([^)]*\)\. It checks (.*?), or\s+those of `--property`: (.*?) and others", text, re.DOTALL
    )
    run, left = (re.findall(r"`(\w+)`", part) for part in said.groups())
    assert run == [name for name, each in PROPERTIES.items() if each.sanitized]
    assert len(run) == 10
    assert left
    assert not [each for each in left if PROPERTIES[each].sanitized]


def test_each_file_is_there(page):
    """Anchors are compared by tests/test_docs.py."""
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text())
    assert len(targets) > 4
    assert not [each for each in targets if not (page.parent / each).exists()]


def test_a_package_names_each_of_its_sources(page):
    sources = {str(path.relative_to(page.parent)) for path in page.parent.glob("src/*/*") if page.parent != ROOT}
    assert sources <= set(re.findall(r"\]\(([^)#]+)", page.read_text()))
