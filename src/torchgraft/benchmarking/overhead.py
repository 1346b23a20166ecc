"""Microseconds that a call of an operator costs beyond its kernel, and a layer beside the one that it replaces.

On tensors of a few elements a kernel takes no time, so that what is left is the call: the front door that explains
errors and chooses a path, and the autograd Function around it. Each is set beside the least that PyTorch lets a call
cost. All paths are timed in turn, in rounds, so that a drift of the clock meets all of them alike; of each the median
of a round is kept, and of these the smallest.
"""

import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer

from torchgraft.benchmarking import load
from torchgraft.benchmarking.layers import LAYER_GOAL, LayerOverhead, layer_timers, layers_from, layers_table
from torchgraft.benchmarking.provenance import Provenance, provenance_of_calls
from torchgraft.benchmarking.table import Table
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import as_tuple, single
from torchgraft.kernels.fallback import Fallback, PerformanceWarning, fallbacks
from torchgraft.machine.environment import Environment, describe_environment
from torchgraft.operator import Operator
from torchgraft.sampling import ReplacedLayer

# Microseconds that a call may cost beyond what PyTorch's own machinery costs.
FRONT_DOOR_GOAL = 1.5
BACKWARD_GOAL = 20.0

# Figures of an operator that follow from what was measured.
_DERIVED = ("front_door", "front_door_reached", "yardstick", "excess", "excess_reached")

# Many short blocks: on a busy machine some fall between two interruptions.
_ROUNDS = 25
_BLOCKS = 5


class CalledOperator(NamedTuple):
    """An operator to time, and the arguments to call it with: small ones, or the kernel is timed too.

    Attributes:
        replaced: layers to time beside the layers made of the operator.
    """

    name: str
    operator: Operator
    arguments: tuple[Any, ...]
    replaced: Sequence[ReplacedLayer] = ()

    @property
    def declaration(self) -> Declaration:
        """The declaration of the operator."""
        return self.operator.declaration


@dataclass(frozen=True)
class OperatorOverhead:
    """The cost of the paths of one operator, in microseconds a call.

    Attributes:
        name: the operator.
        raw: the kernel under its raw name, as cheap as a call of it can be; the reference where it is computed by that.
        call: the Operator called without a gradient.
        forward: the Operator called with a gradient recorded.
        backward: that, and the gradients of all its differentiable inputs.
        function: an empty `torch.autograd.Function` with as many differentiable inputs, forward and backward.
        kernels: the calls that PyTorch's dispatcher saw in `backward`, made again without autograd.
        reference: the reference in place of the Operator, forward and backward.
    """

    name: str
    raw: float
    call: float
    forward: float
    backward: float
    function: float
    kernels: float
    reference: float

    @property
    def front_door(self) -> float:
        """The microseconds of calling the Operator beyond those of its kernel."""
        return self.call - self.raw

    @property
    def yardstick(self) -> float:
        """The least that a forward and backward with these kernels can cost through an autograd Function."""
        return self.function + self.kernels

    @property
    def excess(self) -> float:
        """The microseconds of forward and backward beyond those of the yardstick."""
        return self.backward - self.yardstick

    @property
    def front_door_reached(self) -> bool:
        """Whether the front door costs no more than its goal."""
        return self.front_door <= FRONT_DOOR_GOAL

    @property
    def excess_reached(self) -> bool:
        """Whether forward and backward cost no more than their goal."""
        return self.excess <= BACKWARD_GOAL

    def cells(self) -> list[str]:
        """A row of the table of `Overhead`."""
        return [
            self.name,
            f"{self.raw:.1f}",
            f"{self.call:.1f}",
            f"{self.front_door:.1f} {_mark(self.front_door_reached)}",
            f"{self.forward:.1f}",
            f"{self.backward:.1f}",
            f"{self.yardstick:.1f}",
            f"{self.excess:.1f} {_mark(self.excess_reached)}",
            f"{self.reference:.1f}",
        ]


@dataclass(frozen=True)
class Overhead:
    """The cost of calls: fixed yardsticks by name, operators, layers, and the operators that had no kernel to call.

    `load` is what was known of other programs, and `others` how many processors they kept busy meanwhile, if that is
    known.
    """

    environment: Environment
    yardsticks: dict[str, float]
    operators: tuple[OperatorOverhead, ...]
    layers: tuple[LayerOverhead, ...]
    fallbacks: tuple[Fallback, ...]
    provenance: Provenance
    load: load.Load
    others: float | None

    @property
    def reached(self) -> bool:
        """Whether every operator reaches both goals, and every layer its own in each mode."""
        layers = all(costs.reached for each in self.layers for costs in each.costs.values())
        return layers and all(each.front_door_reached and each.excess_reached for each in self.operators)

    def as_dict(self) -> dict[str, Any]:
        """All figures, for a machine to read."""
        return {
            "environment": asdict(self.environment),
            "provenance": asdict(self.provenance),
            "unit": "microseconds a call",
            "goals": {"front_door": FRONT_DOOR_GOAL, "excess": BACKWARD_GOAL, "layer": LAYER_GOAL},
            "yardsticks": self.yardsticks,
            "operators": [asdict(each) | {name: getattr(each, name) for name in _DERIVED} for each in self.operators],
            "layers": [each.as_dict() for each in self.layers],
            "reached": self.reached,
            "fallbacks": [each._asdict() for each in self.fallbacks],
            "load": asdict(self.load) | {"others": self.others},
        }

    def tables(self) -> tuple[Table, Table]:
        """The figures of operators, and those of layers, for a person to read."""
        return self._operators_table(), layers_table(self.layers, self.environment)

    def _operators_table(self) -> Table:
        header = ["", "kernel", "call", "front door", "forward", "+ backward", "yardstick", "excess", "reference"]
        rows = [[name, f"{cost:.1f}", *("",) * (len(header) - 2)] for name, cost in self.yardsticks.items()]
        rows += [each.cells() for each in self.operators]
        notes = [
            f"front door = call - kernel, at most {FRONT_DOOR_GOAL}; "
            f"excess = forward and backward - yardstick, at most {BACKWARD_GOAL:.0f}. "
            "The yardstick is an empty autograd.Function with as many differentiable inputs, forward and backward, "
            "and the kernels that the operator runs in both. The reference is timed forward and backward.",
            *(f"{each.operator} was timed on its reference: {each.reason}" for each in self.fallbacks),
            *filter(None, [self.load.doubt("These calls were timed", [self.others])]),
            str(self.environment),
        ]
        return Table("What a call costs, in microseconds", header, rows, notes)


def measure_overhead(
    subjects: Sequence[CalledOperator],
    seconds: float = 15.0,
    device: str = "cpu",
    *,
    on_wait: Callable[[str], None] = lambda why: None,
    watch: load.LoadWatch | None = None,
) -> Overhead:
    """Times every path of every subject, and every layer beside the one that it replaces, with one thread on the CPU.

    Args:
        subjects: operators and their arguments, at least one tensor of each of a floating dtype.
        seconds: how long to measure in all, about.
        device: where the arguments are, and where layers compute; on a GPU what a call costs the host is timed.
        on_wait: called with the reason, again and again, while it waits for other programs to end.
        watch: looks at other programs; None: at those of this machine.

    Returns:
        What the calls cost, with `torch.add` as a fixed yardstick.
    """
    eight = torch.ones(8, device=device)
    timers = {("yardstick", "torch.add"): Timer("add(eight, eight)", globals={"add": torch.add, "eight": eight})}
    replaced = [layer for subject in subjects for layer in subject.replaced]
    before = fallbacks()
    with warnings.catch_warnings():
        # What ran on a reference is in the result.
        warnings.simplefilter("ignore", PerformanceWarning)
        for subject in subjects:
            timers |= {(subject.name, path): timer for path, timer in _make_timers(subject).items()}
        timers |= layer_timers(replaced, torch.device(device))
        # One thread of the host is timed, wherever tensors are.
        watch = watch or load.LoadWatch(torch.device("cpu"), load.PATIENCE)
        watch.wait(on_wait)
        costs, others = time_in_turn(timers, seconds, watch, on_wait)
    names = {subject.operator.qualified_name for subject in subjects}
    return Overhead(
        replace(describe_environment(device), threads=1),
        {path: cost for (name, path), cost in costs.items() if name == "yardstick"},
        tuple(
            OperatorOverhead(
                subject.name, **{path: cost for (name, path), cost in costs.items() if name == subject.name}
            )
            for subject in subjects
        ),
        layers_from(replaced, costs),
        tuple(each for each in fallbacks() if each.operator in names and each not in before),
        provenance_of_calls(),
        watch.load,
        others,
    )


def time_in_turn(
    timers: dict[tuple[str, str], Timer], seconds: float, watch: load.LoadWatch, on_wait: Callable[[str], None]
) -> tuple[dict[tuple[str, str], float], float | None]:
    """Microseconds a call of each timer's statement: the smallest of the medians of all rounds.

    Beside them how many processors others kept busy in the quietest round, as that is the one that counts.
    """
    block = seconds / len(timers) / _ROUNDS / _BLOCKS
    medians = {key: timer.blocked_autorange(min_run_time=block).median for key, timer in timers.items()}
    counts = {key: max(1, round(block / median)) for key, median in medians.items()}
    # If calls take longer than their share of the time, there are fewer blocks.
    of_all = sum(counts[key] * median for key, median in medians.items())
    blocks = max(1, min(_BLOCKS, round(seconds / _ROUNDS / of_all)))
    costs = dict.fromkeys(timers, float("inf"))
    quietest: float | None = None
    for _ in range(_ROUNDS):
        began = watch.look()
        for key, timer in timers.items():
            median = statistics.median(timer.timeit(counts[key]).median for _ in range(blocks))
            costs[key] = min(costs[key], median * 1e6)
        others = load.others_between(began, watch.look())
        if others is not None:
            quietest = others if quietest is None else min(quietest, others)
        if watch.load.is_too_much(others):
            watch.wait(on_wait)
    return costs, quietest


class KernelCall(NamedTuple):
    """A call below autograd."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def kernel_calls(subject: CalledOperator) -> list[KernelCall]:
    """Runs a subject forward and backward; the calls that the dispatcher saw, on arguments that need no gradient."""
    recording = _Recording(subject)
    with _Recorder() as recorder:
        torch.autograd.grad(
            tree_leaves(subject.operator(*recording.arguments)),
            recording.inputs,
            recording.output_grads,
            allow_unused=True,
        )
    return recorder.calls


class _Recorder(TorchDispatchMode):
    """Notes every call that the dispatcher makes, and lets it pass.

    While it looks operators go by their public names; a call that nobody looks at takes the raw one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[KernelCall] = []
        self._operators = {each.public: each for each in Operator.registered.values()}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Iterable[type],
        arguments: Sequence[Any] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        keywords = keywords or {}
        operator = self._operators.get(function)
        if operator is None:
            self.calls.append(KernelCall(function, _detached(arguments), keywords))
        else:
            # The raw name has no defaults, and PyTorch leaves out what equals one.
            self.calls.append(
                KernelCall(operator.raw, _detached(operator.declaration.complete(arguments, keywords)), {})
            )
        return function(*arguments, **keywords)


class _Recording:
    """The arguments of a subject with a gradient recorded for each that can have one."""

    def __init__(self, subject: CalledOperator) -> None:
        declared = subject.operator.declaration.arguments
        self.arguments = tuple(
            value.detach().clone().requires_grad_(value.is_floating_point() and not argument.mutated)
            if isinstance(value, Tensor)
            else value
            for argument, value in zip(declared, subject.arguments, strict=False)
        )
        self.inputs = tuple(value for value in self.arguments if isinstance(value, Tensor) and value.requires_grad)
        outputs = tree_leaves(subject.operator(*self.arguments))
        self.output_grads = tuple(torch.ones_like(output) for output in outputs)


def _make_timers(subject: CalledOperator) -> dict[str, Timer]:
    """A timer a path, under the names of `OperatorOverhead`."""
    operator, plain, recording = subject.operator, _detached(subject.arguments), _Recording(subject)
    arguments, inputs, output_grads = recording.arguments, recording.inputs, recording.output_grads
    empty, reference = _make_empty_function(inputs), _visible_reference(operator)
    kernel = reference if operator.declaration.kernels == "reference" else operator.raw
    return {
        "raw": Timer("f(*arguments)", globals={"f": kernel, "arguments": plain}),
        "call": Timer("f(*arguments)", globals={"f": operator, "arguments": plain}),
        "forward": Timer("f(*arguments)", globals={"f": operator, "arguments": arguments}),
        "backward": _backward_timer(operator, arguments, inputs, output_grads),
        "function": _backward_timer(empty, inputs, inputs, (torch.ones(()),)),
        "kernels": _replay_timer(kernel_calls(subject)),
        "reference": _backward_timer(reference, arguments, inputs, output_grads),
    }


def _backward_timer(
    function: Callable[..., Any], arguments: Sequence[Any], inputs: Sequence[Tensor], output_grads: Sequence[Tensor]
) -> Timer:
    return Timer(
        "grad(f(*arguments), inputs, output_grads, allow_unused=True)",
        globals={
            "grad": torch.autograd.grad,
            "f": function,
            "arguments": arguments,
            "inputs": inputs,
            "output_grads": output_grads,
        },
    )


def _replay_timer(calls: Sequence[KernelCall]) -> Timer:
    # A statement a call: a loop would be charged to the kernels.
    statement = "; ".join(f"f{i}(*arguments{i}, **keywords{i})" for i in range(len(calls)))
    variables: dict[str, Any] = {}
    for i, call in enumerate(calls):
        variables |= {f"f{i}": call.function, f"arguments{i}": call.arguments, f"keywords{i}": call.keywords}
    return Timer(statement, globals=variables)


def _make_empty_function(inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """An autograd Function that passes ready-made results and gradients on."""
    gradients = tuple(torch.zeros_like(value) for value in inputs)
    output = torch.zeros(())

    class Empty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: Tensor) -> Tensor:
            # The same one at each call: making a result is the kernel's part.
            return output

        @staticmethod
        def backward(ctx: Any, *output_grads: Tensor) -> Any:
            return gradients

    return Empty.apply


def _visible_reference(operator: Operator) -> Callable[..., Any]:
    if operator.declaration.mutates:
        # The reference returns the new values of what is written to before the results.
        count = len(operator.declaration.lists)
        return lambda *arguments: single(as_tuple(operator.declaration.reference(*arguments))[-count:])
    if operator.declaration.visible_outputs == operator.declaration.output_count:
        return operator.declaration.reference
    return lambda *arguments: operator.declaration.visible(operator.declaration.reference(*arguments))


def _detached(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(value.detach() if isinstance(value, Tensor) else value for value in values)


def _mark(reached: bool) -> str:
    return "✓" if reached else "✗"
