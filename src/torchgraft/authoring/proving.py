"""Proves a wheel: installs it beside another PyTorch, where no compiler is, and checks the package there."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torchgraft
from torchgraft.authoring.wheel import last_error, run_quietly, unstable_symbols
from torchgraft.building import BuildError, cache

# What torchgraft and `graft check` need beside PyTorch.
_REQUIREMENTS = ("typer", "rich", "numpy", "hypothesis", "expecttest")
_SHOWN_SYMBOLS = 3
# What another PyTorch or a compiler could come from.
_HIDDEN = re.compile("CC|CXX|CUDACXX|CUDA_HOME|CUDA_PATH|LD_PRELOAD|VIRTUAL_ENV|PYTHON.*|TORCHGRAFT_.*")


@dataclass(frozen=True)
class Proof:
    """The results of `graft check --quick` for an installed wheel.

    Attributes:
        torch: the version of PyTorch.
        passed: how many properties hold.
        failed: those that do not, each with its operator and what is wrong.
        on_kernels: how many operators were seen to run on kernels in some dtype: `torchgraft.fallbacks()` stayed empty.
        libraries: how many libraries were scanned for symbols that no stable interface promises; each is in `failed`.
        seconds: how long it took.
    """

    torch: str
    passed: int
    failed: tuple[str, ...]
    on_kernels: int
    libraries: int
    seconds: float


def make_environment(version: str) -> Path:
    """The Python of an environment with a PyTorch; made where it is not there, and kept while it is used each month.

    Args:
        version: of PyTorch, as `2.13.0`.

    Raises:
        ValueError: it is no version.
        BuildError: pip refuses.
    """
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"a version of PyTorch must be three numbers, such as 2.13.0, got {version!r}")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"

    def make(place: Path) -> None:
        run_quietly([sys.executable, "-m", "venv", str(place)])
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_quietly([*pip, f"torch=={version}", *map(_pinned, _REQUIREMENTS)])

    return cache.keep_environment(f"torch-{version}-python-{python}", make) / "bin/python"


def _pinned(name: str) -> str:
    try:
        return f"{name}=={importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def prove(wheel: Path, python: Path) -> Proof:
    """Installs a wheel for a Python and checks the package there, with the running torchgraft and without a compiler.

    Nothing of the environment is changed: the wheel goes into a folder of its own.

    Args:
        wheel: of a package with operators.
        python: of an environment with PyTorch, pip and what `graft check` needs.

    Raises:
        BuildError: the wheel cannot be installed there, or the package cannot be checked at all.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchgraft-proof-") as name:
        folder = Path(name)
        packages, report = folder / "packages", folder / "report.json"
        environment = {key: value for key, value in os.environ.items() if not _HIDDEN.fullmatch(key)}
        # An empty cache: what was compiled on this machine must not stand in for what the wheel lacks.
        environment |= {"PATH": str(python.parent), "TORCHGRAFT_JIT": "0", "TORCHGRAFT_CACHE": str(folder / "cache")}
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_quietly([*pip, "--no-index", "--no-deps", "--target", str(packages), str(wheel)], environment=environment)
        package = _package_in(packages)
        if package.name == torchgraft.__name__:
            raise BuildError("--prove is for packages; to check torchgraft itself, run `make test-torch TORCH=2.15.0`")
        has_kernels = any(package.rglob("*_cpu.so"))
        libraries = sorted(packages.rglob("*.so*"))
        unstable = tuple(_unstable(path, symbols) for path, symbols in unstable_symbols(libraries).items())
        # Alone, as beside it may lie the running PyTorch.
        (packages / "torchgraft").symlink_to(Path(torchgraft.__file__).parent)
        environment["PYTHONPATH"] = str(packages)
        command = [str(python), "-m", "torchgraft", "check", "--quick", "--device", "cpu", "--json", str(report)]
        done = subprocess.run(
            [*command, str(package)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not report.is_file():
            raise BuildError(f"{package.name} cannot be checked with {python}: {last_error(done.stdout)}")
        found = json.loads(report.read_text())
    results = found["results"]
    failed = tuple(
        f"{each['operator']}, {each['property']} in {each['dtype']}: {each['failure']['message']}"
        for each in results
        if each["status"] == "fail"
    )
    held = [each for each in results if each["status"] == "pass"]
    # The property `fallbacks` calls all samples and holds where `torchgraft.fallbacks()` has nothing new after that.
    on_kernels = {each["operator"] for each in held if each["property"] == "fallbacks"}
    if has_kernels and not on_kernels:
        failed += (f"{package.name}: no operator ran on the kernels of the wheel",)
    version = found["environments"]["cpu"]["torch"]
    failed = (*unstable, *failed)
    return Proof(version, len(held), failed, len(on_kernels), len(libraries), time.monotonic() - started)


def _unstable(library: Path, symbols: Sequence[str]) -> str:
    """Describes a library that needs what is no part of a stable interface."""
    shown = [_readable(symbol) for symbol in symbols[:_SHOWN_SYMBOLS]]
    more = f", and {len(symbols) - _SHOWN_SYMBOLS} more" if len(symbols) > _SHOWN_SYMBOLS else ""
    return (
        f"{library.name}: it needs {', '.join(shown)}{more}, outside of PyTorch's stable ABI: another PyTorch may not"
        " have it, or mean something else"
    )


def _readable(symbol: str) -> str:
    """A symbol as it is written in C++, if there is a program that says so."""
    if (tool := shutil.which("c++filt")) is None:
        return symbol
    return subprocess.run([tool, symbol], capture_output=True, text=True, check=False).stdout.strip() or symbol


def _package_in(packages: Path) -> Path:
    """The package that a wheel was unpacked to: the folder that declares operators."""
    folders = [path.parent for path in packages.glob("*/__init__.py")]
    if len(folders) != 1:
        raise BuildError(f"the wheel must hold one package, got {', '.join(each.name for each in folders) or 'none'}")
    return folders[0]
