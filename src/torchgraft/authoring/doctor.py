"""Whether this machine can run kernels, and build them; and what to do where it cannot: `graft doctor`."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from torchgraft import building, native
from torchgraft._private import pytorch
from torchgraft.building import cache
from torchgraft.building.compile import OLDEST_CMAKE_FOR_CUDA
from torchgraft.finding.samples import samples_of
from torchgraft.kernels.fallback import PerformanceWarning, fallbacks
from torchgraft.operator import Operator
from torchgraft.version import __version__

# ok; not there, which only some want; or not as it must be.
Status = Literal["ok", "absent", "wrong"]

# Under which every property holds; docs/versions has the reports.
NEWEST_TESTED = (2, 15)
_OLDEST_GCC = 11
_LEAST_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report: a thing, its state, and advice.

    Attributes:
        thing: its name.
        status: 'ok', 'absent' where only some want it, or 'wrong'.
        found: in a few words.
        advice: what to do; empty where nothing needs to be.
    """

    thing: str
    status: Status
    found: str
    advice: str = ""


def examine(packages: Sequence[str] = ()) -> list[Finding]:
    """Everything that is looked at, in the order in which a person would.

    Args:
        packages: names of installed packages with operators, which are imported, and called once each.
    """
    # First, so that their libraries are among those that were asked for.
    imported = [_imported(name) for name in packages]
    return [*_machine(), *imported, *(each for name in packages for each in _operators(name))]


def _machine() -> list[Finding]:
    found = [Finding("torchgraft", "ok", f"{__version__}, in {Path(__file__).parents[1]}")]
    found += [Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}")]
    return [*found, _pytorch(), *_gpus(), *_libraries(), *_tools(), _nvcc(), *_packages(), *_cache(), *_variables()]


def _pytorch() -> Finding:
    version = native.torch_version()
    found = f"{torch.__version__}, {'CUDA ' + torch.version.cuda if torch.version.cuda else 'without CUDA'}"
    if version < native.OLDEST_TORCH:
        return Finding(
            "PyTorch",
            "wrong",
            found,
            f"too old for the kernels: install PyTorch {_dotted(native.OLDEST_TORCH)} or newer",
        )
    if version > NEWEST_TESTED:
        newest = _dotted(NEWEST_TESTED)
        advice = f"newer than {newest}, the newest version tested: run graft check --quick to see whether all is well"
        return Finding("PyTorch", "ok", found, advice)
    return Finding("PyTorch", "ok", found)


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        if torch.version.cuda is None and shutil.which("nvidia-smi"):
            yield Finding(
                "GPU",
                "wrong",
                "there is an NVIDIA driver, but PyTorch was built without CUDA",
                "install PyTorch's build for CUDA",
            )
        else:
            yield Finding("GPU", "absent", "PyTorch finds none")
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        found = f"{properties.name}, compute capability {properties.major}.{properties.minor}"
        found += f", {properties.total_memory / (1 << 30):.0f} GiB; driver for CUDA {_driver_version()}"
        yield _with_kernel(f"GPU {number}", found, torch.device("cuda", number))


def _libraries() -> Iterator[Finding]:
    wanted = {"cpu": True, "cuda": torch.cuda.is_available()}
    for library in native.libraries():
        thing = f"{library.namespace}, {library.device}"
        if library.loaded and library.device == "cpu" and library.namespace == "torchgraft":
            yield _with_kernel(thing, f"loaded from {library.path}", torch.device("cpu"))
        elif library.loaded:
            yield Finding(thing, "ok", f"loaded from {library.path}")
        else:
            status: Status = "wrong" if wanted[library.device] else "absent"
            yield Finding(thing, status, "no kernels: the operators run on their references", library.problem)


def _with_kernel(thing: str, found: str, device: torch.device) -> Finding:
    """A finding about a device, after a kernel of ours was asked there."""
    if not native.has_kernels("torchgraft", device.type):
        return Finding(thing, "ok", found)
    try:
        answer = torch.ops.torchgraft._mul_constant(torch.arange(3.0, device=device), 2.0).tolist()
    except Exception as error:
        return Finding(thing, "wrong", found, f"a kernel failed there: {str(error).splitlines()[0]}")
    if answer != [0.0, 2.0, 4.0]:
        return Finding(thing, "wrong", found, f"a kernel doubled 0, 1 and 2 to {answer}: do not trust any result there")
    return Finding(thing, "ok", found)


def _imported(name: str) -> Finding:
    """A finding about a package, after it was imported."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        advice = f"install it: pip install {missing.name}" if missing.name else str(missing)
        return Finding(name, "wrong", f"{missing.name} is not installed here", advice)
    except Exception as error:
        return Finding(name, "wrong", "it cannot be imported", f"{type(error).__name__}: {_first_line(error)}")
    try:
        version = f"{importlib.metadata.version(name)}, "
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Finding(name, "ok", f"{version}in {Path(module.__file__ or name).parent}")


def _operators(package: str) -> Iterator[Finding]:
    """Calls each operator of a package on its smallest sample, on each device, and says whether a kernel ran."""
    if package not in sys.modules:
        return
    own = [each for each in Operator.registered.values() if each.module.partition(".")[0] == package]
    if not own:
        yield Finding(f"{package}, operators", "absent", "it declares none")
    for operator in own:
        kernels = operator.declaration.kernels
        for device in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            thing = f"{operator.qualified_name}, {device}"
            if kernels == "reference":
                yield Finding(thing, "ok", "PyTorch's own operators are its kernel")
            elif not (dtypes := kernels.get(device, ())):
                yield Finding(thing, "absent", "no kernel is declared: it runs on its reference")
            else:
                yield _called(operator, thing, device, dtypes)


def _called(operator: Operator, thing: str, device: str, dtypes: Sequence[torch.dtype]) -> Finding:
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    name, before = str(dtype).removeprefix("torch."), set(_reasons(operator, device))
    try:
        sample = samples_of(operator).smallest
    except LookupError as missing:
        return Finding(thing, "absent", "it has no samples to be called on", _first_line(missing))
    try:
        arguments = sample.make(device, dtype)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            operator.call(*operator.declaration.with_defaults(arguments))
    except Exception as error:
        return Finding(thing, "wrong", f"a call in {name} fails", _first_line(error))
    if reasons := [each for each in _reasons(operator, device) if each not in before]:
        return Finding(thing, "wrong", f"it runs on its reference in {name}", reasons[0][0])
    return Finding(thing, "ok", f"it runs on its kernel in {name}")


def _reasons(operator: Operator, device: str) -> list[tuple[str, int]]:
    """Why calls on a device ran on the reference so far, and how many did."""
    mine = [each for each in fallbacks() if (each.operator, each.device) == (operator.qualified_name, device)]
    return [(each.reason, each.calls) for each in mine]


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _tools() -> Iterator[Finding]:
    try:
        building.require_compiler("CXX", ("c++", "g++", "clang++"), "C++ compiler: install g++")
    except building.MissingToolError as missing:
        yield Finding("C++ compiler", "absent", "none; you need one to build your own kernels", str(missing))
    else:
        said = building.version_of(os.environ.get("CXX") or "c++").partition("\n")[0]
        version = re.search(r"\) (\d+)\.", said)
        is_old = version is not None and "clang" not in said and int(version[1]) < _OLDEST_GCC
        advice = f"too old for C++20, which the kernels use: install g++ {_OLDEST_GCC} or newer" if is_old else ""
        yield Finding("C++ compiler", "wrong" if is_old else "ok", said, advice)
    yield _tool("cmake", OLDEST_CMAKE_FOR_CUDA)
    yield _tool("ninja")


def _tool(name: str, oldest: str = "") -> Finding:
    try:
        path = building.find_tool(name, oldest=oldest)
    except building.MissingToolError as missing:
        found = "too old; you need a newer one to build CUDA kernels" if building.has_tool(name) else ""
        return Finding(name, "absent", found or "none; you need it to build your own kernels", str(missing))
    said = building.version_of(shlex.quote(path)).partition("\n")[0].removeprefix("cmake version ")
    return Finding(name, "ok", f"{said}, {path}")


def _nvcc() -> Finding:
    said = building.version_of(os.environ.get("CUDACXX") or "nvcc")
    version = re.search(r"release (\d+)\.(\d+)", said)
    if version is None:
        return Finding(
            "nvcc",
            "absent",
            "none; you need it to build your own CUDA kernels",
            "install the CUDA toolkit and put nvcc on PATH",
        )
    found = f"CUDA {version[1]}.{version[2]}"
    driver = _driver_version()
    if driver and int(version[1]) > int(driver.partition(".")[0]):
        return Finding(
            "nvcc",
            "wrong",
            found,
            f"the driver supports CUDA {driver} only, which is older than nvcc: update the driver",
        )
    return Finding("nvcc", "ok", found)


def _driver_version() -> str:
    """The version of the newest CUDA that the driver runs; empty if there is no GPU."""
    if not torch.cuda.is_available():
        return ""
    version = pytorch.driver_version()
    return f"{version // 1000}.{version % 1000 // 10}"


def _packages() -> Iterator[Finding]:
    for package, module, wanted, extra in (
        ("triton", "triton", "operators with Triton kernels run on their references", "triton"),
        ("hypothesis", "hypothesis", "graft check needs it", "check"),
        ("tree-sitter-cpp", "tree_sitter_cpp", "graft check --mutants needs it", "check"),
        ("jinja2", "jinja2", "graft bench --html needs it", "bench"),
        ("build", "build", "graft wheel needs it", "wheel"),
        ("scikit-learn", "sklearn", "graft demo needs it", "demo"),
    ):
        if importlib.util.find_spec(module) is None:
            yield Finding(package, "absent", f"not installed; {wanted}", f"pip install 'torchgraft[{extra}]'")
        else:
            yield Finding(package, "ok", importlib.metadata.version(package))


def _cache() -> Iterator[Finding]:
    folder = cache.folder()
    if why := cache.why_unusable():
        advice = "each process compiles its kernels again: set TORCHGRAFT_CACHE to another folder"
        yield Finding("cache", "wrong", why, advice)
        return
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    kept = sum(1 for _ in (folder / "made").iterdir())
    yield Finding(
        "cache",
        "ok",
        f"{kept} {'build' if kept == 1 else 'builds'} in {folder}, {sum(each.st_size for each in files) / 1e6:.0f} MB",
    )
    free = shutil.disk_usage(folder).free
    if free < _LEAST_FREE_BYTES:
        yield Finding(
            "disk", "wrong", f"only {free / 1e6:.0f} MB are free for {folder}", "free some space: builds need it"
        )


def _variables() -> Iterator[Finding]:
    for name in sorted(name for name in os.environ if name.startswith("TORCHGRAFT_")):
        yield Finding(name, "ok", os.environ[name])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
