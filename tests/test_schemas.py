"""Operators of any schema: lists, defaults, arguments that must be named, integers, what is written to, and kernels in
Python. Each is called, differentiated and compiled, and compared with plain PyTorch."""

import inspect

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import torchgraft
from torchgraft import Operator
from torchgraft._private import pytorch
from torchgraft.checking.jobs import make_jobs, make_kernel_jobs
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import Subject
from torchgraft.operator import FLOATING
from torchgraft.sampling import Drawn, Sample, Samples

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

INTEGERS = (torch.int32, torch.int64)


def declare(signature, reference, **more):
    """An operator named after the test that declares it."""
    name = inspect.stack()[1].function.removeprefix("test_")
    return Operator(f"schemas::{name}{len(Operator.registered)}{signature}", reference=reference, **more)


def same_gradients(function, expected, *leaves):
    """Compares results, and the gradients of those that have one."""
    results = [tree_leaves(each(*leaves)) for each in (function, expected)]
    torch.testing.assert_close(*results)
    assert [each.requires_grad for each in results[0]] == [each.requires_grad for each in results[1]]
    found = [
        torch.autograd.grad(sum((result * (result + 1)).sum() for result in each if result.requires_grad), leaves)
        for each in results
    ]
    torch.testing.assert_close(*found)


def every_way(operator, reference, *leaves):
    """A call of an operator eagerly, past Python, compiled, and under a transform, each differentiated."""
    same_gradients(operator, reference, *leaves)
    same_gradients(
        torch.compile(lambda *each: operator(*each), fullgraph=True, backend="aot_eager"), reference, *leaves
    )

    def summed(function):
        return lambda *each: sum(
            result.sin().sum() for result in tree_leaves(function(*each)) if result.is_floating_point()
        )

    places = tuple(range(len(leaves)))
    detached = [leaf.detach() for leaf in leaves]
    found = torch.func.grad(summed(operator), places)(*detached)
    torch.testing.assert_close(found, torch.func.grad(summed(reference), places)(*detached))
    stacked = [torch.stack((leaf, leaf + 1)) for leaf in detached]
    torch.testing.assert_close(torch.vmap(operator)(*stacked), torch.vmap(reference)(*stacked))


def leaves(*shapes):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


FORMULA = pytest.mark.parametrize("has_formula", [False, True], ids=["no formula", "formula"])


class TestLists:
    @FORMULA
    def test_of_tensors_among_arguments(self, has_formula):
        def reference(scale, tensors, dim=0):
            return scale * torch.cat(tensors, dim)

        def gradient(needs_grad, output_grads, saved, scale, tensors, dim):
            scale_needed, tensors_needed = needs_grad
            (grad,) = output_grads
            sizes = [tensor.shape[dim] for tensor in tensors]
            pieces = (scale * grad).split(sizes, dim)
            return (
                (grad * torch.cat(tensors, dim)).sum() if scale_needed else None,
                [piece if needed else None for piece, needed in zip(pieces, tensors_needed, strict=True)],
            )

        operator = declare(
            "(Tensor scale, Tensor[] tensors, int dim=0) -> Tensor",
            reference,
            gradient=gradient if has_formula else None,
            output=lambda scale, tensors, dim: torch.cat(tensors, dim),
        )
        scale, *tensors = leaves((), (2, 3), (4, 3))
        every_way(
            lambda scale, *each: operator(scale, list(each)),
            lambda scale, *each: reference(scale, list(each)),
            scale,
            *tensors,
        )
        same_gradients(
            lambda one: operator(scale.detach(), [one, one], dim=1),
            lambda one: torch.cat([one, one], 1) * scale.detach(),
            tensors[0],
        )

    @FORMULA
    def test_of_results(self, has_formula):
        def reference(input, count, scale):
            return [scale * piece for piece in input.chunk(count)]

        def gradient(needs_grad, output_grads, saved, input, count, scale):
            ((*grads,),) = output_grads
            pieces = input.chunk(count)
            whole = [
                torch.zeros_like(piece) if grad is None else grad for grad, piece in zip(grads, pieces, strict=True)
            ]
            return (scale * torch.cat(whole),)

        operator = declare(
            "(Tensor input, int count, float scale=2.0) -> Tensor[]",
            reference,
            gradient=gradient if has_formula else None,
        )
        every_way(lambda input: operator(input, 2), lambda input: reference(input, 2, 2.0), *leaves((4, 3)))
        # One piece alone: nothing flows back to the others.
        same_gradients(lambda input: operator(input, 2)[1], lambda input: reference(input, 2, 2.0)[1], *leaves((4, 3)))

    def test_of_numbers_and_of_optional_tensors(self):
        def reference(input, sizes, weights):
            padded = torch.nn.functional.pad(input, list(sizes))
            return sum((padded * weight for weight in weights if weight is not None), padded)

        operator = declare("(Tensor input, int[2] sizes, Tensor?[] weights) -> Tensor", reference)
        input, weight = leaves((2, 3), (2, 6))
        same_gradients(
            lambda input, weight: operator(input, [1, 2], [None, weight]),
            lambda input, weight: reference(input, [1, 2], [None, weight]),
            input,
            weight,
        )
        with pytest.raises(ValueError, match="sizes must have 2 elements, got 3"):
            operator(input, [1, 2, 3], [])
        with pytest.raises(TypeError, match=r"weights\[1\] must be a Tensor, got float"):
            operator(input, [1, 2], [None, 1.0])


class TestArguments:
    def test_are_given_by_position_and_by_name(self):
        def reference(input, scale, *, bias, offset):
            return input * scale + (0 if bias is None else bias) + offset

        operator = declare(
            "(Tensor input, float scale=2.0, *, Tensor? bias=None, float offset=0.5) -> Tensor", reference
        )
        input, bias = leaves((3,), (3,))
        expected = reference(input, 2.0, bias=bias, offset=0.5)
        for found in (
            operator(input, bias=bias),
            operator(input, 2.0, bias=bias, offset=0.5),
            operator(bias=bias, input=input),
            operator.public(input, bias=bias),
            operator.public(input, 2.0, bias=bias),
        ):
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(
                torch.autograd.grad(found.sum(), (input, bias)), (2 * torch.ones_like(input), torch.ones_like(bias))
            )
        every_way(
            lambda input, bias: operator(input, bias=bias), lambda input, bias: 2 * input + bias + 0.5, input, bias
        )

    @pytest.mark.parametrize(
        ("positional", "named", "problem"),
        [
            ((), {}, "input is missing"),
            ((1, 2, 3), {}, "takes 2 arguments by position, got 3"),
            ((1,), {"input": 1}, "input is given twice"),
            ((1,), {"inputs": 1}, "no argument inputs"),
        ],
    )
    def test_that_do_not_fit_are_told(self, positional, named, problem):
        operator = declare(
            "(Tensor input, float scale=2.0, *, float offset=0.5) -> Tensor", lambda input, scale, offset: input
        )
        with pytest.raises(TypeError, match=problem):
            operator(*positional, **named)

    def test_a_first_tensor_may_be_none(self):
        operator = declare(
            "(Tensor? input, Tensor other, int count) -> Tensor",
            lambda input, other, count: count * (other if input is None else input + other),
        )
        input, other = leaves((3,), (3,))
        same_gradients(lambda other: operator(None, other, 3), lambda other: 3 * other, other)
        every_way(
            lambda input, other: operator(input, other, 3), lambda input, other: 3 * (input + other), input, other
        )
        with pytest.raises(ValueError, match="at least one argument must be a tensor"):
            declare("(Tensor? input, int count) -> Tensor", lambda input, count: input)(None, 3)

    def test_of_every_kind_reach_the_reference(self):
        seen = []

        def reference(count, input, mode, dtype, device, generator, sizes, flag, factor):
            seen.append((count, mode, dtype, device, generator, sizes, flag, factor))
            return input * count

        operator = declare(
            "(int count, Tensor input, str mode, ScalarType dtype, Device device, Generator? generator,"
            " SymInt[2]? sizes, bool flag, Scalar factor) -> Tensor",
            reference,
            output=lambda count, input, *rest: torch.empty_like(input),
        )
        generator = torch.Generator()
        given = (2, torch.ones(3), "sum", torch.float16, torch.device("cpu"), generator, [1, 2], True, 1.5)
        assert operator(*given).tolist() == [2, 2, 2]
        count, mode, dtype, device, generator, sizes, flag, factor = seen[-1]
        assert (count, mode, dtype, device, list(sizes), flag, factor) == (
            2,
            "sum",
            torch.float16,
            given[4],
            [1, 2],
            True,
            1.5,
        )
        for place, wrong, problem in (
            (2, 1, "mode must be a str, got int"),
            (3, "float16", "dtype must be a torch.dtype, got str"),
            (5, 0, "generator must be a torch.Generator, got int"),
            (6, [1.5, 2], r"sizes\[0\] must be an int, got float"),
            (7, "no", "flag must be a bool, got str"),
        ):
            with pytest.raises(TypeError, match=problem):
                operator(*given[:place], wrong, *given[place + 1 :])

    def test_that_are_left_out_reach_reference_output_and_kernel_as_a_caller_would_pass_them(self):
        """PyTorch's own description of a schema has numbers for some of these."""
        expected = (
            torch.float32,
            torch.int64,
            [torch.bfloat16, torch.bool],
            torch.strided,
            torch.channels_last,
            torch.device("cpu"),
            None,
        )
        seen = []

        def note(input, *rest):
            seen.append(rest)
            return torch.empty_like(input)

        operator = declare(
            "(Tensor input, ScalarType dtype=float, ScalarType? other=long, ScalarType[] more=[bfloat16, bool],"
            ' Layout layout=strided, MemoryFormat format=2, Device device="cpu", ScalarType? none=None) -> Tensor',
            note,
            output=note,
        )
        operator(torch.ones(3))
        operator.names.call_public(torch.ones(3))
        torch.compile(operator, backend="eager", fullgraph=True)(torch.ones(3))
        operator.kernel("cpu", name="first")(note)
        operator(torch.ones(3))
        assert len(seen) >= 5
        assert seen == [expected] * len(seen)
        operator.explain(torch.ones(3), *expected)

    def test_of_each_number_that_pytorch_has_for_a_default(self):
        """The dispatcher turns them into the same."""
        with torch.library._scoped_library("defaults", "FRAGMENT") as library:
            for kind, count in (("ScalarType", 12), ("Layout", 3), ("MemoryFormat", 4)):
                library.define(f"of_{kind}(Tensor input, {kind} value) -> Tensor")
                seen = []
                library.impl(f"of_{kind}", lambda input, value: (seen.append(value), input.clone())[1], "CPU")  # noqa: B023
                for number in range(count):
                    getattr(torch.ops.defaults, f"of_{kind}")(torch.ones(1), number)
                assert list(map(pytorch.MADE_OF_NUMBERS[kind], range(count))) == seen


NAMED = "(Tensor input, *, int n=1, Scalar scale=2, int[2] pads=[0, 1], float eps=0.5) -> Tensor"


def test_a_compiler_chooses_layouts_but_where_it_would_forget_an_integer_that_must_be_named():
    def tags(signature):
        operator = declare(signature, lambda input, *rest, **named: input.clone())
        assert torch.Tag.flexible_layout in operator.raw.tags
        return operator.public.tags

    assert torch.Tag.flexible_layout in tags("(Tensor input, int n=1) -> Tensor")
    assert torch.Tag.flexible_layout in tags("(Tensor input, *, int n, float eps=0.5, int? m=None) -> Tensor")
    for named in ("int n=1", "SymInt n=1", "Scalar n=1", "int[2] n=[1, 2]", "int? n=1"):
        found = tags(f"(Tensor input, *, {named}) -> Tensor")
        assert torch.Tag.needs_exact_strides in found
        assert torch.Tag.flexible_layout not in found


@pytest.mark.slow
@pytest.mark.parametrize("named", [{}, {"n": 1, "scale": 2}, {"n": 3, "pads": (2, 3), "eps": 1.5}], ids=str)
def test_a_package_of_aotinductor_keeps_what_must_be_named(named, tmp_path):
    def reference(input, *, n, scale, pads, eps):
        return input * n + scale + 10 * pads[0] + 100 * pads[1] + eps

    operator = declare(NAMED, reference, output=lambda input, **named: torch.empty_like(input))

    class Module(torch.nn.Module):
        def forward(self, input):
            return operator(input, **named)

    input = torch.ones(5, 2)
    program = torch.export.export(Module(), (input,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "named.pt2"))
    found = torch._inductor.aoti_load_package(path)(input)
    expected = reference(input, **{"n": 1, "scale": 2, "pads": (0, 1), "eps": 0.5} | named)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "output",
    [
        lambda x: 2 * (torch.empty_like(x),),
        lambda x: (x, torch.empty_like(x)),
        lambda x: (torch.empty_like(x), x.detach().view(-1)[:0].expand(3, 0).new_empty(0).set_(x.detach())),
        lambda x: torch.empty(2, *x.shape).unbind(),
        lambda x: (torch.empty_like(x).t(), x.view_as(x)),
        lambda x: (lambda one: (one, one.view(-1)))(torch.empty_like(x)),
    ],
    ids=["twice", "an argument", "of an argument", "halves of one", "a view of an argument", "a view of a result"],
)
def test_results_that_share_memory_are_refused(output):
    operator = declare("(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 1, x * 2), output=output)
    x = torch.ones(3, 2)
    for function in (operator, operator.public):
        with pytest.raises(ValueError, match=r"result [01] of output shares memory with"):
            function(x)
    with pytest.raises(Exception, match="of output shares memory"):
        torch.compile(lambda x: operator(x), backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(x, torch.ones(3, 2))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: [torch.empty_like(x) for _ in range(3)], "output must return 2 results in a tuple, got 3 results"),
        (lambda x: (), "got 0 results"),
        (torch.empty_like, "got Tensor"),
        (lambda x: None, "got NoneType"),
        (lambda x: (torch.empty_like(x), 3), "result 1 of output must be a tensor, got int"),
        (lambda x: (x.new_empty(2, *x.shape), torch.empty_like(x)), r"result 0 of output is \(2, 3\)"),
        (
            lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)),
            "result 1 of output is .* torch.int64",
        ),
    ],
    ids=["three", "none at all", "a tensor", "None", "a number", "another shape", "integers"],
)
def test_results_that_the_schema_does_not_have_are_refused(output, message):
    operator = declare("(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 1, x * 2), output=output, kernels={})
    with pytest.raises((TypeError, ValueError), match=message):
        operator(torch.ones(3))


def test_results_whose_elements_share_memory_are_refused():
    operator = declare(
        "(Tensor x) -> Tensor", lambda x: x * 1, output=lambda x: x.new_empty(1).expand(x.shape), kernels={}
    )
    for call in (operator, torch.compile(operator, backend="aot_eager")):
        with pytest.raises(Exception, match="result 0 of output has elements that share memory"):
            call(torch.ones(2))


@pytest.mark.parametrize(
    ("size", "stride", "is_refused"),
    [
        ((2, 3), (1, 1), True),
        ((2, 3), (2, 1), True),
        ((2, 3), (1, 2), False),
        ((0, 3), (0, 0), False),
        ((1, 3), (0, 1), False),
    ],
)
def test_results_whose_strides_overlap_are_refused(size, stride, is_refused):
    operator = declare(
        "(Tensor x) -> Tensor", lambda x: x + 1, output=lambda x: x.new_empty(9).as_strided(size, stride), kernels={}
    )
    x = torch.arange(float(size[0] * size[1])).reshape(size)
    if is_refused:
        with pytest.raises(ValueError, match="result 0 of output has elements that share memory"):
            operator(x)
    else:
        assert torch.equal(operator(x), x + 1)


def test_a_list_of_results_that_share_memory_is_refused():
    operator = declare(
        "(Tensor[] x) -> Tensor[]",
        lambda x: [each * 1 for each in x],
        output=lambda x: [torch.empty_like(x[0])] * len(x),
    )
    with pytest.raises(ValueError, match="result 1 of output shares memory"):
        operator([torch.ones(2), torch.ones(2)])


@pytest.mark.parametrize("call", ["operator", "torch.ops"])
@pytest.mark.parametrize(
    "schema", ["(Tensor x, int n=2)", "(Tensor x, *, int n=2)", "(Tensor x, *, Tensor? y=None, int n)"]
)
def test_flops_are_counted_with_defaults_and_names(schema, call):
    from torch.utils.flop_counter import FlopCounterMode

    def flops(shape, *rest, **named):
        return shape[0] * (named.get("n") or rest[-1])

    operator = declare(
        f"{schema} -> Tensor", lambda x, *rest, **named: x * 1, flops=flops, gradient="reference", kernels={}
    )
    function = operator if call == "operator" else getattr(torch.ops.schemas, operator.name)
    given = {} if "=2" in schema else {"n": 2}
    for named, expected in ((given, 6), ({"n": 5}, 15)):
        with FlopCounterMode(display=False) as counter:
            function(torch.ones(3), **named)
        assert counter.get_total_flops() == expected


def test_a_word_that_is_no_type_is_told_before_anything_changes():
    operator = declare("(Tensor x) -> Tensor", lambda x: x * 1, kernels={})
    with pytest.raises(ValueError, match=r"PyTorch cannot read the schema .* unknown type specifier"):
        operator._redefine(f"{operator.qualified_name}(Tensor x, banana y) -> Tensor", reference=lambda x, y: x)
    assert operator.public(torch.ones(1)).item() == 1.0


def test_a_trace_of_named_arguments_beside_a_list_with_none():
    operator = declare(
        "(Tensor?[] xs, Tensor w, *, float by=1.0, Tensor? bias=None) -> Tensor",
        lambda xs, w, *, by, bias: by * w * (1 if bias is None else bias) + sum(x for x in xs if x is not None),
        kernels={},
        gradient="reference",
    )
    traced = torch.jit.trace(lambda w: operator([None, w], w, by=2.0, bias=w), (torch.ones(2),))
    assert traced(3 * torch.ones(2)).tolist() == [21.0, 21.0]


@pytest.mark.parametrize("name", ["reference", "output", "vmap", "flops", "explain"])
def test_what_is_no_function_is_refused(name):
    with pytest.raises(TypeError, match=f"{name} must be a function, got 5"):
        declare("(Tensor x) -> Tensor", **{"reference": lambda x: x, name: 5})


def test_two_arguments_of_one_name_are_refused():
    with pytest.raises(ValueError, match="x is the name of several arguments: give each a name of its own"):
        declare("(Tensor x, Tensor y, float x) -> Tensor", lambda x, y: x + y)


def test_an_argument_may_have_any_name():
    operator = declare(
        "(Tensor self, Tensor keyset, Tensor info, float in_dims=2.0, *, float arguments=1.0) -> Tensor",
        lambda self, keyset, info, in_dims, *, arguments: self * keyset * info * in_dims * arguments,
        kernels="reference",
    )
    one = torch.ones(2, 3)
    for function in (operator, operator.public, torch.vmap(operator)):
        assert function(one, one, one, arguments=3.0).unique().item() == 6.0
    for function in (operator, operator.public):
        result = function(self=one.clone().requires_grad_(), keyset=one, info=one)
        assert result.requires_grad
        assert result.detach().unique().item() == 2.0


def test_one_tensor_twice_compiles_in_training():
    operator = declare(
        "(Tensor a, Tensor b, Tensor? c=None) -> Tensor",
        lambda a, b, c: a * b + (0 if c is None else c),
        gradient=lambda needs_grad, grads, saved, a, b, c: (grads[0] * b, grads[0] * a, grads[0]),
    )
    every_way(lambda x: operator(x, x, x), lambda x: x * x + x, *leaves(3))


class TestDtypes:
    @FORMULA
    def test_an_index_has_dtypes_of_its_own(self, has_formula):
        def reference(weight, index):
            return weight[index]

        def gradient(needs_grad, output_grads, saved, weight, index):
            return torch.zeros_like(weight).index_add(0, index, output_grads[0]), None

        operator = declare(
            "(Tensor weight, Tensor index) -> Tensor",
            reference,
            dtypes={"weight": FLOATING, "index": INTEGERS},
            gradient=gradient if has_formula else None,
        )
        index = torch.tensor([2, 0, 2])
        same_gradients(lambda weight: operator(weight, index), lambda weight: weight[index], *leaves((3, 2)))
        with pytest.raises(TypeError, match=r"index has dtype torch\.float32, expected one of int32, int64"):
            operator(torch.ones(3, 2), torch.ones(3))
        with pytest.raises(TypeError, match=r"weight has dtype torch\.int64, expected one of float64"):
            operator(index, index)

    def test_an_index_may_stand_first(self):
        operator = declare(
            "(Tensor index, Tensor weight) -> Tensor",
            lambda index, weight: weight[index],
            dtypes={"index": INTEGERS, "weight": FLOATING},
            kernels={"cpu": (torch.float32,)},
        )
        index = torch.tensor([1, 0])
        with pytest.warns(torchgraft.PerformanceWarning, match="no kernel for this dtype"):
            operator(index, torch.ones(3, 2, dtype=torch.float64))
        assert operator.declaration.dtypes == FLOATING

    def test_the_argument_whose_dtypes_count_may_be_none(self):
        operator = declare(
            "(Tensor? weight, Tensor index) -> Tensor",
            lambda weight, index: index if weight is None else weight[index],
            dtypes={"weight": FLOATING, "index": INTEGERS},
            kernels={"cpu": (torch.float32,)},
        )
        index = torch.tensor([1, 0])
        assert operator(None, index).tolist() == [1, 0]

    @FORMULA
    def test_results_may_be_integers(self, has_formula):
        def gradient(needs_grad, output_grads, saved, input):
            values_grad, index_grad = output_grads
            assert index_grad is None
            index = input.max(0).indices
            return (torch.zeros_like(input).scatter(0, index[None], values_grad[None]),)

        operator = declare(
            "(Tensor input) -> (Tensor values, Tensor indices)",
            lambda input: tuple(input.max(0)),
            gradient=gradient if has_formula else None,
        )
        every_way(operator, lambda input: tuple(input.max(0)), *leaves((4, 3)))

    def test_what_is_declared_so_has_no_gradient(self):
        def reference(input, statistics):
            return input * statistics.detach(), (input + statistics).detach()

        operator = declare(
            "(Tensor input, Tensor statistics) -> (Tensor scaled, Tensor moved)",
            reference,
            not_differentiable=("statistics", "moved"),
        )
        input, statistics = leaves((3,), (3,))
        same_gradients(lambda input: operator(input, statistics), lambda input: reference(input, statistics), input)
        scaled, moved = operator(input, statistics)
        assert scaled.requires_grad
        assert not moved.requires_grad
        assert not operator(input.detach(), statistics)[0].requires_grad

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
    def test_complex_numbers(self, dtype):
        operator = declare(
            "(Tensor input) -> Tensor", lambda input: input * input, dtypes=(torch.complex64, torch.complex128)
        )
        input = torch.randn(3, dtype=dtype, requires_grad=True)
        (found,) = torch.autograd.grad(operator(input).abs().sum(), input)
        (expected,) = torch.autograd.grad((input * input).abs().sum(), input)
        torch.testing.assert_close(found, expected)


class TestMutation:
    @staticmethod
    def accumulate(**more):
        return declare(
            "(Tensor(a!) total, Tensor input, float scale=1.0) -> ()",
            lambda total, input, scale: total + scale * input,
            **more,
        )

    def test_writes_and_counts_versions(self):
        operator = self.accumulate()
        total, input = torch.zeros(3), torch.ones(3)
        version = total._version
        assert operator(total, input) is None
        assert operator(total, input, scale=2.0) is None
        assert total.tolist() == [3, 3, 3]
        assert total._version > version

    def test_of_a_view_and_of_one_tensor_twice(self):
        operator = self.accumulate()
        base = torch.zeros(2, 3)
        operator(base[:, 1], torch.ones(2))
        assert base.tolist() == [[0, 1, 0], [0, 1, 0]]
        operator(base, base)
        assert base.tolist() == [[0, 2, 0], [0, 2, 0]]

    @pytest.mark.parametrize("call", ["operator", "torch.ops"])
    def test_of_what_needs_a_gradient_is_refused(self, call):
        operator = self.accumulate()
        function = operator if call == "operator" else operator.public
        leaf, plain = torch.ones(3, requires_grad=True), torch.zeros(3)
        with pytest.raises(ValueError, match="total is written to, so it must not need a gradient"):
            function(leaf, plain)
        with pytest.raises(ValueError, match="input needs a gradient, but the operator returns nothing"):
            function(plain, leaf)
        with torch.no_grad():
            function(leaf, plain)

    def test_is_functional_where_it_is_compiled(self):
        operator = self.accumulate()

        def step(total, input):
            operator(total, input, scale=2.0)
            return total + 1

        for backend in ("aot_eager", "inductor"):
            total = torch.zeros(3)
            found = torch.compile(step, fullgraph=True, backend=backend)(total, torch.ones(3))
            assert (found.tolist(), total.tolist()) == ([3, 3, 3], [2, 2, 2])

    @FORMULA
    def test_beside_a_result_that_has_a_gradient(self, has_formula):
        def reference(running, input):
            mean = input.mean(0)
            return 0.9 * running + 0.1 * mean.detach(), input - mean

        operator = declare(
            "(Tensor(a!) running, Tensor input) -> Tensor",
            reference,
            gradient=(lambda needs, grads, saved, running, input: (None, grads[0] - grads[0].mean(0)))
            if has_formula
            else None,
        )
        running = torch.zeros(3, dtype=torch.float64)
        same_gradients(lambda input: operator(running, input), lambda input: input - input.mean(0), *leaves((4, 3)))
        assert running.abs().sum() > 0

    @pytest.mark.parametrize("listed", [False, True])
    def test_the_gradient_of_the_reference_reads_what_was_there_before(self, listed):
        operator = declare(
            f"(Tensor(a!){'[]' if listed else ''} total, Tensor input) -> Tensor",
            (lambda total, input: ([each + input for each in total], sum(total) * input))
            if listed
            else (lambda total, input: (total + input, total * input)),
            gradient=None,
        )
        totals = [torch.full((2,), 3.0), torch.full((2,), 5.0)][: 2 if listed else 1]
        input = torch.ones(2, requires_grad=True)
        operator(totals if listed else totals[0], input).sum().backward()
        assert input.grad.tolist() == ([8, 8] if listed else [3, 3])
        assert [total.tolist() for total in totals] == ([[4, 4], [6, 6]] if listed else [[4, 4]])

    def test_of_a_list(self):
        operator = declare(
            "(Tensor(a!)[] parameters, Tensor[] grads, float rate) -> ()",
            lambda parameters, grads, rate: [each - rate * grad for each, grad in zip(parameters, grads, strict=True)],
        )
        parameters, grads = [torch.ones(2), torch.ones(3)], [torch.ones(2), 2 * torch.ones(3)]
        operator(parameters, grads, 0.5)
        assert [each.tolist() for each in parameters] == [[0.5, 0.5], [0, 0, 0]]


class TestReferences:
    def test_autocast_casts_nothing_inside_where_the_rule_is_none(self):
        operator = declare("(Tensor input, Tensor weight) -> Tensor", lambda input, weight: input @ weight)
        input, weight = torch.randn(5, 5), torch.randn(5, 5)
        expected = (input.double() @ weight.double()).float()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for function in (operator, operator.public, torch.vmap(operator, (None, 0))):
                given = weight[None] if function not in (operator, operator.public) else weight
                torch.testing.assert_close(function(input, given).reshape(5, 5), expected)

    def test_say_what_results_are_where_nothing_else_does(self):
        operator = declare("(Tensor input) -> (Tensor, Tensor)", lambda input: (input.t(), input.sum(0).int()))
        input = torch.randn(2, 3)
        turned, summed = operator(input)
        assert turned.stride() == input.t().stride()
        assert turned.data_ptr() != input.data_ptr()
        assert summed.dtype == torch.int32
        torch.library.opcheck(operator.raw, (input,))


def test_policies_of_checkpoints_know_the_public_name():
    operator = declare("(Tensor input) -> Tensor", lambda input: input * input.sin())
    seen = []

    def policy(context, function, *arguments, **named):
        seen.append(function)
        return CheckpointPolicy.MUST_SAVE if function == operator.public else CheckpointPolicy.PREFER_RECOMPUTE

    (input,) = leaves((3,))
    found = checkpoint(
        lambda input: operator(input).cos(),
        input,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )
    found.sum().backward()
    assert operator.public in seen
    assert operator.raw not in seen
    torch.testing.assert_close(input.grad, torch.func.grad(lambda x: (x * x.sin()).cos().sum())(input.detach()))


@pytest.mark.parametrize("has_formula", [False, True])
def test_a_trace_without_gradients_has_them_when_it_runs(has_formula):
    operator = declare(
        "(Tensor input, Tensor weight) -> Tensor",
        lambda input, weight: input * weight,
        gradient=(lambda needs, grads, saved, input, weight: (grads[0] * weight, grads[0] * input))
        if has_formula
        else None,
    )

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3))

        def forward(self, input):
            return operator(input, self.weight)

    module = Scaled()
    with torch.no_grad():
        traced = torch.jit.trace(module, (torch.ones(3),), check_trace=False)
    traced(2 * torch.ones(3)).sum().backward()
    assert module.weight.grad.tolist() == [2, 2, 2]


class TestPythonKernels:
    def test_go_before_the_reference(self):
        operator = declare("(Tensor input, float scale=2.0) -> Tensor", lambda input, scale: input * scale)
        called = []

        @operator.kernel("cpu")
        def doubled(input, scale):
            called.append("doubled")
            return input * scale

        assert operator(torch.ones(2)).tolist() == operator.public(torch.ones(2)).tolist() == [2, 2]
        assert called == ["doubled"] * 2
        every_way(operator, lambda input: 2 * input, *leaves((3,)))

    def test_are_not_cast_by_autocast(self):
        operator = declare("(Tensor left, Tensor right) -> Tensor", lambda left, right: left @ right)
        operator.kernel("cpu")(lambda left, right: left @ right)
        left, right = torch.randn(5, 5), torch.randn(5, 5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for function in (operator, operator.public):
                torch.testing.assert_close(function(left, right), (left.double() @ right.double()).float())

    def test_a_policy_chooses_among_several(self):
        operator = declare("(Tensor input) -> Tensor", lambda input: input.clone())
        called = []
        for name in ("small", "large"):
            operator.kernel("cpu", name=name)(lambda input, name=name: (called.append(name), input.clone())[1])
        operator(torch.ones(9))
        operator.choose_kernel("cpu")(lambda input: "large" if input.numel() > 5 else "small")
        operator(torch.ones(9))
        operator(torch.ones(2))
        assert called == ["small", "large", "small"]
        operator.choose_kernel("cpu")(lambda input: "huge")
        with pytest.raises(ValueError, match=r"the policy for cpu must return one of \['small', 'large'\], got 'huge'"):
            operator(torch.ones(9))
        with pytest.raises(ValueError, match="cpu already has a kernel named 'small'"):
            operator.kernel("cpu", name="small")(torch.clone)
        with pytest.raises(ValueError, match="has no Python kernels for cuda: register them before the policy"):
            operator.choose_kernel("cuda")(lambda input: "small")
        with pytest.raises(ValueError, match="device must be 'cpu' or 'cuda', got 'xpu'"):
            operator.kernel("xpu")(torch.clone)

    def test_each_is_checked_and_one_that_is_wrong_is_named(self):
        operator = declare("(Tensor input) -> Tensor", lambda input: 2 * input, output=torch.empty_like)
        operator.kernel("cpu", name="right")(lambda input: 2 * input)
        operator.kernel("cpu", name="wrong")(lambda input: 2 * input + (input > 2))
        subject = Subject(operator, Samples([Sample("a few", (Drawn((20,), scale=3.0),))]), beside=False)
        jobs = make_jobs([subject], devices=["cpu"], properties=["value"], quick=True)
        found = {job.kernel: run_job(job).status for job in (*jobs, *make_kernel_jobs(jobs))}
        assert found == {"": "pass", "right": "pass", "wrong": "fail"}

    def test_compilers_see_inside_those_made_of_triton_kernels(self):
        import triton
        import triton.language as tl
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch._subclasses.functional_tensor import dispatch_functionalize
        from torch.fx.experimental.proxy_tensor import make_fx

        operator = declare("(Tensor input) -> Tensor", lambda input: 2 * input, output=torch.empty_like)

        @triton.jit
        def double(input, output, size, block: tl.constexpr):
            at = tl.program_id(0) * block + tl.arange(0, block)
            tl.store(output + at, 2 * tl.load(input + at, mask=at < size), mask=at < size)

        @operator.kernel("cuda", triton=True)
        def doubled(input):
            output = torch.empty_like(input)
            torchgraft.wrap_triton(double)[(triton.cdiv(input.numel(), 64),)](input, output, input.numel(), block=64)
            return output

        with FakeTensorMode(), torch.no_grad():
            traced = make_fx(dispatch_functionalize(operator.raw))(torch.empty(100, device="cuda"))
        assert "triton_kernel_wrapper_functional" in traced.code
        assert "schemas" not in traced.code

    @pytest.mark.parametrize("claimed", [FLOATING, (torch.float32,)])
    def test_in_triton_are_claimed_of_the_cpu_where_the_interpreter_runs_them(self, claimed, monkeypatch):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        operator = declare("(Tensor input) -> Tensor", lambda input: input.clone(), kernels={"cuda": claimed})
        called = []
        operator.kernel("cuda", name="counted", triton=True)(
            lambda input: (called.append(input.dtype), input.clone())[1]
        )
        assert operator.declaration.kernels == {"cpu": claimed, "cuda": claimed}
        operator(torch.ones(2))
        operator(torch.ones(2, dtype=torch.float64))
        assert called == [dtype for dtype in (torch.float32, torch.float64) if dtype in claimed]


GATED = "(Tensor grad, Tensor input, Tensor[] more, Tensor? bias=None, int groups=2) -> (Tensor, Tensor)"


def gated(shapes):
    return declare(GATED, lambda grad, input, *others: (input.sin(), grad.cos()), shapes=shapes, dtypes=None)


@pytest.mark.parametrize(
    ("shapes", "sizes", "message"),
    [
        ("n d, n 2*d, ..., d -> n, d", [(3, 4), (3, 8), (4,)], None),
        ("n d, n 2*d, ..., d -> n, d", [(3, 4), (3, 8)], None),
        ("n d, n 2*d, ..., d -> n, d", [(3, 4), (3, 7)], "input must have the shape (n, 2*d), where n is 3 as in grad"),
        (
            "n d, n 2*d, ..., d -> n, d",
            [(3, 4), (3, 8), (5,)],
            "bias must have the shape (d,), where d is 4 as in grad",
        ),
        ("n d, n 2*d, ..., d -> n, d", [(3,), (3, 8)], "grad must have the shape (n, d), got (3,)"),
        ("2*d, d, ..., _ -> d, d", [(5,), (2,)], "grad must have the shape (2*d,), got (5,)"),
        ("... d, ... 1, ..., d -> ..., d", [(2, 3, 4), (2, 3, 1), (4,)], None),
        ("... d, ... 1, ..., d -> ..., d", [(4,), (1,)], None),
        ("... d, ... 1, ..., d -> ..., d", [(2, 4), (3, 1)], "where ... is 2, got (3, 1)"),
        ("... d, ... 1, ..., d -> ..., d", [(4,), (2, 1)], "where ... is nothing, got (2, 1)"),
        ("... d, ... 1, ..., d -> ..., d", [(2, 4), (2, 3)], "input must have the shape (..., 1)"),
        ("... d, ... 1, ..., d -> ..., d", [(), (1,)], "grad must have the shape (..., d), got ()"),
        ("groups, (), ..., _ -> groups, ()", [(2,), ()], None),
        ("groups, (), ..., _ -> groups, ()", [(3,), ()], "where groups is 2, got (3,)"),
        ("groups, (), ..., _ -> groups, ()", [(2,), (1,)], "input must have the shape (), got (1,)"),
    ],
)
def test_shapes_say_which_sizes_are_the_same(shapes, sizes, message):
    tensors = [torch.zeros(each) for each in sizes]
    tensors.insert(2, [torch.zeros(9)])
    operator = gated(shapes)
    if message is None:
        operator.explain(*operator.declaration.with_defaults(tensors))
    else:
        with pytest.raises(ValueError, match=operator.name) as raised:
            operator.explain(*operator.declaration.with_defaults(tensors))
        assert message in str(raised.value)


def test_shapes_tell_the_results_where_all_of_their_sizes_stand_there():
    told, of_reference = gated("n d, ..., ..., _ -> 3*d groups n, ... 4"), gated("n d, _ d, ..., _ -> n _, _")
    arguments = torch.zeros(5, 7, dtype=torch.float16), torch.zeros(2, 7, dtype=torch.float16), []
    wide, rest = told.declaration.output(*told.declaration.with_defaults(arguments))
    assert (wide.shape, wide.dtype, rest.shape) == ((21, 2, 5), torch.float16, (2, 7, 4))
    assert [
        each.shape for each in of_reference.declaration.output(*of_reference.declaration.with_defaults(arguments))
    ] == [(2, 7), (5, 7)]
    assert told.declaration.knows_output
    assert not of_reference.declaration.knows_output


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            "n, n, n, n",
            "shapes must give 4 shapes for its tensor arguments, '->' and 2 shapes for its results, got 'n, n, n, n'",
        ),
        ("n, n, n -> n, n", "4 shapes for its tensor arguments"),
        ("n, n, ..., n -> n", "2 shapes for its results"),
        ("n-1, n, ..., n -> n, n", "a size in shapes must be like n, 4, 2*n, _ or ..., got 'n-1'"),
        ("... ..., n, ..., n -> n, n", "a shape in shapes must be () or sizes, with '...' once at most, got '... ...'"),
        ("n, , ..., n -> n, n", "a shape in shapes must be () or sizes, with '...' once at most, got ''"),
        ("n, n, ..., k -> k, n", "nothing gives ['k'], got 'n, n, ..., k -> k, n'"),
    ],
)
def test_shapes_that_make_no_sense_are_refused_where_they_are_declared(shapes, message):
    with pytest.raises(ValueError, match="gated") as raised:
        gated(shapes)
    assert message in str(raised.value)


def test_shapes_are_kept_under_every_tracer():
    scaled = declare("(Tensor input, Tensor weight) -> Tensor", lambda x, w: x * w, shapes="... d, d -> ... d")
    leaves = torch.randn(2, 3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    every_way(scaled, lambda x, w: x * w, *leaves)
    with pytest.raises(ValueError, match="weight must have the shape"):
        scaled(torch.zeros(3, 4), torch.zeros(1))
    with pytest.raises(Exception, match="weight must have the shape"):
        torch.compile(lambda *each: scaled(*each), fullgraph=True, backend="aot_eager")(
            torch.zeros(3, 4), torch.zeros(1)
        )
