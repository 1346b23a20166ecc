"""docs/tutorial.md: from an empty folder to a proved wheel, with fewer than 250 lines of one's own."""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import torchgraft
from test_docs import FENCED, ROOT, _with_graft_on_path, shows

TEXT = (ROOT / "docs/tutorial.md").read_text()
BLOCKS = list(FENCED.finditer(TEXT))
WRITTEN = [block for block in BLOCKS if block["file"]]


def changed(text, difference):
    """A text with a change: lines that begin with a space, with `-` and with `+`, as `diff -u` writes them."""
    lines = difference.splitlines()
    before, after = ("".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", sign)) for sign in "-+")
    assert text.count(before) == 1, before
    return text.replace(before, after)


def walk(place, blocks, environment):
    """Does what blocks of the page say: writes files, runs commands, and compares what they print."""
    printed = ""
    for block in blocks:
        path = place / (block["file"] or "")
        if block["language"] == "diff":
            path.write_text(changed(path.read_text(), block["text"]))
        elif block["file"]:
            path.write_text(block["text"])
        elif block["language"] == "sh":
            command = ["bash", "-c", block["text"]]
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=environment)
            assert done.returncode == 0, done.stdout + done.stderr
            printed = done.stdout
        elif not block["language"]:
            shown = block["text"]
            if torch.cuda.is_available() and "not checked" not in shown:
                shown = shown.replace("every property that was asked holds on cpu", "every property holds")
            # Columns are as wide as the figures in them.
            assert shows(*(re.sub(" +", " ", text) for text in (shown, printed))), printed


def number_of(command):
    return next(number for number, block in enumerate(BLOCKS) if block["text"].startswith(command))


def test_the_lines_of_ones_own_are_fewer_than_250():
    lines = 0
    for block in WRITTEN:
        mine = block["text"].splitlines()
        if block["language"] == "diff":
            mine = [line[1:] for line in mine if line.startswith("+")]
        lines += sum(bool(line.strip()) for line in mine)
    assert 200 < lines < 250, lines


def test_the_kernel_is_right_after_the_first_check(tmp_path):
    """The kernels for the CPU are."""
    place = tmp_path / "empty"
    place.mkdir()
    walk(place, BLOCKS[: number_of("graft check") + 2], _with_graft_on_path(tmp_path))
    # All that is written is of a form that formatters leave alone.
    for tool, kind in (("ruff", "py"), ("clang-format", "cpp")):
        written = {block["file"] for block in WRITTEN if block["file"].endswith(".py") == (kind == "py")}
        options = ("format", "--check", "--no-cache") if tool == "ruff" else ("--dry-run", "--Werror")
        files = [place / name for name in written if not name.endswith(".cu")]
        subprocess.run([Path(sysconfig.get_path("scripts"), tool), *options, *files], check=True, capture_output=True)


@pytest.mark.slow
def test_the_whole_walk(tmp_path):
    place = tmp_path / "empty"
    place.mkdir()
    environment = _with_graft_on_path(tmp_path)
    walk(place, BLOCKS[: number_of("graft wheel")], environment)
    # All architectures, as a wheel for others has them, would take many minutes where there is nvcc.
    with (place / "rms_norm/pyproject.toml").open("a") as project:
        project.write('\n[tool.torchgraft]\narchitectures = ["90-real"]\n')
    walk(place, BLOCKS[number_of("graft wheel") :], environment)
    assert list((place / "dist").glob("rms_norm-*.whl"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_the_kernels_for_cuda_compile(tmp_path):
    for block in WRITTEN:
        if Path(block["file"]).suffix in (".h", ".cu"):
            (tmp_path / Path(block["file"]).name).write_text(block["text"])
    includes = [Path(torchgraft.__file__).parent / "include", Path(torch.__file__).parent / "include"]
    includes.append(includes[-1] / "torch/csrc/api/include")
    options = ["-std=c++20", "--expt-relaxed-constexpr", "-gencode", "arch=compute_90,code=sm_90", "-Werror"]
    options += ["all-warnings", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020b000000000000ULL"]
    command = ["nvcc", *options, *(f"-I{path}" for path in includes), "-c", "cuda.cu", "-o", "cuda.o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_kernels_for_cuda_are_right_in_the_emulator(tmp_path):
    place = tmp_path / "empty"
    place.mkdir()
    environment = _with_graft_on_path(tmp_path)
    walk(place, [block for block in BLOCKS if block["file"] or block["text"].startswith("graft new")], environment)
    emulate = ["-m", "torchgraft.emulation", "--package", place / "rms_norm/src/rms_norm", "--"]
    asked = ["--property", "value", "--property", "determinism", "--property", "empty"]
    done = subprocess.run(
        [sys.executable, *map(str, emulate), *asked], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
