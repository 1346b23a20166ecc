"""The switches of float32's precision: read in every state that their two names can be in, and restored."""

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch

import torchgraft
from torchgraft.kernels import precision
from torchgraft.nn import LLTM

# What a program may have said, and what PyTorch's recurrent layers then compute products of float32 in.
STATES = {
    "": "tf32",
    "cudnn.allow_tf32 = False": "ieee",
    "cudnn.allow_tf32 = True": "tf32",
    "cudnn.rnn.fp32_precision = 'ieee'": "ieee",
    "cudnn.rnn.fp32_precision = 'tf32'": "tf32",
    "cudnn.fp32_precision = 'ieee'": "ieee",
    "fp32_precision = 'ieee'": "ieee",
    "fp32_precision = 'tf32'": "tf32",
    "cudnn.allow_tf32 = False; torch.backends.cudnn.rnn.fp32_precision = 'tf32'": "tf32",
    "cudnn.rnn.fp32_precision = 'ieee'; torch.backends.cudnn.conv.fp32_precision = 'tf32'": "ieee",
    "cudnn.rnn.fp32_precision = 'tf32'; torch.backends.cudnn.allow_tf32 = False": "ieee",
    "cuda.matmul.allow_tf32 = True": "tf32",
    "cuda.matmul.fp32_precision = 'tf32'": "tf32",
}

ASK = """
import os

import torch
from torchgraft.kernels import precision

def state():
    backends = torch.backends
    found = [each.fp32_precision for each in (backends, backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn)]
    found.append(backends.cuda.matmul.fp32_precision)
    readers = (lambda: backends.cudnn.allow_tf32, lambda: backends.cuda.matmul.allow_tf32)
    for read in (*readers, torch.get_float32_matmul_precision):
        try:
            found.append(read())
        except RuntimeError:
            found.append("it raises")
    return found

def ask(said, expected):
    if said:
        exec("torch.backends." + said)
    before = state()
    assert precision.recurrent_precision() == expected, (said, before)
    with precision.equal_precision():
        assert precision.recurrent_precision() == "ieee", said
        assert torch.backends.cudnn.conv.fp32_precision != "tf32", said
        assert torch.backends.cuda.matmul.fp32_precision != "tf32", said
        with precision.tf32_permitted():
            assert precision.recurrent_precision() == "tf32", said
            assert torch.backends.cudnn.conv.fp32_precision == "tf32", said
            assert torch.backends.cuda.matmul.fp32_precision == "tf32", said
        assert precision.recurrent_precision() == "ieee", said
        assert torch.backends.cuda.matmul.fp32_precision != "tf32", said
    # What could not be read before may be read now.
    pairs = zip(before, state())
    assert all(old in (new, "it raises") for old, new in pairs), (said, before, state())
    before, told = state(), []
    with precision._RecurrentProducts(lambda products: told.append(products) or 0, precision.recurrent_precision()):
        assert state() == before, said
    assert state() == before, said
    assert told == [{"ieee": 1, "tf32": 2}[expected], 0], said

for said, expected in STATES.items():
    # What was said cannot all be taken back: each is said in a process of its own.
    child = os.fork()
    if child == 0:
        ask(said, expected)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, said
print("all asked")
"""


def test_it_is_read_and_restored_in_every_state_that_a_program_can_bring_it_into():
    command = [sys.executable, "-c", f"STATES = {STATES!r}\n{ASK}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "all asked\n", done.stderr


@pytest.fixture
def matmul():
    """The switch of matrix products; it and all others are afterwards as they were."""
    switches = precision._switches()
    before = [switch.read() for switch in switches]
    yield torch.backends.cuda.matmul
    precision._restore(switches, before)


@pytest.mark.parametrize("said", [True, False, (False, False)])
def test_halves_are_added_up_in_float32_in_that_scope_and_as_before_after_it(said):
    matmul = torch.backends.cuda.matmul
    names = "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"

    def state():
        return [(getattr(matmul, name), getattr(matmul, f"{name}_split_k")) for name in names]

    before = state()
    try:
        for name in names:
            setattr(matmul, name, said)
        said_before = state()
        with precision.exact_reductions():
            assert not any(permitted for permitted, _ in state())
        assert state() == said_before
        assert said_before[0][0] is (said if isinstance(said, bool) else said[0])
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(matmul, name, value)
    assert state() == before


@pytest.fixture
def told(monkeypatch):
    """Has products on the CPU ask as those on a GPU do; what the library of kernels was told, on which thread."""
    said = []

    def set_products(products):
        said.append((products, threading.get_ident()))
        return 0

    monkeypatch.setattr(precision, "_products_setter", lambda: set_products)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    return said


def test_products_of_recurrent_layers_are_computed_in_that_scope_forward_and_back(told):
    layer = LLTM(3, 4, num_layers=2)
    output, _ = layer(torch.randn(5, 2, 3))
    inside = {"ieee": 1, "tf32": 2}[precision.recurrent_precision()]
    assert [products for products, _ in told] == 2 * [inside, 0]
    output.sum().backward()
    assert [products for products, _ in told] == 4 * [inside, 0]
    with precision.recurrent_products(torch.randn(2, dtype=torch.float64)):
        assert len(told) == 8


def test_no_switch_of_the_process_changes_and_what_another_thread_sets_stays(told, matmul):
    seen = []

    def by_another_thread():
        seen.append(matmul.fp32_precision)
        matmul.fp32_precision = "tf32"
        seen.append(matmul.fp32_precision)

    matmul.fp32_precision = "ieee"
    with precision.recurrent_products(torch.randn(2)):
        other = threading.Thread(target=by_another_thread)
        other.start()
        other.join()
        assert matmul.fp32_precision == "tf32"
    assert seen == ["ieee", "tf32"]
    assert matmul.fp32_precision == "tf32"
    assert {thread for _, thread in told} == {threading.get_ident()}


def test_scopes_lie_in_each_other(monkeypatch):
    now = [0]

    def set_products(products):
        before, now[0] = now[0], products
        return before

    with precision._RecurrentProducts(set_products, "ieee"):
        with precision._RecurrentProducts(set_products, "tf32"):
            assert now == [2]
        assert now == [1]
    assert now == [0]


def test_a_tool_that_replaces_products_of_pytorch_has_all_of_them(told):
    with precision.products_by_pytorch(), precision.recurrent_products(torch.randn(2)):
        pass
    assert told == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here")
@pytest.mark.parametrize("function", ["lltm", "lltm_cell"])
def test_on_a_gpu_products_follow_the_switch_of_recurrent_layers_alone(function, matmul):
    """Whatever another thread does to the switch of matrix products meanwhile."""
    recurrent: Any = torch.backends.cudnn.rnn
    generator = torch.Generator().manual_seed(0)
    # Larger than what a cell's one kernel takes.
    steps, batch, features, units = 3, 300, 520, 530
    first = (steps, batch, features) if function == "lltm" else (batch, features)
    shapes = (first, (batch, units), (batch, units), (3 * units, features), (3 * units, units))
    scales = (1.0, 1.0, 1.0, features**-0.5, units**-0.5)
    exact = [
        scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape, scale in zip(shapes, scales, strict=True)
    ]

    def results(dtype, device):
        arguments = [each.to(device, dtype).requires_grad_() for each in exact]
        found = getattr(torchgraft, function)(*arguments)
        return [
            each.detach() for each in (*found, *torch.autograd.grad([sum(each.sum() for each in found)], arguments))
        ]

    expected = results(torch.float64, "cpu")

    def error(found):
        pairs = zip(found, expected, strict=True)
        return max(float((one.cpu() - other).norm() / other.norm()) for one, other in pairs)

    stop = threading.Event()

    def turn():
        while not stop.is_set():
            for value in ("tf32", "ieee"):
                matmul.fp32_precision = value

    errors = {}
    for permitted in ("ieee", "tf32"):
        recurrent.fp32_precision = permitted
        at_rest = []
        for value in ("tf32", "ieee"):
            matmul.fp32_precision = value
            at_rest.append(results(torch.float32, "cuda"))
            assert matmul.fp32_precision == value
        stop.clear()
        other = threading.Thread(target=turn)
        other.start()
        try:
            meanwhile = [results(torch.float32, "cuda") for _ in range(20)]
        finally:
            stop.set()
            other.join()
        assert matmul.fp32_precision == "ieee"
        for each in (*at_rest, *meanwhile):
            assert all(torch.equal(one, other) for one, other in zip(each, at_rest[0], strict=True)), permitted
        errors[permitted] = error(at_rest[0])
    assert errors["ieee"] < 64 * torch.finfo(torch.float32).eps
    assert errors["ieee"] * 8 < errors["tf32"] < 2.0**-8
