"""Counts the depthwise convolutions of public models, and how many of them `torchgraft.graft` reaches.

Models of six libraries are built on the meta device: no weights, no memory, no downloads. A forward pass, also without
memory, shows whether a model calls each depthwise layer as a module, or gives its weight to a function, where no change
of the layer matters. `torchgraft.graft_report` says what graft reaches. The libraries are in requirements/census.txt;
`--no-deps` keeps the PyTorch that is installed, and a folder of their own keeps them apart:

    python -m pip install --no-deps --target build/census_packages -r requirements/census.txt
    PYTHONPATH=build/census_packages python benchmarks/census.py --json benchmarks/results/census.json
    python tools/docs/census.py

A few processes build the models. A model that takes too long, or that ends its process, is left out with the reason.
Each model adds a row to a file, so that a census that was stopped goes on. The file starts anew when torchgraft, this
script or a library has changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch.nn.modules import conv
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from census_models import LIBRARIES, Inputs, declare_torchvision_operators
from torchgraft import graft_report
from torchgraft.machine.environment import describe_environment
from torchgraft.machine.figures import as_json

ROOT = Path(__file__).parent.parent
# Functions that libraries call, where they are installed, in place of a layer. No forward pass without memory does.
_CAUSAL = re.compile(r"\bcausal_conv1d_(?:fn|update)\b")
_AS_A_MODULE, _BY_A_FUNCTION, _NOT_CALLED, _UNKNOWN = "as a module", "by a function", "not called", "not known"


@dataclass(frozen=True)
class Layer:
    """The facts about a depthwise convolution that a census counts.

    Attributes:
        owner: the class of the layer; the class of the module that calls a function, where no layer holds the weight.
        computes: who wrote the computation: PyTorch's forward, the class's own, or no layer.
        called: as a module, by a function, not called by a forward pass, or not known.
        causal: whether the module around it hands its weight to causal_conv1d_fn where that is installed.
        left: why graft does not reach it; empty if it does.
    """

    owner: str
    rank: int
    transposed: bool
    computes: str
    called: str
    causal: bool
    kernel: str
    stride: str
    padding: str
    dilation: str
    multiplier: int
    bias: bool
    left: str


@dataclass(frozen=True)
class Count:
    """The depthwise convolutions of a model.

    Attributes:
        layers: how many there are by their facts.
        ran: whether the forward pass came to its end.
        why_not: the error of the first forward pass, if none did.
    """

    layers: Counter[Layer]
    ran: bool
    why_not: str


def _sizes(values: Iterable[int]) -> str:
    return "x".join(map(str, values))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def depthwise_layers(model: torch.nn.Module) -> dict[str, conv._ConvNd]:
    """Returns a model's convolution layers that have a group for each of several channels, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, conv._ConvNd) and module.groups == module.in_channels > 1
    }


def _has_pytorchs_forward(layer: conv._ConvNd) -> bool:
    """Whether a layer computes what its class in torch.nn computes: nothing on the way there is overridden."""
    kind = type_before_parametrizations(layer)
    base = next(each for each in kind.__mro__ if each.__module__ == conv.__name__)
    names = ("forward", "_conv_forward")
    own = any(getattr(kind, name, None) is not getattr(base, name, None) for name in names)
    return not own and not any(name in vars(layer) for name in names)


class Watch(TorchDispatchMode):
    """Watches a forward pass: which layers run as modules, and which convolutions run beside them.

    Values that a program asks of a tensor without memory are zeros, so that a branch on a value does not end the pass.

    Attributes:
        modules: names of the depthwise layers that were called as modules.
        functions: names of the depthwise layers whose parameters an operator got outside a call of the layer, each with
            the modules whose own code called a convolution with them.
        convolutions: depthwise convolutions with a weight that no layer holds: the module that runs, weight, arguments.
    """

    def __init__(self, model: torch.nn.Module, layers: dict[str, conv._ConvNd]) -> None:
        super().__init__()
        self.modules: set[str] = set()
        self.functions: dict[str, set[str]] = {}
        self.convolutions: set[tuple[str, tuple[Any, ...]]] = set()
        self._model = model
        self._names = {id(module): name for name, module in model.named_modules()}
        self._layers = {id(layer): name for name, layer in layers.items()}
        # The address of a storage, which views of a parameter share.
        self._held = {
            parameter.untyped_storage()._cdata: name
            for name, layer in layers.items()
            for parameter in layer.parameters()
        }
        self._running: list[torch.nn.Module] = []
        self._inside = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches what runs inside."""
        self._running, self._inside = [], 0
        hooks = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        autocast = torch.autocast

        def autocast_of_cpu(device_type: str, *arguments: Any, **named: Any) -> AbstractContextManager:
            """Stands for autocast, which does not know the meta device."""
            return autocast("cpu" if device_type == "meta" else device_type, *arguments, **named)

        try:
            with self, torch.no_grad(), mock.patch.object(torch, "autocast", autocast_of_cpu):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
        """Runs the model's forward pass; the error in short, empty if there is none."""
        try:
            with self.watching():
                self._model(*arguments, **named)
        except Exception as error:
            return short(error)
        return ""

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        self._running.append(module)
        if (name := self._layers.get(id(module))) is not None:
            self.modules.add(name)
            self._inside += 1

    def _leave(self, module: torch.nn.Module, arguments: Any, result: Any) -> None:
        # Modules that raised, and whose caller went on, are still there.
        while self._running:
            last = self._running.pop()
            self._inside -= id(last) in self._layers
            if last is module:
                return

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if not self._inside:
            self._look_at(function, arguments)
        if function is torch.ops.aten._local_scalar_dense.default and arguments[0].is_meta:
            return _zero(arguments[0].dtype)
        if function is torch.ops.aten.nonzero.default and arguments[0].is_meta:
            return arguments[0].new_empty((1, arguments[0].ndim), dtype=torch.long)
        return function(*arguments, **(named or {}))

    def _look_at(self, function: Any, arguments: tuple[Any, ...]) -> None:
        """Notes the parameters of layers and the convolutions that run outside the calls of depthwise layers."""
        held = {self._held.get(each.untyped_storage()._cdata) for each in arguments if isinstance(each, torch.Tensor)}
        held.discard(None)
        for name in held:
            self.functions.setdefault(name, set())
        if function is not torch.ops.aten.convolution.default:
            return
        around = self._names.get(id(self._running[-1]), "") if self._running else ""
        if held:
            for name in held:
                self.functions[name].add(around)
            return
        input, weight, bias, stride, padding, dilation, transposed, _, groups = arguments
        if groups == input.shape[1] > 1 and self._running:
            shape, settings = tuple(weight.shape), (tuple(stride), tuple(padding), tuple(dilation))
            self.convolutions.add((around, (shape, *settings, transposed, groups, bias is not None)))


def _zero(dtype: torch.dtype) -> bool | int | float:
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


@cache
def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def _is_causal(model: torch.nn.Module, name: str) -> bool:
    """Whether the class around a layer gives the layer's weight to a function named causal_conv1d_..."""
    around, _, attribute = name.rpartition(".")
    source = _source(type(model.get_submodule(around)))
    return bool(_CAUSAL.search(source)) and f".{attribute}.weight" in source


def count(model: torch.nn.Module, inputs: Iterable[Inputs] = ()) -> Count:
    """Counts the depthwise convolutions of a model, by their facts.

    Args:
        model: any module; its parameters may be on the meta device.
        inputs: arguments for forward passes, which run in turn until one came to its end and each layer was called.

    Returns:
        The count. Layers are told apart by name: a layer that a model holds twice counts once.
    """
    layers = depthwise_layers(model)
    watch = Watch(model, layers)
    # The first inputs are the likeliest, so the first error is the one to tell. A model of texts and images may need
    # other inputs for its other layers.
    ran, why_not = False, ""
    for arguments, named in inputs:
        error = watch.run(arguments, named)
        ran, why_not = ran or not error, why_not or error
        if ran and layers.keys() <= watch.modules | watch.functions.keys():
            break
    report = graft_report(model)
    reached = {*report.grafted, *report.graftable}
    counts: Counter[Layer] = Counter()
    called = _calls(model, layers, watch, ran)
    for name, layer in layers.items():
        left = "" if name in reached else report.left.get(name, "graft_report does not name it")
        by = watch.functions.get(name)
        if by and by <= reached:
            left = ""
        elif not left and called[name] == _BY_A_FUNCTION:
            left = "graft_report names it, but a function gets its weight, and the layer is not called"
        is_padded = isinstance(layer.padding, str)
        padding = layer.padding if is_padded else _sizes(layer.padding)
        counts[
            Layer(
                owner=_name(type_before_parametrizations(layer)),
                rank=len(layer.kernel_size),
                transposed=layer.transposed,
                computes="PyTorch's forward" if _has_pytorchs_forward(layer) else "its own forward",
                called=called[name],
                causal=_is_causal(model, name),
                kernel=_sizes(layer.kernel_size),
                stride=_sizes(layer.stride),
                padding=padding if layer.padding_mode == "zeros" else f"{padding} {layer.padding_mode}",
                dilation=_sizes(layer.dilation),
                multiplier=layer.out_channels // layer.in_channels,
                bias=layer.bias is not None,
                left=left,
            )
        ] += 1
    for name, (weight, stride, padding, dilation, transposed, groups, has_bias) in watch.convolutions:
        counts[
            Layer(
                owner=_name(type(model.get_submodule(name))),
                rank=len(weight) - 2,
                transposed=transposed,
                computes="no layer",
                called=_BY_A_FUNCTION,
                causal=False,
                kernel=_sizes(weight[2:]),
                stride=_sizes(stride),
                padding=_sizes(padding),
                dilation=_sizes(dilation),
                multiplier=weight[1] if transposed else weight[0] // groups,
                bias=has_bias,
                left="" if name in reached else "no layer of torch.nn: a function gets the weight",
            )
        ] += 1
    return Count(counts, ran, "" if ran else why_not or "no inputs")


def _calls(model: torch.nn.Module, layers: dict[str, conv._ConvNd], watch: Watch, ran: bool) -> dict[str, str]:
    """How each layer is called.

    If no forward pass came to its end, layers that it did not reach are called like their likes that it reached. If it
    reached none, the source of the module around a layer may say that a function gets the weight.
    """
    called: dict[str, str] = {}
    likes: dict[tuple[type, type, str], str] = {}
    for name, layer in layers.items():
        if name in watch.modules:
            called[name] = _AS_A_MODULE
        elif name in watch.functions:
            called[name] = _BY_A_FUNCTION
        else:
            continue
        likes[_like(model, name, layer)] = called[name]
    for name, layer in layers.items():
        if name not in called:
            by_source = _BY_A_FUNCTION if _is_causal(model, name) else _UNKNOWN
            called[name] = _NOT_CALLED if ran else likes.get(_like(model, name, layer), by_source)
    return called


def _like(model: torch.nn.Module, name: str, layer: conv._ConvNd) -> tuple[type, type, str]:
    around, _, attribute = name.rpartition(".")
    return type(layer), type(model.get_submodule(around)) if name else type(None), attribute


def short(error: BaseException) -> str:
    """An error in one line: its type, and how its message begins."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:120]}" if lines else type(error).__name__


class _ParametersOnMeta(TorchFunctionMode):
    """Puts what `torch.empty` makes, which is parameters, on the meta device.

    Models that ask small tensors for their values while they are built find these in memory.
    """

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = dict(named or {})
        if function is torch.empty and named.get("device") is None:
            named["device"] = "meta"
        return function(*arguments, **named)


def build(library: str, name: str) -> torch.nn.Module:
    """Builds a model of a library without memory.

    Raises:
        Exception: the model's own.
    """
    try:
        with torch.device("meta"):
            model = LIBRARIES[library].build(name)
    except Exception:
        with _ParametersOnMeta():
            model = LIBRARIES[library].build(name)
    return model.to("meta").eval()


def _until_error(inputs: Iterable[Inputs]) -> Iterator[Inputs]:
    """Gives inputs until an error: a configuration may lack what the next ones are made from."""
    try:
        yield from inputs
    except Exception:
        return


def row_of(library: str, name: str) -> dict[str, Any]:
    """Returns the row of one model."""
    started = time.perf_counter()
    row: dict[str, Any] = {"library": library, "model": name}
    try:
        model = build(library, name)
    except Exception as error:
        return {**row, "not_built": short(error)}
    found = count(model, _until_error(LIBRARIES[library].inputs(name, model)))
    layers = [{**asdict(layer), "count": number} for layer, number in found.layers.items()]
    seconds = round(time.perf_counter() - started, 2)
    return {**row, "ran": found.ran, "why_not": found.why_not, "seconds": seconds, "layers": layers}


def _work(pipe: Connection, library: str) -> None:
    """Answers a list of names, and then rows by name, until nobody asks."""
    # Ctrl-C is the parent's affair, and what libraries print does not concern a census.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    declare_torchvision_operators()
    try:
        pipe.send(LIBRARIES[library].names())
    except Exception as error:
        pipe.send(short(error))
        return
    while (name := pipe.recv()) is not None:
        pipe.send(row_of(library, name))


class Worker:
    """A process that builds models of one library, made again when it has ended."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, self._library), daemon=True)
        self._process.start()
        other.close()
        try:
            self.names: list[str] | str = self._pipe.recv()
        except EOFError:
            self.names = "its process ended"

    def row(self, name: str, seconds: float) -> dict[str, Any]:
        """Returns the row of a model; one that says why, if there is none in so many seconds."""
        self._pipe.send(name)
        if not self._pipe.poll(seconds):
            reason = f"takes more than {seconds:g} s"
        else:
            try:
                return self._pipe.recv()
            except EOFError:
                reason = "its process ended"
        self.stop()
        self._start()
        return {"library": self._library, "model": name, "not_built": reason}

    def stop(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _version(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _state(libraries: dict[str, str]) -> str:
    """A hash of all that decides the rows: the Python of torchgraft, these scripts, and the libraries' versions."""
    paths = [*sorted((ROOT / "src").rglob("*.py")), Path(__file__), Path(__file__).with_name("census_models.py")]
    found = hashlib.sha256(json.dumps([torch.__version__, libraries]).encode())
    for path in paths:
        found.update(path.read_bytes())
    return found.hexdigest()


class Rows:
    """The rows of a census, in a file that grows by a line a model."""

    def __init__(self, path: Path, state: str) -> None:
        self._lock, self._path = Lock(), path
        lines = path.read_text().splitlines() if path.is_file() else []
        kept = lines[1:] if lines and json.loads(lines[0]) == {"state": state} else []
        # A census that was killed may have left half a line, and two at once each a row of a model.
        found = [json.loads(line) for line in kept if line.endswith("}")]
        self.rows = list({(row["library"], row["model"]): row for row in found}.values())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in ({"state": state}, *self.rows)))

    def add(self, row: dict[str, Any]) -> None:
        """Adds a row."""
        with self._lock:
            self.rows.append(row)
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def summarise(rows: Iterable[dict[str, Any]], versions: dict[str, str]) -> dict[str, Any]:
    """Returns the results: a row a library, a row a kind of layer in a library, and the models that were not built."""
    by_library: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_library[row["library"]].append(row)
    known = [library for library in LIBRARIES if library in by_library]
    return {
        "libraries": [_library_row(library, versions[library], by_library[library]) for library in known],
        "kinds": [kind for library in known for kind in _kind_rows(by_library[library])],
        "not_built": [
            {"library": library, "model": row["model"], "reason": row["not_built"]}
            for library in known
            for row in sorted(by_library[library], key=lambda row: row["model"])
            if "not_built" in row
        ],
    }


def _library_row(library: str, version: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    built = [row for row in rows if "not_built" not in row]
    shares = [{not layer["left"] for layer in row["layers"]} for row in built if row["layers"]]
    return {
        "library": library,
        "version": version,
        "models": len(rows),
        "built": len(built),
        "ran": sum(row["ran"] for row in built),
        "depthwise": len(shares),
        "whole": sum(share == {True} for share in shares),
        "part": sum(share == {True, False} for share in shares),
        "none": sum(share == {False} for share in shares),
    }


_KIND = ("library", "owner", "rank", "transposed", "computes", "called", "causal")
_FACTS = ("kernel", "stride", "padding", "dilation", "multiplier", "bias")


def _kind_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a kind of layer, the most frequent first."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        for layer in row.get("layers", ()):
            whole = {**layer, "library": row["library"], "model": row["model"]}
            kinds[tuple(whole[name] for name in _KIND)].append(whole)
    found = []
    for kind, layers in kinds.items():
        models = sorted({layer["model"] for layer in layers})
        number = sum(layer["count"] for layer in layers)
        left = _sums(layers, "left")
        reached = left.pop("", 0)
        facts = {name: _sums(layers, name) for name in _FACTS}
        found.append(
            {
                **dict(zip(_KIND, kind, strict=True)),
                "models": len(models),
                "layers": number,
                "reached": reached,
                "left": left,
                **facts,
                "examples": models[:3],
            }
        )
    return sorted(found, key=lambda each: (-each["layers"], *(str(each[name]) for name in _KIND)))


def _sums(layers: list[dict[str, Any]], fact: str) -> dict[str, int]:
    """How many layers have each value of a fact, the most frequent first."""
    found: Counter[str] = Counter()
    for layer in layers:
        found[str(layer[fact])] += layer["count"]
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _take(
    library: str, names: list[str], limit: float, rows: Rows, progress: Progress, task: Any, stopped: list[bool]
) -> None:
    """Adds the rows of some models, from one process."""
    worker = Worker(library)
    for name in names:
        if stopped:
            break
        rows.add(worker.row(name, limit))
        progress.advance(task)
    worker.stop()


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="The file of results to write.")] = None,
    library: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(LIBRARIES)}; default: all.")] = None,
    rows_file: Annotated[Path, typer.Option("--rows", help="The file that holds a row a model.")] = (
        ROOT / "build/census.jsonl"
    ),
    seconds: Annotated[float, typer.Option(help="The longest that a model may take.")] = 300,
    workers: Annotated[int, typer.Option(help="The number of processes.", min=1)] = 2,
    models: Annotated[int, typer.Option(help="After so many models a process is made again.", min=1)] = 150,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the rows of an earlier census.")] = False,
) -> None:
    """Count the depthwise convolutions of public models, and how many of them graft reaches."""
    console = Console(stderr=True)
    if unknown := sorted(set(library or ()) - set(LIBRARIES)):
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(LIBRARIES)}", param_hint="--library")
    os.environ["HF_HUB_OFFLINE"] = "1"
    installed = {name: version for name, each in LIBRARIES.items() if (version := _version(each.package))}
    versions = {name: installed.get(name, "") for name in library or LIBRARIES}
    for name, version in versions.items():
        if not version:
            console.print(f"{name} is not installed: install requirements/census.txt, or name others with --library")
            raise typer.Exit(1)
    if fresh:
        rows_file.unlink(missing_ok=True)
    # The hash is of all libraries: rows of the others stay if only some are named.
    rows = Rows(rows_file, _state(installed))
    known = {(row["library"], row["model"]) for row in rows.rows}
    batches = []
    for name in versions:
        lister = Worker(name)
        names = lister.names
        lister.stop()
        if isinstance(names, str):
            console.print(f"{name} cannot be imported: {names}")
            raise typer.Exit(1)
        wanted = [each for each in names if (name, each) not in known]
        batches += [(name, wanted[start : start + models]) for start in range(0, len(wanted), models)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    stopped: list[bool] = []
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(workers) as pool:
        task = progress.add_task("models", total=sum(len(names) for _, names in batches))
        futures = [pool.submit(_take, name, names, seconds, rows, progress, task, stopped) for name, names in batches]
        try:
            for future in futures:
                future.result()
        except BaseException:
            stopped.append(True)
            pool.shutdown(cancel_futures=True)
            raise
    found = summarise((row for row in rows.rows if row["library"] in versions), versions)
    _print(found, Console())
    if json_file is not None:
        environment = {**vars(describe_environment("cpu")), **versions}
        json_file.write_text(as_json({"environment": environment, **found}))
        console.print(f"{json_file}: written")


def _print(found: dict[str, Any], console: Console) -> None:
    """Prints the libraries' rows, and the layers by how they are called."""
    for each in found["libraries"]:
        console.print(
            f"{each['library']} {each['version']}: {each['built']} of {each['models']} models built, "
            f"{each['depthwise']} with depthwise convolutions: graft reaches {each['whole']} whole, "
            f"{each['part']} in part, {each['none']} not at all"
        )
    for called in sorted({kind["called"] for kind in found["kinds"]}):
        kinds = [kind for kind in found["kinds"] if kind["called"] == called]
        reached, layers = (sum(kind[name] for kind in kinds) for name in ("reached", "layers"))
        console.print(f"called {called}: graft reaches {reached:,} of {layers:,} layers")


if __name__ == "__main__":
    typer.run(main)
    sys.exit(0)
