"""A library whose names are not those that are declared says so, with both lists, where a kernel is missed."""

import re
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
import torchgraft.kernels.fallback
from torchgraft import Operator, native
from torchgraft.building import build
from torchgraft.cli import app
from torchgraft.kernels import signatures
from torchgraft.sampling import Drawn, Sample, Samples

KERNELS = """
#include <torchgraft/checks.h>
#include <torchgraft/registration.h>

using torchgraft::Tensor;

Tensor same(Tensor input) { return input; }
TORCHGRAFT_KERNEL(names, CPU, rms_nrom, same)
TORCHGRAFT_KERNEL(names, CPU, other, same)
TORCHGRAFT_KERNEL(nams, CPU, moved, same)
"""
DECLARED = ("rms_norm", "other", "moved")
SAMPLES = Samples([Sample("a vector", (Drawn((3,)),))])
PACKAGE = """
from pathlib import Path
import torchgraft
from torchgraft.sampling import Drawn, Sample, Samples

operator = torchgraft.Operator("names::other(Tensor input) -> Tensor", reference=lambda input: input.clone())
samples = Samples([Sample("a vector", (Drawn((3,)),))])
torchgraft.native.load("names", Path(__file__).parent)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    (folder / "names.cpp").write_text(KERNELS)
    build("names", [folder / "names.cpp"], folder)
    (folder / "__init__.py").write_text(PACKAGE)
    return folder / "names_cpu.so"


@pytest.fixture(params=["declared first", "loaded first"])
def operators(library, request, monkeypatch):
    # Each kind of call warns once in a process.
    monkeypatch.setattr(torchgraft.kernels.fallback, "_counts", Counter())

    def declare():
        return [
            Operator(f"names::{name}(Tensor input) -> Tensor", reference=lambda input: input.clone())
            for name in DECLARED
        ]

    operators = declare() if request.param == "declared first" else []
    native.load("names", library.parent)
    operators = operators or declare()
    yield dict(zip(DECLARED, operators, strict=True))
    for operator in operators:
        operator.undeclare()


def test_a_typo_is_told_with_both_lists_and_what_to_write(library, operators):
    expected = (
        f"names has no CPU kernel rms_norm; {library} implements: rms_nrom, other, moved; declared: rms_norm, other,"
        " moved. No operator rms_nrom is declared; if you mean rms_norm, write"
        " TORCHGRAFT_KERNEL(names, CPU, rms_norm, same)"
    )
    with pytest.warns(torchgraft.PerformanceWarning) as warned:
        operators["rms_norm"](torch.ones(1))
    assert [expected in str(each.message) for each in warned] == [True]
    assert expected in [each.reason for each in torchgraft.fallbacks()]
    report = torchgraft.check(operators["rms_norm"], SAMPLES, properties=["value"], device="cpu")
    assert not report.passed
    assert expected in str(report)


def test_another_namespace_is_told(library, operators):
    reason = f"names has no CPU kernel moved: the TORCHGRAFT_KERNEL that names it in {library}"
    with pytest.warns(torchgraft.PerformanceWarning, match=re.escape(f"{reason} must begin with (names, CPU, ...)")):
        operators["moved"](torch.ones(2))


def test_what_nobody_declares_is_listed(operators):
    assert signatures.undeclared("names", "cpu") == ["rms_nrom"]
    # All kernels of this package are those of its operators.
    assert signatures.undeclared("torchgraft", "cpu") == []


def test_a_check_says_what_nobody_declares_and_fails_for_nothing_that_another_module_may_declare(library):
    arguments = ["check", str(library.parent), "--property", "value", "--device", "cpu", "--workers", "0"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    Operator.registered["names::other"].undeclare()
    assert (
        "names has CPU kernels without an operator, so nothing checks them: rms_nrom, moved; its operators: other"
        in done.output
    )
    assert done.exit_code == 0, done.output
