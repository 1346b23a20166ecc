"""Results have memory of their own, and values that sizes, strides and dtype tell whole; whatever computes them."""

import functools
import gc
import itertools
import warnings

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import torchgraft
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples

TABLE = torch.zeros(4)

pytestmark = [
    pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
]

_numbers = itertools.count()


@pytest.fixture
def declare():
    declared = []

    def make(signature, reference, **more):
        declared.append(Operator(f"own_memory::f{next(_numbers)}{signature}", reference=reference, **more))
        return declared[-1]

    yield make
    for operator in declared:
        operator.undeclare()


def compiled(function, backend="aot_eager"):
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True)


class Named(torch.Tensor):
    """A class that is no more than a name."""


def keeping_itself():
    kept = torch.zeros(2, 3)
    return lambda x: torch.mul(x, 2, out=kept)


def keeping_a_list():
    kept = []
    return lambda x: kept if kept.append(x * 2) else kept[-1:]


def keeping_a_tuple():
    kept = {}
    return lambda x: kept.setdefault(0, (x * 2, [x * 3]))


def keeping_what_it_is_a_part_of():
    kept = torch.zeros(9, 3)
    return lambda x: kept[3:5].copy_(x * 2)


def keeping_what_it_is_detached_from():
    kept = torch.zeros(2, 3)
    return lambda x: kept.copy_(x * 2).detach().view(-1).view(2, 3)


class TestKernelInPythonThatKeepsItsResult:
    """All its callers would have one memory: each gets a copy."""

    @pytest.mark.parametrize("path", ["eager", "aot_eager", "inductor", "torch.ops"])
    @pytest.mark.parametrize(
        ("signature", "kernel"),
        [
            ("(Tensor x) -> Tensor", keeping_itself),
            ("(Tensor x) -> Tensor[]", keeping_a_list),
            ("(Tensor x) -> (Tensor, Tensor[])", keeping_a_tuple),
            ("(Tensor x) -> Tensor", keeping_what_it_is_a_part_of),
            ("(Tensor x) -> Tensor", keeping_what_it_is_detached_from),
        ],
    )
    def test_gives_each_call_its_own(self, declare, path, signature, kernel):
        def reference(x):
            return {"r": x * 2, "]": [x * 2], ")": (x * 2, [x * 3])}[signature[-1]]

        operator = declare(signature, reference)
        operator.kernel("cpu")(kernel())
        call = operator.public if path == "torch.ops" else operator
        function = call if path in ("eager", "torch.ops") else compiled(lambda x: call(x), path)
        x = torch.ones(2, 3)
        first, second, expected = (torch.utils._pytree.tree_leaves(each(x)) for each in (function, function, reference))
        for each in first:
            each.zero_()
        for results in (second, torch.utils._pytree.tree_leaves(function(x))):
            assert [each.tolist() for each in results] == [each.tolist() for each in expected]

    @pytest.mark.parametrize(
        ("signature", "kernel"),
        [
            ("(Tensor x) -> Tensor", lambda x: x * 2),
            ("(Tensor x) -> Tensor", lambda x: (x * 2).t().view(3, 2).detach()[:1]),
            ("(Tensor x) -> Tensor", lambda x: (y := x * 2, y.untyped_storage())[0]),
            ("(Tensor x) -> (Tensor, Tensor[])", lambda x: (x * 2, [(x * 3)[1:], x * 4])),
        ],
        ids=["new", "a view of one", "its storage was asked for", "several"],
    )
    def test_others_are_not_copied(self, declare, signature, kernel):
        addresses = []

        def noted(x):
            results = kernel(x)
            addresses.append([each.data_ptr() for each in torch.utils._pytree.tree_leaves(results)])
            return results

        operator = declare(signature, kernel)
        operator.kernel("cpu")(noted)
        # TorchDynamo replaces what runs Python's frames, and with it who holds the arguments of a call.
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        results = torch.utils._pytree.tree_leaves(operator(torch.ones(2, 3)))
        assert [[each.data_ptr() for each in results]] == addresses

    def test_is_found_by_the_check_where_pytorch_does_not_see_it(self, declare):
        numpy = pytest.importorskip("numpy")
        kept = [numpy.zeros(10**6, numpy.float32) for _ in range(2)]

        def in_turn(x):
            kept.reverse()
            kept[0][: x.numel()] = x.view(-1)
            return torch.from_numpy(kept[0])[: x.numel()].view(x.shape).mul_(2)

        operator = declare("(Tensor x) -> Tensor", lambda x: x * 2, dtypes=(torch.float32,))
        operator.kernel("cpu")(in_turn)
        samples = Samples([Sample("a matrix", (Drawn((2, 3)),))])
        failed, *_ = torchgraft.check(operator, samples, properties=["inputs_and_outputs"], device="cpu").failures
        assert failed.failure.message.startswith("the results of two calls share their memory: the kernel keeps it")


class TestKernelInTriton:
    """A compiler sees inside it, and asks for the same."""

    @pytest.mark.parametrize("needs_grad", [False, True])
    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize(
        ("signature", "kernel", "problem"),
        [
            ("(Tensor x) -> Tensor", lambda x: x, "result 0 .* shares memory"),
            ("(Tensor x) -> Tensor", lambda x: x.detach(), "result 0 .* shares memory"),
            ("(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 1).chunk(2), "result 1 .* shares memory"),
            ("(Tensor x) -> (Tensor, Tensor)", lambda x: 2 * (x * 1,), "result 1 .* shares memory"),
            ("(Tensor x) -> Tensor", lambda x: x.sum().expand(4), "result 0 .* has elements that share"),
            ("(Tensor x) -> Tensor", functools.cache(lambda x: TABLE), "result 0 .* is a tensor from before the call"),
        ],
        ids=["itself", "detached", "chunks", "twice", "expanded", "a constant"],
    )
    def test_is_refused(self, declare, signature, kernel, problem, needs_grad, dynamic):
        reference = {"r": lambda x: x * 1, ")": lambda x: tuple(x.repeat(2).chunk(2))}[signature[-1]]
        operator = declare(signature, reference, gradient="reference")
        operator.kernel("cpu", name="kernel", triton=True)(kernel)
        torch._dynamo.reset()
        function = torch.compile(lambda x: operator(x), backend="aot_eager", dynamic=dynamic)
        with pytest.raises(Exception, match=f"{operator.name}: {problem}") as raised:
            function(torch.ones(4, requires_grad=needs_grad))
        assert "the kernel 'kernel'" in str(raised.value)

    def test_may_not_keep_what_it_makes_while_it_is_traced(self, declare):
        kept = []
        operator = declare("(Tensor x) -> Tensor", lambda x: x * 2)
        operator.kernel("cpu", triton=True)(lambda x: kept[0] if kept else kept.append(x * 2) or kept[0])
        with pytest.raises(Exception, match=r"result 0 .* is a tensor from before the call.*make it at each call"):
            compiled(lambda x: operator(x))(torch.ones(2))
        with pytest.raises(ValueError, match=r"result 0 .* is a compiler's tensor: the kernel kept it"):
            operator(torch.ones(2))

    @pytest.mark.parametrize("triton", [False, True])
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_may_return_an_argument_without_elements(self, declare, triton, dynamic):
        operator = declare("(Tensor x) -> Tensor", lambda x: x * 2)
        operator.kernel("cpu", triton=triton)(lambda x: x * 2 if x.numel() else x)
        torch._dynamo.reset()
        for function in (operator, torch.compile(lambda x: operator(x), backend="aot_eager", dynamic=dynamic)):
            for size in (0, 2):
                x = torch.ones(size)
                assert function(x).tolist() == [2.0] * size
                assert function(x) is not x


class TestKernelInPython:
    """A compiler writes over memory that nothing reads any more, and would not see that a result lies there."""

    @pytest.mark.parametrize(
        ("signature", "kernel", "problem"),
        [
            ("(Tensor x) -> Tensor", lambda x: x.float(), "result 0 .* shares memory"),
            ("(Tensor x) -> Tensor", lambda x: x.view(-1).view(x.shape), "result 0 .* shares memory"),
            ("(Tensor x) -> (Tensor, Tensor)", lambda x: 2 * (x * 2,), "result 1 .* shares memory"),
            ("(Tensor x) -> (Tensor, Tensor)", lambda x: torch.stack([x, x]).unbind(), "result 1 .* shares memory"),
            ("(Tensor[] x) -> Tensor[]", lambda x: x, "result 0 .* shares memory"),
            ("(Tensor x) -> Tensor", lambda x: x.sum().expand(x.shape), "result 0 .* has elements that share memory"),
            ("(Tensor x) -> Tensor", lambda x: (x * 1j).conj(), "result 0 .* is a lazy conjugate"),
            ("(Tensor(a!) x) -> Tensor", lambda x: x.add_(1), "result 0 .* shares memory"),
            ("(Tensor x) -> Tensor", lambda x: torch.from_dlpack(x), "result 0 .* shares memory"),
            ("(Tensor x) -> Tensor", torch.inference_mode()(lambda x: x * 2), "result 0 .* is an inference tensor"),
            ("(Tensor x) -> Tensor", lambda x: torch.empty(0).set_(x), "result 0 .* shares memory"),
            ("(Tensor x) -> Tensor[]", lambda x: list((x * 2).chunk(2)), "result 1 .* shares memory"),
            ("(Tensor x) -> (Tensor, Tensor)", lambda x: (y := x * 1j, y.imag), "result 1 .* shares memory"),
            ("(Tensor x) -> Tensor", lambda x: (x * 2).as_subclass(Named), "result 0 .* is a Named.*as_subclass"),
            ("(Tensor x) -> Tensor", lambda x: torch.nn.Parameter(x * 2, False), "result 0 .* is a Parameter"),
            ("(Tensor x) -> Tensor", lambda x: torch.nn.Buffer(x * 2), "result 0 .* has attributes.*: persistent"),
            (
                "(Tensor x) -> Tensor",
                lambda x: (x * 2).to_sparse(),
                "result 0 .* is torch.sparse_coo: return the tensors",
            ),
            ("(Tensor x) -> Tensor", lambda x: torch.nested.nested_tensor([x, x]), "result 0 .* is nested: return"),
        ],
        ids=[
            *("itself", "a view", "twice", "parts of one", "the list", "expanded", "conjugate", "what it writes to"),
            *("another storage", "inference", "set_", "chunks", "a part of a complex number", "another class"),
            *("a parameter", "attributes", "sparse", "nested"),
        ],
    )
    def test_must_return_new_tensors(self, declare, signature, kernel, problem):
        operator = declare(signature, lambda *arguments: None, output=lambda *arguments: None)
        operator.kernel("cpu", name="kernel")(kernel)
        x = torch.ones(2, 3)
        with pytest.raises(ValueError, match=f"{operator.name}: .*{problem}.*new tensor") as raised:
            operator([x] if "[]" in signature.partition("->")[0] else x)
        assert "the kernel 'kernel'" in str(raised.value)

    def test_may_return_one_without_elements_and_one_of_its_own(self, declare):
        operator = declare("(Tensor x) -> (Tensor, Tensor)", lambda x: (x * 2, x[:0] * 2))
        operator.kernel("cpu", name="kernel")(lambda x: (x * 2, x.new_empty(0, 3)))
        assert [each.shape for each in operator(torch.ones(2, 3))] == [(2, 3), (0, 3)]

    @pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")
    def test_may_be_called_after_a_graph_break(self, declare):
        def halved(x):
            return (x * 2).view(torch.int32)

        operator = declare("(Tensor x) -> Tensor", halved, output=lambda x: torch.empty_like(x, dtype=torch.int32))
        operator.kernel("cpu")(halved)
        torch._dynamo.reset()
        function = torch.compile(lambda x: operator(x), backend="aot_eager")
        x = torch.ones(2, requires_grad=True)
        assert torch.equal(function(x), operator(x))

    def test_may_return_what_compiled_code_returns(self, declare):
        inner = torch.compile(lambda x: x * 2, backend="aot_eager", dynamic=True)
        operator = declare("(Tensor x) -> Tensor", lambda x: x * 2)
        operator.kernel("cpu")(lambda x: inner(x))
        assert operator(torch.ones(5)).tolist() == [2.0] * 5


class TestOutput:
    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_is_refused_if_it_is_sparse(self, declare, is_compiled):
        def sparse(x):
            return torch.empty(x.shape, layout=torch.sparse_coo)

        operator = declare("(Tensor x) -> Tensor", lambda x: x.to_sparse(), output=sparse, kernels={})
        function = compiled(lambda x: operator(x)) if is_compiled else operator
        with pytest.raises(
            Exception, match=r"result 0 of output is torch.sparse_coo: return the tensors that it is made"
        ):
            function(torch.ones(2))

    @pytest.mark.parametrize(
        ("output", "problem"),
        [
            (lambda x: torch.empty_like(x).mH, "is a lazy conjugate"),
            (lambda x: torch.empty_like(x).conj().imag.to(x.dtype).conj(), "is a lazy conjugate"),
            (lambda x: torch.empty_like(x, requires_grad=True), "requires a gradient"),
        ],
        ids=["adjoint", "conjugate", "requires_grad"],
    )
    def test_is_refused_if_it_is_more_than_memory(self, declare, output, problem):
        operator = declare(
            "(Tensor x) -> Tensor", lambda x: x * 1, output=output, dtypes=(torch.complex64,), kernels={}
        )
        x = torch.ones(2, 2, dtype=torch.complex64)
        for call in (operator, compiled(lambda x: operator(x))):
            with pytest.raises(Exception, match=f"result 0 of output {problem}"):
                call(x)

    @pytest.mark.parametrize("is_list", [False, True])
    @pytest.mark.parametrize("call", ["operator", "torch.ops"])
    def test_that_is_kept_is_not_shared_by_calls(self, declare, call, is_list):
        kept = {}
        results, made = ("Tensor[]", lambda x: [torch.empty_like(x)]) if is_list else ("Tensor", torch.empty_like)
        operator = declare(
            f"(Tensor x) -> {results}",
            (lambda x: [x * 2]) if is_list else (lambda x: x * 2),
            output=lambda x: kept.setdefault("results", made(x)),
            kernels={},
        )
        called = operator if call == "operator" else operator.public
        one, other = called(torch.ones(3)), called(torch.full((3,), 5.0))
        if is_list:
            (one,), (other,) = one, other
        assert (one.tolist(), other.tolist()) == ([2.0] * 3, [10.0] * 3)

    @pytest.mark.parametrize("kept", [torch.empty(3), None], ids=["memory", "a compiler's tensor"])
    def test_that_is_kept_is_refused_where_a_compiler_traces(self, declare, kept):
        def output(x):
            nonlocal kept
            kept = torch.empty(3) if kept is None else kept
            return kept

        operator = declare("(Tensor x) -> Tensor", lambda x: x * 2, output=output, kernels={})
        with pytest.raises(Exception, match="result 0 of output is a tensor from before the call"):
            compiled(lambda x: operator(operator(x) + 1) + 1)(torch.ones(3))

    def test_is_refused_on_another_device_than_the_reference_gives(self, declare):
        operator = declare(
            "(Tensor x) -> Tensor", lambda x: x + 1, output=lambda x: torch.empty(x.shape, device="meta"), kernels={}
        )
        with pytest.raises(ValueError, match="result 0 of output is on meta, that of the reference on cpu"):
            operator(torch.ones(2))


class TestReferenceOfAnOperatorThatWrites:
    """Its values are those from before the call, also if they are the arguments themselves."""

    @pytest.mark.parametrize("call", ["eager", "compiled", "no_grad"])
    @pytest.mark.parametrize(
        ("signature", "reference", "before", "after"),
        [
            (
                "(Tensor(a!) slot, Tensor value) -> Tensor",
                lambda slot, value: (value.clone(), slot),
                ([0.0], [1.0]),
                ([1.0], [1.0], [0.0]),
            ),
            (
                "(Tensor(a!) buffer, Tensor x) -> Tensor",
                lambda buffer, x: (torch.cat([buffer[1:], x]), buffer[:1]),
                ([1.0, 2.0, 3.0], [9.0]),
                ([2.0, 3.0, 9.0], [9.0], [1.0]),
            ),
            ("(Tensor(a!) a, Tensor(b!) b) -> ()", lambda a, b: (b, a), ([1.0], [2.0]), ([2.0], [1.0])),
            ("(Tensor(a!) a) -> ()", lambda a: a.flip(0), ([1.0, 2.0],), ([2.0, 1.0],)),
        ],
        ids=["exchange", "ring buffer", "swap", "in place"],
    )
    def test_is_read_before_anything_is_written(self, declare, call, signature, reference, before, after):
        operator = declare(signature, reference, kernels="reference")
        arguments = [torch.tensor(each) for each in before]
        function = compiled(lambda *each: operator(*each)) if call == "compiled" else operator
        with torch.no_grad() if call == "no_grad" else torch.enable_grad():
            result = function(*arguments)
        found = [*arguments, *([] if result is None else [result])]
        assert [each.tolist() for each in found] == list(after)

    @pytest.mark.parametrize(
        "path", ["eager", "aot_eager", "inductor", "torch.ops", "compiled torch.ops", "export", "decomposed"]
    )
    @pytest.mark.parametrize("listed", [False, True])
    def test_returns_a_list_on_every_path(self, declare, path, listed):
        def reference(x, y):
            new = [each + 1 for each in x] if listed else x + 1
            return new, y * 2, [y, y * 3]

        signature = f"(Tensor(a!){'[]' if listed else ''} x, Tensor y) -> (Tensor, Tensor[])"
        operator = declare(signature, reference, kernels="reference")

        def call(*arguments):
            return operator.public(*arguments) if "ops" in path else operator(*arguments)

        class Model(torch.nn.Module):
            def forward(self, x, y):
                return call(x, y)

        x, y = torch.ones(2), torch.ones(2)
        given = ([x], y) if listed else (x, y)
        if path in ("export", "decomposed"):
            example = ([torch.ones(2)], y) if listed else (torch.ones(2), y)
            program = torch.export.export(Model(), example)
            function = (program.run_decompositions() if path == "decomposed" else program).module()
        else:
            backend = {"inductor": "inductor"}.get(path, "aot_eager")
            function = call if path in ("eager", "torch.ops") else compiled(call, backend)
        one, more = function(*given)
        assert [each.tolist() for each in (x, one, *more)] == [[2.0] * 2, [2.0] * 2, [1.0] * 2, [3.0] * 2]
        more[0].zero_()
        assert y.all()

    @pytest.mark.parametrize("needs_grad", [False, True])
    def test_returns_no_view_of_an_argument_that_is_only_read(self, declare, needs_grad):
        operator = declare(
            "(Tensor(a!) total, Tensor x) -> Tensor", lambda total, x: (total + x.detach(), x.view(-1)), kernels={}
        )
        x = torch.ones(2, requires_grad=needs_grad) * 1
        operator(torch.zeros(2), x).add_(1)
        assert x.tolist() == [1.0, 1.0]


_TABLE = torch.arange(2.0)


class TestReferenceInThePlaceOfAKernel:
    """Nothing tells from a result what computed it: it never is a view of an argument."""

    @pytest.mark.parametrize("reference", [lambda x: x.t(), lambda x: x, lambda x: x[:1]], ids=["t", "itself", "a row"])
    @pytest.mark.parametrize("options", [{"gradient": "reference"}, {}], ids=["gradient", "no formula"])
    @pytest.mark.parametrize("path", ["eager", "compiled", "vmap", "jvp"])
    def test_is_copied(self, declare, path, options, reference):
        operator = declare("(Tensor x) -> Tensor", reference, kernels={"cpu": (torch.float32,)}, **options)
        x = torch.zeros(2, 3, dtype=torch.float64)
        call = {
            "eager": operator,
            "compiled": compiled(lambda x: operator(x)),
            "vmap": lambda x: torch.vmap(operator)(x.unsqueeze(0)),
            "jvp": lambda x: torch.func.jvp(operator, (x,), (x.clone(),))[0],
        }[path]
        call(x).add_(1)
        assert not x.any()

    @pytest.mark.parametrize("reference", [lambda x: _TABLE, lambda x: _TABLE[: x.shape[0]]], ids=["itself", "a part"])
    def test_is_copied_where_compilers_see_one_that_keeps_a_table(self, declare, reference):
        operator = declare("(Tensor x) -> Tensor", reference, compile="reference", output=lambda x: x.new_empty(2))
        call = compiled(lambda x: operator(x))
        for _ in range(2):
            assert call(torch.zeros(2)).add_(1).tolist() == [1, 2]
        assert _TABLE.tolist() == [0, 1]

    def test_is_copied_where_compilers_see_the_reference_and_calls_a_kernel(self, declare):
        operator = declare("(Tensor x) -> Tensor", lambda x: x.t(), compile="reference")
        for call in (operator, compiled(lambda x: operator(x))):
            x = torch.zeros(2, 3)
            call(x).add_(1)
            assert not x.any()

    @pytest.mark.parametrize(
        "reference",
        [lambda x: (y := x.exp(), y.view(-1)), lambda x: 2 * (x + 1,), lambda x: 2 * (x.sum().expand(x.shape),)],
        ids=["a view of a result", "one result twice", "expanded"],
    )
    @pytest.mark.parametrize("path", ["eager", "compiled"])
    def test_shares_no_memory_among_its_results(self, declare, path, reference):
        operator = declare("(Tensor x) -> (Tensor, Tensor)", reference, kernels={"cpu": (torch.float32,)})
        call = operator if path == "eager" else compiled(lambda x: operator(x))
        one, other = call(torch.zeros(2, dtype=torch.float64))
        before = other.clone()
        one.add_(1)
        assert torch.equal(other, before)
        one[0] = 9
        assert one[1] != 9

    @pytest.mark.parametrize(
        "reference",
        [
            lambda x: x.detach(),
            lambda x: x.data[1:],
            lambda x: x.detach().unbind()[0],
            lambda x: x.as_strided((2,), (1,), 1),
            lambda x: torch.view_as_real(torch.view_as_complex(x)),
            lambda x: x.contiguous(),
        ],
        ids=["detach", "data", "unbind", "as_strided", "real", "contiguous"],
    )
    @pytest.mark.parametrize("path", ["eager", "aot_eager", "inductor", "dynamic", "strict export", "needs_grad"])
    def test_is_copied_whatever_hides_that_it_is_a_view(self, declare, path, reference):
        operator = declare("(Tensor x) -> Tensor", reference, compile="reference", gradient="reference")

        class Model(torch.nn.Module):
            def forward(self, x):
                return operator(x)

        torch._dynamo.reset()
        x = torch.zeros(4, 2, requires_grad=path == "needs_grad")
        if path == "strict export":
            function = torch.export.export(Model(), (torch.zeros(4, 2),), strict=True).module()
        elif path == "dynamic":
            function = torch.compile(Model(), backend="aot_eager", dynamic=True, fullgraph=True)
        else:
            function = (
                operator if path == "eager" else compiled(Model(), "inductor" if path == "inductor" else "aot_eager")
            )
        function(x).detach().add_(1)
        assert not x.any()

    def test_has_no_expanded_sizes_that_a_compiler_does_not_know(self, declare):
        operator = declare("(Tensor x) -> Tensor", lambda x: x.sum().expand(x.shape), compile="reference")
        torch._dynamo.reset()
        result = torch.compile(lambda x: operator(x), backend="aot_eager", dynamic=True)(torch.ones(3))
        result[0] = 9
        assert result.tolist() == [9.0, 3.0, 3.0]

    @pytest.mark.parametrize(
        ("signature", "path"),
        [
            ("(Tensor x) -> Tensor", "vmap rule"),
            ("(Tensor x) -> Tensor", "jvp of torch.ops"),
            ("(Tensor?[] x) -> Tensor", "jit.trace"),
        ],
    )
    def test_is_copied_where_others_call_it(self, declare, signature, path):
        is_list = "[]" in signature
        operator = declare(
            signature,
            lambda x: x[0] if is_list else x,
            output=lambda x: torch.empty_like(x[0] if is_list else x),
            gradient="reference",
            vmap=lambda operator, count, dims, x: (x, dims[0]),
        )
        x = torch.zeros(2, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = {
                "vmap rule": lambda: torch.vmap(operator),
                "jvp of torch.ops": lambda: lambda x: torch.func.jvp(operator.public, (x,), (x,))[0],
                "jit.trace": lambda: torch.jit.trace(lambda x: operator([x]), (x.clone(),)),
            }[path]()
            function(x).add_(1)
        assert not x.any()

    def test_is_a_tensor_of_no_other_class(self, declare):
        operator = declare("(Tensor x) -> Tensor", lambda x: (x * 2).as_subclass(Named), kernels={})
        assert type(operator(torch.ones(2))) is torch.Tensor

    def test_of_one_that_pytorch_computes_everywhere_is_what_pytorch_returns(self, declare):
        operator = declare("(Tensor x) -> Tensor", lambda x: x.t(), kernels="reference", compile="reference")
        for call in (operator, compiled(lambda x: operator(x))):
            x = torch.zeros(2, 3)
            call(x).add_(1)
            assert x.all()


class TestMemoryIsFreeAtOnce:
    """Tensors are free once nobody uses them, not when Python next looks for cycles: a model would hold many calls."""

    @pytest.fixture(autouse=True)
    def _no_search_for_cycles(self):
        gc.collect()
        gc.disable()
        yield
        gc.enable()

    @pytest.mark.parametrize(
        ("signature", "reference"),
        [
            ("(Tensor x, Tensor y) -> Tensor", torch.mul),
            ("(Tensor x, Tensor y) -> (Tensor, Tensor)", lambda x, y: (x * y, x + y)),
            ("(Tensor x, Tensor y) -> Tensor[]", lambda x, y: [x * y, x]),
            ("(Tensor[] x, Tensor y) -> Tensor", lambda x, y: x[0] * y),
            ("(Tensor(a!) x, Tensor y) -> Tensor", lambda x, y: (x + 1, x * y)),
            ("(Tensor(a!) x, Tensor y) -> ()", lambda x, y: x * y),
        ],
    )
    @pytest.mark.parametrize("needs_grad", [False, True])
    def test_after_a_call_that_the_reference_answers(self, declare, signature, reference, needs_grad):
        operator = declare(signature, reference)

        def call():
            x, y = torch.ones(2, 3), torch.ones(2, 3, requires_grad=needs_grad and "-> ()" not in signature)
            results = operator([x] if signature.startswith("(Tensor[]") else x, y)
            made = [x, y, *torch.utils._pytree.tree_leaves(results)]
            return [StorageWeakRef(each.untyped_storage()) for each in made if each is not None]

        # At first modules are imported, and errors caught on the way hold frames.
        call()
        gc.collect()
        assert all(each.expired() for each in call())

    @pytest.mark.parametrize("arguments", [(Drawn((2, 3)), 1.0), ([Drawn((2,)), Drawn((3,))],)], ids=["one", "list"])
    def test_of_a_sample(self, arguments):
        sample = Sample("any", arguments)

        def left_behind():
            sample.make("cpu", torch.float32)
            return gc.collect()

        # Imports of the first time, and other threads, leave some too, but not each time.
        assert min(left_behind() for _ in range(6)) == 0
