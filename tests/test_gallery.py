"""Every example of the gallery holds what `graft check` asks, and can be had where nothing but Python is."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parent.parent / "examples/gallery"
EXAMPLES = sorted(path.name for path in GALLERY.iterdir() if path.is_dir() and path.name.isidentifier())

# What makes Python believe that there is no Triton and no other language.
IMPORTED_WITHOUT_LANGUAGES = """
import sys
from importlib.abc import MetaPathFinder

HIDDEN = ("triton", "tvm_ffi", "tilelang", "helion", "cutlass")


class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
import importlib.util

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else found(name, package)
import torch
from torchgraft.checking.subject import find_subjects

for subject in find_subjects(sys.argv[1:]):
    arguments = subject.samples.smallest.make("cpu", torch.float32)
    subject.operator.call(*subject.operator.declaration.with_defaults(arguments))
    print("called", subject.operator.qualified_name)
"""


def in_process(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)


# The modules that other languages are, by the example that needs it.
LANGUAGES = {"segment_sum": "tvm_ffi", "softmax": "tilelang", "rms_norm_gated": "helion", "swiglu": "cutlass"}


def is_in_triton(example):
    return any("import triton" in path.read_text() for path in (GALLERY / example).glob("*.py"))


# Triton's interpreter takes minutes for each. The others are asked in one run: to start one takes longer than some do.
IN_TRITON = [each for each in EXAMPLES if is_in_triton(each)]
ALONE = [*IN_TRITON, *LANGUAGES]
RUNS = [[each for each in EXAMPLES if each not in ALONE], *([each] for each in ALONE)]


@pytest.mark.slow
@pytest.mark.parametrize("examples", RUNS, ids=lambda examples: "+".join(examples))
def test_every_property_holds(examples):
    if examples[0] in IN_TRITON:
        pytest.importorskip("triton")
    if examples[0] in LANGUAGES:
        name = LANGUAGES[examples[0]]
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"there is no {name}: `make languages` installs it")
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


def test_without_its_language_the_reference_answers():
    done = in_process("-c", IMPORTED_WITHOUT_LANGUAGES, *(GALLERY / each for each in ALONE))
    assert done.returncode == 0, done.stderr
    assert all(f"called gallery::{each}\n" in done.stdout for each in ALONE)
