"""What every operator must do, on every device of this machine. An operator joins by having samples."""

import itertools
import subprocess
import sys
import warnings
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torchgraft
from harness import (
    SAMPLES,
    assert_close,
    differentiable,
    each_device,
    each_dtype,
    each_operator,
    each_sample,
    in_float64,
    of_tensors,
    spread,
    table_of,
    tensors_of,
)
from torchgraft import Operator

kernel = pytest.mark.kernel


def summed(operator, arguments):
    return SAMPLES[operator.name].summed(*arguments)


def check_value(operator: Operator, arguments: tuple, dtype: torch.dtype) -> None:
    expected = operator.reference(*in_float64(arguments))
    assert_close(operator(*arguments), expected, dtype=dtype, summed=summed(operator, arguments))


@kernel
@each_device()
@each_dtype()
@each_sample()
def test_value_is_that_of_the_reference(operator, sample, dtype, device):
    check_value(operator, sample.make(device, dtype), dtype)


@kernel
@each_device()
@each_operator()
@given(random=st.randoms(use_true_random=False), dtype=st.sampled_from(list(torchgraft.operator.FLOATING)))
def test_value_on_drawn_samples(operator, device, random: Random, dtype):
    check_value(operator, SAMPLES[operator.name].draw(random).make(device, dtype), dtype)


def awkward_strides(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same values in memory of every awkward kind."""
    if tensor.dim() == 0:
        return {"cut out of a larger tensor": torch.stack([tensor, tensor])[1]}
    # An odd offset, so that nothing starts on a boundary of sixteen bytes.
    room = torch.full((tensor.numel() + 1,), float("nan"), dtype=tensor.dtype, device=tensor.device)
    offset = room[1:].view(tensor.shape)
    offset.copy_(tensor)
    cut = torch.full([size + 3 for size in tensor.shape], float("nan"), dtype=tensor.dtype, device=tensor.device)
    inside = cut[tuple(slice(2, 2 + size) for size in tensor.shape)]
    inside.copy_(tensor)
    reversed_order = tensor.permute(*reversed(range(tensor.dim()))).contiguous()
    kinds = {
        "offset by one element": offset,
        "cut out of a larger tensor": inside,
        "dimensions in reverse order": reversed_order.permute(*reversed(range(tensor.dim()))),
        "every other element": tensor.repeat_interleave(2, -1)[..., ::2],
    }
    if tensor.dim() == 4:
        wide = tensor.contiguous(memory_format=torch.channels_last)
        padded = torch.full_like(wide, float("nan")).repeat(1, 2, 1, 1).contiguous(memory_format=torch.channels_last)
        padded[:, : tensor.shape[1]] = tensor
        kinds["channels_last"] = wide
        kinds["channels cut out of channels_last"] = padded[:, : tensor.shape[1]]
    return kinds


@kernel
@each_device()
@each_operator()
def test_strides_do_not_change_the_value(operator, device):
    for sample in spread(operator, 6):
        arguments = sample.make(device, torch.float32)
        expected = operator.reference(*in_float64(arguments))
        for place, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor):
                continue
            for kind, strided in awkward_strides(argument).items():
                assert torch.equal(strided, argument), kind
                changed = (*arguments[:place], strided, *arguments[place + 1 :])
                found = operator(*changed)
                assert_close(found, expected, dtype=torch.float32, summed=summed(operator, arguments))


@kernel
@each_device()
@each_operator()
def test_expanded_arguments(operator, device):
    for sample in spread(operator, 6):
        arguments = list(sample.make(device, torch.float32))
        for place, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor) or argument.dim() == 0:
                continue
            one = argument[(slice(0, 1),) * argument.dim()].expand(argument.shape)
            changed = (*arguments[:place], one, *arguments[place + 1 :])
            expected = operator.reference(*in_float64(changed))
            # Equal products add up coherently: errors grow with their number, not with its root.
            terms = summed(operator, changed)
            assert_close(operator(*changed), expected, dtype=torch.float32, summed=terms, scale=terms**0.5)


@kernel
@each_device()
@each_operator()
def test_inputs_are_left_alone_and_results_are_new_memory(operator, device):
    for sample in table_of(operator):
        arguments = sample.make(device, torch.float32)
        before = [tensor.clone() for tensor in tensors_of(arguments)]
        result = operator(*arguments)
        for tensor, copy in zip(tensors_of(arguments), before, strict=True):
            assert torch.equal(tensor, copy)
            assert tensor.numel() == 0 or result.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@kernel
@each_device()
@each_operator()
def test_the_same_bits_at_every_run_and_number_of_threads(operator, device):
    threads = torch.get_num_threads()
    for sample in table_of(operator):
        arguments = sample.make(device, torch.float32)
        first = operator(*arguments)
        try:
            torch.set_num_threads(1)
            assert torch.equal(first, operator(*arguments)), sample.name
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(first, operator(*arguments)), sample.name


@kernel
@each_device()
@each_operator()
def test_every_element_of_the_result_is_written(operator, device):
    # In this mode PyTorch fills new memory with NaN.
    torch.use_deterministic_algorithms(True)
    try:
        for sample in table_of(operator):
            result = operator(*sample.make(device, torch.float32))
            assert not result.isnan().any(), sample.name
    finally:
        torch.use_deterministic_algorithms(False)


@each_device()
@each_operator()
def test_fake_results_are_laid_out_as_real_ones(operator, device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    for sample in table_of(operator):
        arguments = sample.make(device, torch.bfloat16)
        real = operator(*arguments)
        with FakeTensorMode() as mode:
            fake = operator(
                *(mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in arguments)
            )
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (
            real.shape,
            real.stride(),
            real.dtype,
            real.device,
        ), sample.name


@each_device()
@each_operator()
def test_first_and_second_gradient_numerically(operator, device):
    for sample in spread(operator, 12):
        if sample.elements > 150:
            continue
        arguments = differentiable(sample.make(device, torch.float64))
        call = of_tensors(operator, arguments)
        torch.autograd.gradcheck(call, tensors_of(arguments), fast_mode=True)
        torch.autograd.gradgradcheck(call, tensors_of(arguments), fast_mode=True)


def gradients(function, arguments, output_grad):
    return torch.autograd.grad(function(*arguments), tensors_of(arguments), output_grad)


@kernel
@each_device()
@each_dtype()
@each_operator()
def test_gradients_are_those_of_the_reference(operator, dtype, device):
    for sample in table_of(operator):
        arguments = differentiable(sample.make(device, dtype))
        result = operator(*arguments)
        output_grad = torch.randn(result.shape, dtype=torch.float64).to(device, dtype)
        found = torch.autograd.grad(result, tensors_of(arguments), output_grad)
        exact = differentiable(in_float64(arguments))
        # Of an empty batch PyTorch's own gradient is cut from the graph.
        unused = {"allow_unused": True, "materialize_grads": True}
        expected = torch.autograd.grad(operator.reference(*exact), tensors_of(exact), output_grad.double(), **unused)
        terms = max(result.numel(), summed(operator, arguments))
        assert_close(found, expected, dtype=dtype, summed=terms)


@kernel
@each_device()
@each_operator()
def test_gradients_have_the_layout_of_what_they_are_the_gradient_of(operator, device):
    for sample in table_of(operator, empty=False):
        arguments = differentiable(sample.make(device, torch.float32))
        operator(*arguments).sum().backward()
        for tensor in tensors_of(arguments):
            meaningful = [d for d, size in enumerate(tensor.shape) if size != 1]
            assert [tensor.grad.stride(d) for d in meaningful] == [tensor.stride(d) for d in meaningful], sample.name


@kernel
@each_device()
@each_operator()
def test_incoming_gradients_of_any_strides(operator, device):
    for sample in spread(operator, 8):
        arguments = differentiable(sample.make(device, torch.float32))
        result = operator(*arguments)
        values = torch.randn_like(result)
        expected = gradients(operator, arguments, values)
        for kind, strided in awkward_strides(values).items():
            found = gradients(operator, arguments, strided)
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, msg=lambda text, kind=kind: f"{kind}: {text}")
        expanded = torch.ones((), device=device).expand(result.shape)
        for one, other in zip(
            gradients(operator, arguments, expanded), gradients(operator, arguments, expanded.contiguous()), strict=True
        ):
            torch.testing.assert_close(one, other)


@each_device()
@each_operator()
def test_only_the_gradients_that_are_asked_for(operator, device):
    for sample in spread(operator, 4):
        arguments = sample.make(device, torch.float32)
        places = [i for i, value in enumerate(arguments) if isinstance(value, torch.Tensor)]
        for count in range(1, len(places) + 1):
            for chosen in itertools.combinations(places, count):
                mixed = [value.clone().requires_grad_() if i in chosen else value for i, value in enumerate(arguments)]
                operator(*mixed).sum().backward()
                full = differentiable(arguments)
                operator(*full).sum().backward()
                for i in places:
                    if i in chosen:
                        torch.testing.assert_close(mixed[i].grad, full[i].grad)
                    else:
                        assert mixed[i].grad is None


@each_device()
@each_operator()
def test_no_gradient_is_recorded_where_none_is_needed(operator, device):
    sample = SAMPLES[operator.name].smallest
    assert not operator(*sample.make(device, torch.float32)).requires_grad
    with torch.no_grad():
        assert not operator(*differentiable(sample.make(device, torch.float32))).requires_grad
    with torch.inference_mode():
        assert operator(*sample.make(device, torch.float32)).is_inference()


@each_device()
@each_operator()
def test_opcheck(operator, device):
    for sample in spread(operator, 3):
        arguments = differentiable(sample.make(device, torch.float64))
        torch.library.opcheck(operator.public, arguments)
        torch.library.opcheck(operator.raw, sample.make(device, torch.float32))


@each_device()
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@each_operator()
def test_compiled_forward_and_backward(operator, dynamic, device):
    compiled = torch.compile(operator, fullgraph=True, dynamic=dynamic)
    for sample in spread(operator, 2):
        arguments = differentiable(sample.make(device, torch.float32))
        eager = operator(*arguments)
        output_grad = torch.randn_like(eager)
        result = compiled(*arguments)
        torch.testing.assert_close(result, eager)
        assert result.stride() == eager.stride()
        found = torch.autograd.grad(result, tensors_of(arguments), output_grad)
        for one, other in zip(found, gradients(operator, arguments, output_grad), strict=True):
            torch.testing.assert_close(one, other)


@pytest.fixture(scope="session")
def ahead_of_time_works(tmp_path_factory):
    """Whether PyTorch's own ahead-of-time compiler works here on a device: on some machines its loader crashes."""
    answers = {}

    def ask(device):
        if device not in answers:
            code = f"""
import torch
class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2
x = torch.randn(8, device={device!r})
path = {str(tmp_path_factory.mktemp("aoti") / "double.pt2")!r}
package = torch._inductor.aoti_compile_and_package(torch.export.export(Double(), (x,)), package_path=path)
assert torch.equal(torch._inductor.aoti_load_package(package)(x), x * 2)
"""
            answers[device] = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        return answers[device] == 0

    return ask


@each_device()
@each_operator()
def test_exported_and_compiled_ahead_of_time(operator, device, tmp_path, ahead_of_time_works):
    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return call(*tensors)

    sample = spread(operator, 2)[-1]
    arguments = sample.make(device, torch.float32)
    call = of_tensors(operator, arguments)
    tensors = tuple(tensors_of(arguments))
    program = torch.export.export(Module(), tensors)
    expected = operator(*arguments)
    torch.testing.assert_close(program.module()(*tensors), expected)

    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    torch.testing.assert_close(torch.export.load(path).module()(*tensors), expected)

    # On the CPU it must work: nothing is asked.
    if device != "cpu" and not ahead_of_time_works(device):
        pytest.skip(f"PyTorch's own ahead-of-time compilation of x * 2 fails on {device} here")
    with warnings.catch_warnings():
        # Said by PyTorch's own packaging code about itself.
        warnings.simplefilter("ignore", DeprecationWarning)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "aoti.pt2"))
        runner = torch._inductor.aoti_load_package(package)
    torch.testing.assert_close(runner(*tensors), expected)


@each_device()
@each_operator()
def test_autocast_does_what_is_declared(operator, device):
    sample = SAMPLES[operator.name].smallest
    for dtype in (torch.bfloat16, torch.float16):
        arguments = differentiable(sample.make(device, torch.float32))
        for call in (operator, operator.public):
            with torch.autocast(device, dtype=dtype):
                result = call(*arguments)
                assert result.dtype == (dtype if operator.autocast == "lower" else torch.float32)
                # Backward inside autocast too, as it must not cast again.
                result.sum().backward()
            assert all(tensor.grad.dtype == torch.float32 for tensor in tensors_of(arguments))
        with torch.autocast(device, dtype=dtype):
            assert operator(*in_float64(arguments)).dtype == torch.float64
            compiled = torch.compile(operator, fullgraph=True)(*arguments)
            assert compiled.dtype == (dtype if operator.autocast == "lower" else torch.float32)


@each_device()
@each_operator()
def test_flops_are_counted(operator, device):
    from torch.utils.flop_counter import FlopCounterMode

    sample = spread(operator, 2)[-1]
    arguments = sample.make(device, torch.float32)
    for call in (operator, operator.public):
        with FlopCounterMode(display=False) as counter:
            call(*arguments)
        shapes = [value.shape if isinstance(value, torch.Tensor) else value for value in arguments]
        assert counter.get_total_flops() == operator.flops(*shapes) > 0


@each_operator()
def test_meta_tensors_have_shapes_and_no_values(operator):
    for sample in table_of(operator):
        arguments = sample.make("cpu", torch.float32)
        real = operator(*arguments)
        meta = operator(*(value.to("meta") if isinstance(value, torch.Tensor) else value for value in arguments))
        assert meta.is_meta
        assert meta.shape == real.shape


@each_operator()
def test_each_argument_in_turn_made_wrong(operator):
    arguments = SAMPLES[operator.name].smallest.make("cpu", torch.float32)
    for place, value in enumerate(arguments):
        if isinstance(value, torch.Tensor):
            wrong = {
                "a list": [1.0],
                "None": None,
                "integers": value.long(),
                "complex numbers": value.to(torch.complex64),
            }
            if len(tensors_of(arguments)) > 1:
                wrong["another dtype"] = value.double()
                wrong["another device"] = value.to("meta")
                wrong["another rank"] = value[None]
        else:
            wrong = {"a string": "1", "None": None, "a tensor": torch.ones(2)}
        for kind, bad in wrong.items():
            kind_of_argument = str(operator.arguments[place].type)
            # PyTorch itself takes None for False.
            if bad is None and (kind_of_argument == "bool" or kind_of_argument.startswith("Optional")):
                continue
            with pytest.raises((TypeError, ValueError)) as raised:
                operator(*arguments[:place], bad, *arguments[place + 1 :])
            assert operator.name in str(raised.value), kind
            assert operator.arguments[place].name in str(raised.value) or kind.startswith("another"), kind
    with pytest.raises(TypeError, match="arguments"):
        operator(*arguments, 1)


@kernel
@each_operator()
def test_kernels_check_what_protects_memory_without_python(operator):
    # Integers where floating-point numbers are read, straight to the dispatcher.
    arguments = SAMPLES[operator.name].smallest.make("cpu", torch.float32)
    for name in (operator.public, operator.raw):
        with pytest.raises(RuntimeError):
            name(*(value.long() if isinstance(value, torch.Tensor) else value for value in arguments))


@each_operator()
def test_pickling_an_operator_gives_the_same_one(operator):
    import copy
    import pickle

    assert pickle.loads(pickle.dumps(operator)) is operator
    assert copy.deepcopy(operator) is operator


@each_device()
@each_operator()
def test_no_sample_falls_back(operator, device):
    before = torchgraft.fallbacks()
    for sample in table_of(operator):
        operator(*differentiable(sample.make(device, torch.float32))).sum().backward()
    assert torchgraft.fallbacks() == before
