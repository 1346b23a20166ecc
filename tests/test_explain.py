"""`graft explain`: an explanation of all that a report of `graft check` can name, and of nothing else."""

import inspect
import re
from collections import defaultdict

import pytest
from typer.testing import CliRunner

from documents import read_document
from planted.catalogue import BUGS
from torchgraft.checking import PROPERTIES, blaming, result
from torchgraft.checking.distrust import judge
from torchgraft.checking.explaining import explanations, find_explanation
from torchgraft.checking.helpers import promised_layout
from torchgraft.checking.sanitizers.cpu import CPU_TOOLS
from torchgraft.checking.sanitizers.cuda import CUDA_TOOLS
from torchgraft.checking.without_gpu import COMPILES, RACES
from torchgraft.cli import app

CAUGHT = defaultdict(set)
for _bug in BUGS:
    CAUGHT[_bug.caught_by].add(_bug.wrong)


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments], catch_exceptions=False)


def test_everything_that_a_report_names_is_explained():
    named = {*PROPERTIES, *result.KINDS, *CPU_TOOLS, *CUDA_TOOLS, COMPILES, RACES, judge.QUESTION, "reached"}
    parts = {key for key, each in explanations().items() if each.kind == "part at fault"}
    assert set(explanations()) == named | parts
    # The parts are in the texts of `at_fault`, in front of their colon.
    texts = inspect.getsource(blaming) + inspect.getsource(promised_layout)
    found = set(re.findall(r'"(the [a-z ]+|what [a-z ]+)(?::|")', texts)) | set(re.findall(r'"(`\w+=`)"', texts))
    assert {"the kernel", "the reference", "the gradient formula", "`output=`", "`shapes=`"} <= found
    assert {find_explanation(each).key for each in found} == parts - {"process died"}
    assert find_explanation(f"{result.DIED}: signal 11").key == "process died"


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_example_of_a_property_is_a_bug_that_it_catches(name):
    """Each is planted and caught by tests/test_planted.py; a few properties have none."""
    said = find_explanation(name)
    assert min(map(len, (said.summary, said.proves, said.cannot_prove, said.mend, said.example))) > 10
    assert not CAUGHT[name] or said.example.removesuffix(".") in CAUGHT[name]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["non_finite"], "non_finite"),
        (["Memory-Bounds"], "memory_bounds"),
        (["stale", "cache"], "stale cache"),
        (["address sanitizer: value"], "address sanitizer"),
        (["the kernel: its values are wrong"], "kernel"),
    ],
)
def test_a_key_may_be_copied_from_a_report(words, key):
    done = run(*words)
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{key} (")
    assert "\nmend " in done.stdout


def test_an_unknown_key_gives_the_nearest_ones():
    done = run("valeu")
    assert done.exit_code == 2
    assert done.stderr.startswith("there is no explanation of 'valeu': the nearest keys are value")
    done = run("qqqqqqqq")
    assert done.exit_code == 2
    assert done.stderr == "there is no explanation of 'qqqqqqqq': `graft explain` lists all keys\n"


def test_without_a_key_all_are_listed_and_a_program_gets_their_texts():
    done = run("--json", "-")
    assert done.exit_code == 0
    found = read_document("explain", done.stdout)["explanations"]
    assert [each["key"] for each in found] == list(explanations())
    for each in explanations().values():
        assert re.search(rf"^{re.escape(each.key)} +{re.escape(each.summary[:30])}", done.stderr, re.MULTILINE), each
    (one,) = read_document("explain", run("state", "--json", "-").stdout)["explanations"]
    assert one["proves"].startswith("if the memory of an argument")
