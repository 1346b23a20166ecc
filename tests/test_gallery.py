"""Every example of the gallery holds what `graft check` asks, and can be had where nothing but Python is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parent.parent / "examples/gallery"
EXAMPLES = sorted(path.name for path in GALLERY.iterdir() if path.is_dir() and path.name.isidentifier())

# What makes Python believe that there is no Triton: nothing beside the examples is imported in its place.
IMPORTED_WITHOUT_TRITON = """
import sys
from importlib.abc import MetaPathFinder


class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
import importlib.util

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else found(name, package)
import torch
from torchgraft.checking.subject import find_subjects

for subject in find_subjects(sys.argv[1:]):
    arguments = subject.samples.smallest.make("cpu", torch.float32)
    subject.operator.call(*subject.operator.declaration.with_defaults(arguments))
    print("called", subject.operator.qualified_name)
"""


def in_process(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)


def is_in_triton(example):
    return any("import triton" in path.read_text() for path in (GALLERY / example).glob("*.py"))


# Triton's interpreter takes minutes for each. The others are asked in one run: to start one takes longer than some do.
IN_TRITON = [each for each in EXAMPLES if is_in_triton(each)]
RUNS = [[each for each in EXAMPLES if each not in IN_TRITON], *([each] for each in IN_TRITON)]


@pytest.mark.slow
@pytest.mark.parametrize("examples", RUNS, ids=lambda examples: "+".join(examples))
def test_every_property_holds(examples):
    if examples[0] in IN_TRITON:
        pytest.importorskip("triton")
    arguments = ("--device", "cpu", "--quick", "--workers", "2", "--json", "-")
    done = in_process("-m", "torchgraft", "check", *(GALLERY / each for each in examples), *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert len({each["operator"] for each in results}) >= len(examples)
    assert {each["status"] for each in results} <= {"pass", "not applicable"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_table_names_it_and_a_page_tells_of_it(example):
    assert f"[{example}]({example}/README.md)" in (GALLERY / "README.md").read_text()
    assert (GALLERY / example / "README.md").read_text().startswith(f"# {example}\n")


def test_without_triton_the_reference_answers():
    done = in_process("-c", IMPORTED_WITHOUT_TRITON, *(GALLERY / each for each in IN_TRITON))
    assert done.returncode == 0, done.stderr
    assert all(f"called gallery::{each}\n" in done.stdout for each in IN_TRITON)
