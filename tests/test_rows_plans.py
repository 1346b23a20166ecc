"""How depthwise_conv2d's kernels of rows cut their work, for sequences in (B, C, L).

The plans are host code alone: a program asks them without a GPU.
"""

import os
import subprocess

import pytest

from choice import HERE, PACKAGE

KIB = 1024


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """`ask(kind, *numbers)`: the answer of tests/choice/rows.cpp, as numbers by name."""
    program = tmp_path_factory.mktemp("rows") / "rows"
    folders = [f"-I{PACKAGE / 'include'}", f"-I{PACKAGE / 'operators/depthwise_conv2d'}"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", *folders]
    subprocess.run([*compiler, str(HERE / "rows.cpp"), "-o", str(program)], check=True)

    def ask(kind, *numbers):
        line = " ".join(str(each) for each in (kind, *numbers))
        done = subprocess.run([program], input=line, capture_output=True, text=True, check=True)
        return {name: int(number) for name, _, number in (pair.partition("=") for pair in done.stdout.split())}

    return ask
