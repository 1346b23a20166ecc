"""Times recurrences of drawn sizes, beside PyTorch's layers and the loop in Python that they mean.

On a GPU all are timed as CUDA graphs, so that launches cost nothing: by the GPU's clock, the median of some replays.
PyTorch's layers are cuDNN's there, and may use tf32 for float32, as PyTorch lets them by default. On a CPU they run in
turn, and the least time of each counts.

    python benchmarks/recurrences.py benchmarks/results/h200/recurrences.json --rows 24 --seed 1
    python benchmarks/recurrences.py benchmarks/results/cpu/recurrences.json --device cpu --threads 2
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

from torchgraft import Cell, Recurrence
from torchgraft.machine.environment import describe_environment
from torchgraft.machine.figures import as_json

_REPLAYS = 9
_ROUNDS = 5
_DTYPES = {"cuda": ("bfloat16", "float16", "float32"), "cpu": ("float32",)}
# Sizes with more numbers of gates than this are drawn again, and on a CPU those with more multiplications forward.
_MOST_NUMBERS = 1 << 27
_MOST_PRODUCTS = 1 << 31

Run = Callable[[], Any]
# A published network of neuroscience: steps, rows, inputs, units.
_LEAKY = (100, 64, 256, 256)


def _lstm(gates: Sequence[Tensor], message_gates: Sequence[Tensor], h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, z, o = (gate + more for gate, more in zip(gates, message_gates, strict=True))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(z)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(gates: Sequence[Tensor], message_gates: Sequence[Tensor], h: Tensor) -> Tensor:
    r, z = torch.sigmoid(gates[0] + message_gates[0]), torch.sigmoid(gates[1] + message_gates[1])
    n = torch.tanh(gates[2] + r * message_gates[2])
    return (1 - z) * n + z * h


def _leaky(gates: Sequence[Tensor], message_gates: Sequence[Tensor], h: Tensor) -> Tensor:
    return 0.9 * h + 0.1 * torch.tanh(gates[0] + message_gates[0])


def _graphed(run: Run) -> float:
    """Microseconds of a function as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(_REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    return statistics.median(times)


def _passes(function: Callable[[], Tensor], leaves: Sequence[Tensor], grad: Tensor) -> list[Run]:
    """A forward pass, and one with all gradients."""

    def forward() -> Tensor:
        with torch.no_grad():
            return function()

    return [forward, lambda: torch.autograd.grad(function(), leaves, grad)]


def _times(runs: Sequence[Run], device: str) -> list[float]:
    """Microseconds of each."""
    if device == "cuda":
        return [_graphed(run) for run in runs]
    least = [math.inf] * len(runs)
    for _ in range(1 + _ROUNDS):
        for place, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            least[place] = min(least[place], 1e6 * (time.perf_counter() - begin))
    return least


def _draw(random_numbers: random.Random, device: str) -> tuple[int, int, int, int]:
    while True:
        steps, batch, features, units = (
            round(2 ** random_numbers.uniform(math.log2(low), math.log2(high)))
            for low, high in ((16, 500), (1, 512), (32, 512), (32, 1536))
        )
        numbers = steps * batch * units * 4
        if numbers <= _MOST_NUMBERS and (device == "cuda" or numbers * (features + units) <= _MOST_PRODUCTS):
            return steps, batch, features, units


class _Case:
    """The tensors of a recurrence of one size and dtype."""

    def __init__(
        self, recurrence: Recurrence, sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str
    ) -> None:
        steps, batch, features, units = sizes
        gates, bound = recurrence.cell.gates, units**-0.5

        def weight(*shape: int) -> Tensor:
            return torch.empty(shape, device=device).uniform_(-bound, bound).to(dtype).requires_grad_()

        self.recurrence, self.sizes, self.dtype = recurrence, sizes, dtype
        self.input = torch.randn(steps, batch, features, device=device).to(dtype).requires_grad_()
        self.weights = [weight(gates * units, features), weight(gates * units, units), weight(gates * units)]
        self.message_bias = [weight(gates * units)] * recurrence.cell.gates_apart
        self.grad = torch.randn(steps, batch, units, device=device).to(dtype)

    def ours(self) -> list[Run]:
        """The passes of the recurrence."""
        message_bias = self.message_bias[0] if self.message_bias else None

        def run() -> Tensor:
            output: Tensor = self.recurrence(self.input, *self.weights, message_bias=message_bias)[0]
            return output

        return _passes(run, [self.input, *self.weights, *self.message_bias], self.grad)

    def of_layer(self, layer: nn.Module) -> list[Run]:
        """Those of PyTorch's layer."""

        def run() -> Tensor:
            output: Tensor = layer(self.input)[0]
            return output

        return _passes(run, [self.input, *layer.parameters()], self.grad)

    def loop(self) -> list[Run]:
        """Those of the cell in a loop in Python, a step after the other."""
        cell, (steps, batch, _, units) = self.recurrence.cell, self.sizes

        def run() -> Tensor:
            states = [self.input.new_zeros(batch, units) for _ in range(cell.states)]
            gates = self.input @ self.weights[0].T + self.weights[2]
            outputs = []
            for step in range(steps):
                message_gates = cell.message(states) @ self.weights[1].T
                states = list(cell.step(gates[step].chunk(cell.gates, -1), message_gates.chunk(cell.gates, -1), states))
                outputs.append(cell.output(states))
            return torch.stack(outputs)

        return _passes(run, [self.input, *self.weights], self.grad)


def main() -> None:
    """Draws sizes, times them, and writes a file of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=list(_DTYPES), default="cuda")
    parser.add_argument("--threads", type=int, help="of a CPU, instead of PyTorch's own number")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    device, rival = given.device, "cudnn" if given.device == "cuda" else "pytorch"
    kinds = {
        "lstm": (Recurrence("measured::lstm", Cell(_lstm, gates=4, states=2)), nn.LSTM),
        "gru": (Recurrence("measured::gru", Cell(_gru, gates=3, states=1)), nn.GRU),
    }
    leaky = Recurrence("measured::leaky", Cell(_leaky, gates=1, states=1))
    random_numbers = random.Random(given.seed)
    rows = []
    for sizes in track([_draw(random_numbers, device) for _ in range(given.rows)], "timing"):
        for name, (recurrence, layer) in kinds.items():
            for dtype in _DTYPES[device]:
                case = _Case(recurrence, sizes, getattr(torch, dtype), device)
                theirs = case.of_layer(layer(*sizes[2:]).to(device, case.dtype))
                times = _times([*case.ours(), *theirs], device)
                rows.append({"cell": name, "sizes": list(sizes), "dtype": dtype, "ours": times[:2], rival: times[2:]})
    for dtype in _DTYPES[device]:
        case = _Case(leaky, _LEAKY, getattr(torch, dtype), device)
        times = _times([*case.ours(), *case.loop()], device)
        rows.append({"cell": "leaky", "sizes": list(_LEAKY), "dtype": dtype, "ours": times[:2], "loop": times[2:]})
    figures = {"environment": asdict(describe_environment(device)), "seed": given.seed, "rows": rows}
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(as_json(figures))
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
