"""load_inline: kernels that are text, compiled once, replaced while a program runs, and refused with what is wrong."""

import os
import subprocess
import sys

import pytest
import torch

import torchgraft
from torchgraft import load_inline, native
from torchgraft.building import BuildError, inline
from torchgraft.building import compile as compiling
from torchgraft.sampling import Drawn, Sample, Samples

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

SCHEMA = "inline::scaled(Tensor input) -> Tensor"
TEXT = """Tensor scaled_cpu(Tensor input) {
  const Tensor source = to_contiguous(input);
  Tensor output = empty_as(source);
  const float* from = static_cast<const float*>(source.const_data_ptr());
  float* to = static_cast<float*>(output.mutable_data_ptr());
  for (int64_t i = 0; i < output.numel(); ++i) to[i] = FACTOR * from[i];
  return output;
}
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory, monkeypatch):
    # One for all tests: what one has compiled another finds.
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "inline cache"))


def scaled(factor, text=None, schema=SCHEMA, **declared):
    def reference(input):
        return factor * input

    text = TEXT.replace("FACTOR", str(factor)) if text is None else text
    declared = {"shapes": "... -> ...", "dtypes": (torch.float32,), **declared}
    return load_inline(schema, reference=reference, cpu=text, **declared)


def answers(operator):
    """The results of a call by every path."""
    input = torch.ones(2, requires_grad=True)
    (grad,) = torch.autograd.grad(operator(input).sum(), input)
    compiled = torch.compile(lambda value: operator(value), fullgraph=True, backend="aot_eager")
    found = operator(torch.ones(2)), torch.ops.inline.scaled(torch.ones(2)), compiled(torch.ones(2)), grad
    return {value for each in found for value in each.tolist()}


def test_a_changed_text_takes_the_place_of_the_one_before_and_back(monkeypatch):
    first = scaled(2)
    assert answers(first) == {2}
    assert torchgraft.fallbacks() is not None
    second = scaled(3)
    assert torchgraft.Operator.registered["inline::scaled"] is second
    assert answers(second) == answers(first) == {3}
    # What was compiled before is there; a kernel and no reference answers.
    monkeypatch.setattr(compiling, "build", lambda *arguments, **named: pytest.fail("it is in the cache"))
    third = scaled(2)
    assert answers(third) == answers(second) == answers(first) == {2}
    assert native.has_kernels("inline", "cpu")
    assert "scaled" in native.signatures("inline", "cpu")


def test_it_holds_what_graft_check_asks():
    table = [Sample(f"{size} elements", (Drawn((size,)),)) for size in (0, 1, 5)]
    report = torchgraft.check(scaled(2), Samples(table), properties=["value", "layouts"], device="cpu")
    assert report.passed, str(report)


def test_operators_of_one_namespace_keep_their_own_kernels():
    first = scaled(2)
    text = TEXT.replace("FACTOR", "5").replace("scaled_cpu", "other_cpu")
    other = scaled(5, text, "inline::other(Tensor input) -> Tensor")
    assert [each(torch.ones(1)).item() for each in (first, other)] == [2, 5]
    assert set(native.signatures("inline", "cpu")) >= {"scaled", "other"}


def test_without_a_text_the_reference_answers_again():
    first = scaled(3)
    again = load_inline(SCHEMA, reference=lambda input: 7 * input)
    assert [each(torch.ones(1)).item() for each in (first, again)] == [7, 7]
    assert "scaled" not in native.signatures("inline", "cpu")


def test_the_first_error_is_of_a_line_of_the_text_and_what_was_there_stays():
    first = scaled(2)
    with pytest.raises(BuildError, match=r"inline__scaled does not build:\nscaled_cpu.cpp:3:19: error: .*nothing"):
        scaled(2, TEXT.replace("FACTOR", "2").replace("empty_as(source)", "nothing(source)"))
    assert first(torch.ones(1)).item() == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Tensor scaled_cpu(Tensor input, double factor) { return input; }", "has 1 arguments, but scaled_cpu takes 2"),
        (
            "Tensor scaled_cpu(std::optional<Tensor> input) { return *input; }",
            "says Tensor input, but scaled_cpu takes",
        ),
    ],
)
def test_a_function_that_does_not_fit_is_refused_and_what_was_there_stays(text, message):
    first = scaled(2)
    with pytest.raises(TypeError, match=message):
        scaled(2, text)
    assert first(torch.ones(1)).item() == 2


def test_a_file_and_what_it_includes_are_looked_at_anew(tmp_path):
    (tmp_path / "factor.h").write_text("#define FACTOR 2\n")
    kernel = tmp_path / "kernel.cpp"
    kernel.write_text('#include "factor.h"\n' + TEXT)
    assert scaled(2, kernel)(torch.ones(1)).item() == 2
    (tmp_path / "factor.h").write_text("#define FACTOR 4\n")
    assert scaled(4, kernel)(torch.ones(1)).item() == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA would be compiled here")
def test_cuda_is_left_alone_where_there_is_no_gpu():
    operator = scaled(2, cuda="this is no CUDA")
    assert operator(torch.ones(1)).item() == 2


@pytest.mark.parametrize("schema", ["scaled(Tensor input) -> Tensor", "inline::2(Tensor input) -> Tensor", "inline::"])
def test_a_name_that_it_cannot_have_is_refused(schema):
    with pytest.raises(ValueError, match="must begin with 'namespace::name\\('"):
        scaled(2, schema=schema)


def test_another_process_finds_what_was_compiled():
    scaled(2)
    program = f"""
import torch, torchgraft
operator = torchgraft.load_inline({SCHEMA!r}, reference=lambda input: 2 * input, cpu={TEXT.replace("FACTOR", "2")!r})
print(operator(torch.ones(2)).tolist(), torchgraft.fallbacks())
"""

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCHGRAFT_JIT": "0"},
    )
    assert (done.stderr, done.stdout) == ("", "[2.0, 2.0] []\n")


SUMMED = """Tensor total_cpu(Tensor counts) {
  const Tensor source = to_contiguous(counts);
  const int64_t one = 1;
  Tensor output = empty_contiguous({one}, counts, aoti_torch_dtype_int64());
  dispatch_integral(counts.scalar_type(), "total", [&](auto tag) {
    using T = typename decltype(tag)::type;
    accumulate_t<T> sum = 0;
    for (int64_t i = 0; i < source.numel(); ++i) sum += data_of<T>(source)[i];
    mutable_data_of<int64_t>(output)[0] = sum;
  });
  return output;
}
"""


def test_dtypes_that_an_argument_names_have_the_kernel_and_whole_numbers_are_summed_exactly():
    def total(counts):
        return counts.sum(dtype=torch.int64).reshape(1)

    operator = load_inline(
        "inline::total(Tensor counts) -> Tensor",
        reference=total,
        cpu=SUMMED,
        dtypes={"counts": [torch.int32, torch.int64]},
        output=lambda counts: counts.new_empty(1, dtype=torch.int64),
    )
    counts = torch.tensor([2**24, 1, 1], dtype=torch.int32)
    assert operator(counts).tolist() == [2**24 + 2]
    assert operator(counts.long()).tolist() == [2**24 + 2]
    assert not [each for each in torchgraft.fallbacks() if each.operator == "inline::total"]


@pytest.mark.skipif("Free Software" not in compiling.version_of("c++"), reason="other compilers do it in other ways")
class TestCompiledHeaders:
    def test_what_a_text_may_use_is_compiled_once(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path))
        # A compiled header that does not fit is passed over, and this makes that an error.
        monkeypatch.setenv("CXXFLAGS", "-Winvalid-pch -Werror")
        for factor in (21, 22):
            assert answers(scaled(factor)) == {factor}
        assert len(list(tmp_path.glob("made/header-*/torchgraft/detail/inline_cpu.h.gch"))) == 1

    def test_a_text_finds_it_before_the_header(self, tmp_path):
        header = tmp_path / "torchgraft/detail/inline_cpu.h"
        header.parent.mkdir(parents=True)
        header.write_text("#error this one\n")
        source = inline.write_source("inline::scaled", "cpu", TEXT, tmp_path)
        with pytest.raises(BuildError, match="this one"):
            compiling.build("inline", [source], tmp_path, defined={"TORCHGRAFT_PRECOMPILED": str(tmp_path)})
