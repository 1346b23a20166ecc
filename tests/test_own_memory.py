"""Results have memory of their own, and values that sizes, strides and dtype tell whole; whatever computes them."""

import itertools

import pytest
import torch

from torchgraft import Operator

pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")

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
        ],
        ids=[
            *("itself", "a view", "twice", "parts of one", "the list", "expanded", "conjugate", "what it writes to"),
            *("another storage", "inference"),
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


class TestOutput:
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

    @pytest.mark.parametrize("needs_grad", [False, True])
    def test_returns_no_view_of_an_argument_that_is_only_read(self, declare, needs_grad):
        operator = declare(
            "(Tensor(a!) total, Tensor x) -> Tensor", lambda total, x: (total + x.detach(), x.view(-1)), kernels={}
        )
        x = torch.ones(2, requires_grad=needs_grad) * 1
        operator(torch.zeros(2), x).add_(1)
        assert x.tolist() == [1.0, 1.0]


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

    def test_of_one_that_pytorch_computes_everywhere_is_what_pytorch_returns(self, declare):
        operator = declare("(Tensor x) -> Tensor", lambda x: x.t(), kernels="reference", compile="reference")
        for call in (operator, compiled(lambda x: operator(x))):
            x = torch.zeros(2, 3)
            call(x).add_(1)
            assert x.all()
