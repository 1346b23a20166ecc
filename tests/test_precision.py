"""The switches of float32's precision: read in every state that their two names can be in, and restored."""

import subprocess
import sys
import threading

import pytest
import torch

from torchgraft import precision
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
from torchgraft import precision

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
    with precision._recurrent_products:
        assert torch.backends.cuda.matmul.fp32_precision == expected, said
    assert state()[:5] == before[:5], (said, before, state())

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
def entered(monkeypatch):
    """Has products on the CPU ask as those on a GPU do; says how often, and whether all have left."""

    class Scope(precision._RecurrentProducts):
        times = 0

        def __enter__(self):
            super().__enter__()
            self.times += 1

    scope = Scope()
    monkeypatch.setattr(precision, "_recurrent_products", scope)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    yield scope
    assert scope._inside == 0


def test_products_of_recurrent_layers_are_computed_in_that_scope_forward_and_back(entered):
    before = torch.backends.cuda.matmul.fp32_precision
    layer = LLTM(3, 4, num_layers=2)
    output, _ = layer(torch.randn(5, 2, 3))
    assert entered.times == 2
    output.sum().backward()
    assert entered.times == 4
    assert torch.backends.cuda.matmul.fp32_precision == before
    with precision.recurrent_products(torch.randn(2, dtype=torch.float64)):
        assert entered.times == 4


def test_the_last_of_several_threads_restores_it():
    scope, before = precision._RecurrentProducts(), torch.backends.cuda.matmul.fp32_precision
    first_is_in, second_is_in, first_is_out = (threading.Event() for _ in range(3))
    seen = []

    def first():
        with scope:
            first_is_in.set()
            second_is_in.wait(10)
        first_is_out.set()

    def second():
        first_is_in.wait(10)
        with scope:
            second_is_in.set()
            first_is_out.wait(10)
            seen.append(torch.backends.cuda.matmul.fp32_precision)

    threads = [threading.Thread(target=each) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [precision.recurrent_precision()]
    assert torch.backends.cuda.matmul.fp32_precision == before
