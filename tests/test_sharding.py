"""Dimensions that may be cut over devices: their letters, what follows from a reference, and what DTensor is told."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
from documents import read_document
from torchgraft import Operator, PerformanceWarning
from torchgraft.checking.helpers.devices import make_mesh, run_on_devices
from torchgraft.checking.subject import find_subjects
from torchgraft.cli import app
from torchgraft.declaration.sharding import PARTIAL, REPLICATED, Sharding, ShardingError, moved, share
from torchgraft.operator.derive_sharding import derive
from torchgraft.sampling import Drawn, Sample, Samples

SUBJECTS = {subject.name: subject for subject in find_subjects([])}


@pytest.fixture
def declare():
    declared = []

    def make(schema, **options):
        declared.append(Operator(f"sharded::{schema}", kernels="reference", **options))
        return declared[-1]

    yield make
    for operator in declared:
        operator.undeclare()


def scaled(x, by):
    return x * by


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n c", "1 for the tensor arguments, '->' and 1 for the results"),
        ("n c, c -> n c", "1 for the tensor arguments"),
        ("n n -> n", "each letter once"),
        ("n c -> n d", "only letters of its arguments"),
        ("_ -> ...", "in no argument"),
        ("n ? -> n", "must be a letter"),
        ("n c, size=n -> n c", "no int argument has this name"),
        ("n c, by=n -> n c", "no int argument has this name"),
    ],
)
def test_letters_that_make_no_sense_are_refused(declare, text, said):
    with pytest.raises(ValueError, match="scaled: .*" + said.replace("?", r"\?")):
        declare("scaled(Tensor x, float by) -> Tensor", reference=scaled, sharding=text)


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("f(Tensor(a!) x) -> ()", {"reference": lambda x: x + 1}, "writes to its arguments"),
        ("f(Tensor[] x) -> Tensor", {"reference": lambda x: x[0] + 1}, "lists of tensors"),
        ("f(Tensor x, *, Tensor y) -> Tensor", {"reference": lambda x, y: x + y}, "keyword-only tensors"),
        (
            "f(Tensor x, int seed) -> Tensor",
            {"reference": lambda x, seed: x + seed, "random": ("seed",)},
            "its results are random",
        ),
    ],
)
def test_what_dtensor_cannot_serve_declares_no_sharding(declare, schema, options, said):
    with pytest.raises(ValueError, match=said):
        declare(schema, sharding="derive", **options)


def test_a_number_that_is_a_cut_size_must_be_named(declare):
    options = {"reference": lambda x, size: x[:, :size].clone(), "shapes": "n _ -> n size"}
    with pytest.raises(ValueError, match="write size=c after the arguments"):
        declare("f(Tensor x, int size) -> Tensor", sharding="n c -> n c", **options)


def read(text, shapes, values=()):
    operator = SUBJECTS["depthwise_conv2d_input_grad"].operator
    return Sharding("f", text, operator.declaration.arguments, operator.declaration.results).of(shapes, values)


def test_what_is_cut_and_what_comes_out():
    call = read("n c _ _, m c -> n m _ _", [(4, 6, 5, 5), (8, 6)])
    n, c, m = (call.cut([letter], [4]) for letter in "ncm")
    assert (n.arguments, n.results) == (((0,), (REPLICATED,)), ((0,),))
    assert (c.arguments, c.results) == (((1,), (1,)), ((PARTIAL,),))
    assert (m.arguments, m.results) == (((REPLICATED,), (0,)), ((1,),))
    both = call.cut(["n", "c"], [4])
    assert (both.arguments, both.results) == (((0, 1), (REPLICATED, 1)), ((0, PARTIAL),))


@pytest.mark.parametrize(
    ("sizes", "parts", "permitted"),
    [
        ((6, 6), [4], False),  # the last device would have nothing
        ((5, 5), [2], True),
        ((7, 7), [3], True),
        ((5, 5), [4], False),
        ((3, 3), [4], False),
        ((0, 0), [2], False),
        ((4, 8), [2], True),
        ((3, 6), [2], False),  # 2 channels and 3 of their kernels
        ((3, 6), [3], True),
        ((4, 4), [2, 2], True),
        ((3, 3), [2, 2], False),
        ((4, 6), [2], False),
    ],
)
def test_sizes_that_can_be_cut(sizes, parts, permitted):
    call = read("n c _ _, c _ -> n c _ _", [(4, sizes[0], 5, 5), (sizes[1], 6)])
    assert call.permits("c", parts) == permitted


def test_a_device_is_given_its_share_of_a_number():
    call = read("n c _ _, c _, channels=c -> n c _ _", [(4, 7, 5, 5), (7, 6)], (None, None, 7, 9, 9))
    found = [call.numbers(["c"], [3], (None, None, 7, 9, 9), [at]) for at in range(3)]
    assert found == [{2: 3}, {2: 3}, {2: 1}]
    assert call.numbers(["n"], [3], (None, None, 7, 9, 9), [1]) == {2: 7}


@pytest.mark.parametrize(("size", "parts"), list(itertools.product(range(9), range(1, 6))))
def test_shares_are_what_torch_chunk_cuts(size, parts):
    chunks = [each.numel() for each in torch.arange(size).chunk(parts)] if size else []
    shares = [share(size, parts, at) for at in range(parts)]
    assert [each for each in shares if each] == chunks


def test_bytes_that_move():
    assert moved([0], [0], [4], 400) == moved([REPLICATED], [0], [4], 400) == 0
    assert moved([0], [REPLICATED], [4], 400) == 300
    assert moved([PARTIAL], [0], [4], 400) == 300
    assert moved([PARTIAL], [REPLICATED], [4], 400) == 600
    assert moved([0], [1], [4], 400) == 75
    assert moved([0], [PARTIAL], [4], 400) == float("inf")
    assert moved([0, REPLICATED], [REPLICATED, 1], [2, 2], 400) == 200


def renamed(sharding):
    """Letters by the order in which they come."""
    names = {}
    words = sharding.text.replace(",", " , ").replace("=", " = ").replace("+", "+ ").split()
    numbers = {name for _, name, _ in sharding.numbers}
    return [
        word if word in numbers or not word[0].isalpha() else names.setdefault(word, f"<{len(names)}>")
        for word in words
    ]


@pytest.mark.parametrize("name", [name for name in SUBJECTS if not SUBJECTS[name].operator.declaration.mutates])
def test_what_is_declared_follows_from_the_reference(name):
    subject = SUBJECTS[name]
    assert renamed(derive(subject.operator.declaration, subject.samples)) == renamed(subject.operator.sharding)


def test_a_sharding_is_derived_when_it_is_first_needed(declare, monkeypatch):
    operator = declare(
        "f(Tensor x, Tensor y) -> Tensor", reference=lambda x, y: torch.softmax(x, 1) @ y, sharding="derive"
    )
    samples = Samples(
        [Sample("three sizes", (Drawn((4, 5)), Drawn((5, 7)))), Sample("others", (Drawn((6, 3)), Drawn((3, 4))))]
    )
    monkeypatch.setattr(operator, "samples", samples, raising=False)
    with pytest.warns(UserWarning, match=r"declare sharding='a _, _ b -> a b'"):
        assert operator.sharding.text == "a _, _ b -> a b"
    assert operator.sharding.text == "a _, _ b -> a b"


def test_a_dimension_of_one_element_in_the_largest_samples_is_found_in_a_smaller_one(declare):
    operator = declare("f(Tensor x) -> Tensor", reference=lambda x: torch.softmax(x, 1))
    samples = Samples(
        [Sample("a small batch", (Drawn((6, 3)),)), *(Sample(f"{n} in a row", (Drawn((1, n)),)) for n in range(40, 47))]
    )
    assert derive(operator.declaration, samples).text == "a _ -> a _"


def test_importing_torchgraft_imports_nothing_of_dtensor():
    script = """
import sys
from pathlib import Path
import torch
before = set(sys.modules)
import torchgraft
new = [name for name in set(sys.modules) - before if name.startswith("torch.distributed")]
assert not new, new
from torch.distributed.tensor import DTensor
from torchgraft import Operator
rules = DTensor._op_dispatcher.sharding_propagator.op_to_rules
for operator in Operator.registered.values():
    # What is written to is not cut.
    expected = not operator.declaration.mutates
    assert (operator.public in rules) == (operator.raw in rules) == expected, operator
late = Operator("late::f(Tensor x) -> Tensor", reference=lambda x: x + 1, kernels="reference", sharding="... -> ...")
assert late.public in rules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def lay(tensor, mesh, *where):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    placements = [Replicate() if each is None else Shard(each) for each in where]
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def test_a_bool_before_the_first_int_is_part_of_the_key(declare):
    # PyTorch's own `register_sharding` answers the second call with what it found for the first.
    operator = declare(
        "f(Tensor x, bool upper, int size) -> Tensor",
        reference=lambda x, upper, size: x[: size if upper else 2 * size].clone(),
        sharding="_ c -> _ c",
    )
    x = torch.arange(24.0).view(6, 4)

    def run():
        laid = lay(x, make_mesh([2]), 1)
        return [operator(laid, upper, 2).full_tensor().shape for upper in (True, False)]

    assert run_on_devices(2, run) == [[(2, 4), (4, 4)]] * 2


def test_a_name_that_is_declared_again_has_its_new_sharding(declare):
    def run():
        return operator(lay(x, make_mesh([2]), 1), 2.0).placements[0].is_shard()

    x = torch.randn(4, 4)
    operator = declare("scaled(Tensor x, float by) -> Tensor", reference=scaled, sharding="... -> ...")
    assert run_on_devices(2, run) == [True, True]
    operator.undeclare()
    operator = declare("scaled(Tensor x, float by) -> Tensor", reference=scaled, sharding="n _ -> n _")
    with pytest.raises(ShardingError, match="x is sharded along dimension 1"):
        run_on_devices(2, run)


def test_other_dimensions_are_refused_with_what_would_be_allowed():
    images, weight = torch.randn(4, 4, 6, 6), torch.randn(4, 1, 3, 3)

    def run():
        mesh, said = make_mesh([2]), []
        for where, of_weight in ((2, None), (0, 3)):
            with pytest.raises(ValueError, match="is sharded along dimension") as refused:
                torchgraft.depthwise_conv2d(lay(images, mesh, where), lay(weight, mesh, of_weight))
            said.append(str(refused.value))
        with pytest.raises(ValueError, match="weight is a plain tensor beside DTensors"):
            torchgraft.depthwise_conv2d(lay(images, mesh, 0), weight)
        return said

    first, second = run_on_devices(2, run)
    assert first == second
    assert "depthwise_conv2d: input is sharded along dimension 2" in first[0]
    assert "shard it along dimension 0 (N) or 1 (C), or replicate it" in first[0]
    assert "neighbouring pixels" in first[0]
    page = (Path(__file__).parents[1] / "docs/distributed.md").read_text()
    assert f"ValueError: {first[0]}" in " ".join(page.split())
    assert "depthwise_conv2d: weight is sharded along dimension 3" in first[1]


def test_tensors_of_two_meshes_are_refused_with_both(declare):
    operator = declare("added(Tensor x, Tensor y) -> Tensor", reference=torch.add, sharding="n _, n _ -> n _")
    x = torch.randn(4, 4)

    def run():
        with pytest.raises(ShardingError, match=r"added: all tensors must be on one mesh, got .*2.* and .*1"):
            operator(lay(x, make_mesh([2]), 0), lay(x, make_mesh([2, 1]), 0, None))
        return True

    assert run_on_devices(2, run) == [True, True]


def test_an_operator_without_a_sharding_takes_whole_tensors_and_refuses_others(declare):
    operator = declare("scaled(Tensor x, float by) -> Tensor", reference=scaled)
    x = torch.randn(4, 4)

    def run():
        mesh = make_mesh([2])
        with pytest.raises(ShardingError, match="none is declared; `graft shard scaled`"):
            operator(lay(x, mesh, 0), 2.0)
        return operator(lay(x, mesh, None), 2.0).full_tensor()

    for found in run_on_devices(2, run):
        torch.testing.assert_close(found, 2 * x)


def test_sizes_that_leave_a_device_without_a_part_are_gathered_with_a_warning():
    x, weight = torch.randn(1, 3, 6, 6), torch.randn(3, 1, 3, 3)

    def run():
        mesh = make_mesh([4])
        return torchgraft.depthwise_conv2d(lay(x, mesh, 1), lay(weight, mesh, 0)).full_tensor()

    with pytest.warns(PerformanceWarning, match="input is gathered: sizes 3 cannot be cut into 4 parts"):
        found = run_on_devices(4, run)
    for each in found:
        torch.testing.assert_close(each, torch.nn.functional.conv2d(x, weight, groups=3))


def test_what_a_device_raises_is_raised():
    def run():
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_on_devices(2, run)


def test_the_command_shows_each_letter(tmp_path):
    file = tmp_path / "shard.json"
    result = CliRunner().invoke(app, ["shard", "linear", "--devices", "2", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert "... n, m n, +m -> ... m" in result.output
    (found,) = read_document("shard", file.read_text())
    rows = {row["letter"]: row for row in found["rows"]}
    assert rows["n"]["arguments"] == {"input": 1, "weight": 1, "bias": "partial"}
    assert rows["n"]["results"] == {"the result": "partial"}
    size = 64 * 256 * 4
    assert rows["n"]["forward"] == [{"name": "the result", "all_reduce": size, "reduce_scatter": size // 2}]
    assert not rows["m"]["forward"]


def test_the_command_finds_what_is_not_declared_and_refuses_what_is_not_there():
    result = CliRunner().invoke(app, ["shard", "shift", "--sample", "no such"])
    assert result.exit_code == 2
    assert "shift has no sample 'no such'" in result.output
