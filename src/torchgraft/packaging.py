"""Builds packages with kernels: `build-backend = "torchgraft.packaging"` in the pyproject.toml of such a package.

Hatchling does what every package needs: metadata, the source distribution, and the wheel of the Python files. This
module compiles the kernels and puts the libraries into the wheel, in the folder `lib` of the package. The libraries use
PyTorch's stable ABI, so one wheel is for every Python. The package may say in its pyproject.toml

    [tool.torchgraft]
    namespace = "mykernels"                 # of the operators; without it the name of the package
    cuda = true                             # without it: if there is a .cu, nvcc, and a PyTorch with CUDA
    cpp = false                             # without it: C++ programs without Python can use the operators
    architectures = ["80-real", "90-real"]  # without it: this machine's GPU, or all that torchgraft supports

Nothing tells a build whether its wheel stays on this machine. The environment variable TORCHGRAFT_CUDA does: `1` asks
for CUDA beside any PyTorch, `0` for none, and `all` for all GPUs that torchgraft supports; `graft wheel` sets the last
if there is nvcc.

For C++ programs the wheel holds the library of the schemas, a header with a function for each operator, and a CMake
package by the name of the Python package; they are written from the declarations, for which the build imports the
package. See docs/cpp.md.

The names of the functions are those of PEP 517 and PEP 660. An editable install compiles nothing: such a package
compiles its kernels where it is imported, by `torchgraft.building.load`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchgraft import building
from torchgraft.building.compile import OLDEST_CMAKE_FOR_CUDA, SUPPORTED
from torchgraft.cmake import torch_headers
from torchgraft.version import __version__

if TYPE_CHECKING:
    from hatchling.builders.wheel import WheelBuilder

_HATCHLING = "hatchling>=1.26"
# The libraries hold the kernels, and those that were built in the folder before may be old.
_LEFT_OUT = ("*.cpp", "*.cu", "*.h", "*.cuh")
_SETTINGS = {"namespace": str, "cuda": bool, "cpp": bool, "architectures": list}
# The values of TORCHGRAFT_CUDA, as the CMake module has them.
_ASKED = {"0": False, "off": False, "false": False, "1": True, "on": True, "true": True, "all": True}

_CMAKE_CONFIG = """\
# find_package({package}): the operators of {namespace} in C++; see torchgraftConfig.cmake for what the targets are.
include(CMakeFindDependencyMacro)
find_dependency(torchgraft {version})
torchgraft_import({namespace} "${{CMAKE_CURRENT_LIST_DIR}}/..")
"""
_CMAKE_VERSION = """\
set(PACKAGE_VERSION "{version}")
{rules}"""


@dataclass(frozen=True)
class _Kernels:
    """The sources and options that `building.build` takes."""

    namespace: str
    sources: tuple[Path, ...]
    cuda: bool
    architectures: str | None
    cpp: bool


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The requirements of building a wheel, beside those of the build system."""
    oldest = {"cmake": OLDEST_CMAKE_FOR_CUDA, "ninja": ""}
    missing = [name for name, version in oldest.items() if not building.has_tool(name, oldest=version)]
    return [_HATCHLING, *(f"{name}>={oldest[name]}" if oldest[name] else name for name in missing)]


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The requirements of building a source distribution, beside those of the build system."""
    return [_HATCHLING]


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """The requirements of an editable install, beside those of the build system."""
    return [_HATCHLING]


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """Makes the source distribution of the package in the working directory.

    Returns:
        The name of the file.
    """
    from hatchling import build

    return build.build_sdist(sdist_directory)


def build_editable(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Makes a wheel that leads to the package in the working directory.

    Returns:
        The name of the file.
    """
    root = Path.cwd()
    return Path(next(_builder(root).build(directory=wheel_directory, versions=["editable"]))).name


def build_wheel(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Compiles the kernels of the package in the working directory, and makes its wheel.

    Args:
        wheel_directory: where the wheel is put.
        config_settings: `cuda` is true or false, and goes before that of pyproject.toml.
        metadata_directory: not used.

    Returns:
        The name of the file.

    Raises:
        ValueError: a setting is not known, or it is not clear which folder is the package.
        BuildError: the kernels do not compile.
    """
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="torchgraft-wheel-") as folder:
        builder = _builder(root, Path(folder))
        package = root / _package(builder)
        kernels = _kernels(package, builder.metadata.config, config_settings or {})
        if kernels is not None:
            if kernels.cpp:
                _write_cpp(package, kernels.namespace, builder.metadata.version, Path(folder))
            _compile(kernels, Path(folder))
        return Path(next(builder.build(directory=wheel_directory, versions=["standard"]))).name


def _write_cpp(package: Path, namespace: str, version: str, folder: Path) -> None:
    """Writes what C++ programs need beside the libraries: schemas.cpp, `include` and `cmake`.

    Raises:
        BuildError: the package cannot be imported.
    """
    # In a process of its own, as the package may be imported here already, from elsewhere.
    command = [sys.executable, "-m", "torchgraft.authoring.cpp", package.name, namespace, str(folder)]
    paths = os.pathsep.join(filter(None, (str(package.parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths})
    if done.returncode:
        error = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        raise building.BuildError(
            f"{package.name} is imported for its declarations, which C++ programs need, and that fails: {error}\nAdd"
            " what it imports to the requires of [build-system], or leave C++ programs out: [tool.torchgraft] cpp ="
            " false"
        )
    cmake = folder / "cmake"
    cmake.mkdir()
    config = _CMAKE_CONFIG.format(
        package=package.name, namespace=namespace, version=".".join(__version__.split(".")[:2])
    )
    (cmake / f"{package.name}Config.cmake").write_text(config)
    rules = (Path(__file__).parent / "cmake/TorchgraftVersion.cmake").read_text()
    numbers = re.match(r"[0-9.]*[0-9]", version)
    text = _CMAKE_VERSION.format(version=numbers.group() if numbers else "0", rules=rules)
    (cmake / f"{package.name}ConfigVersion.cmake").write_text(text)


def _compile(kernels: _Kernels, folder: Path) -> None:
    try:
        building.build(
            kernels.namespace,
            kernels.sources,
            folder,
            cuda=kernels.cuda,
            architectures=kernels.architectures,
            schemas=folder / "schemas.cpp" if kernels.cpp else None,
        )
    except building.BuildError as error:
        # The folder goes, and the log in it: who builds shows what is printed.
        for log in folder.glob("build/*/build.log"):
            print(log.read_text())
            raise building.BuildError(str(error).replace(f"\n(all of it: {log})", "")) from None
        raise


def _builder(root: Path, libraries: Path | None = None) -> WheelBuilder:
    """Hatchling's builder, which adds the libraries that lie in a folder once it builds."""
    from hatchling.builders.wheel import WheelBuilder, WheelBuilderConfig

    class Config(WheelBuilderConfig):
        def default_global_exclude(self) -> list[str]:
            return [*super().default_global_exclude(), *_LEFT_OUT, f"/{_package(builder)}/lib/"]

        @property
        def dev_mode_dirs(self) -> list[str]:
            # Where no folder is named, Hatchling wants one package more to find it.
            return super().dev_mode_dirs or [str(Path(_package(builder)).parent)]

    class Builder(WheelBuilder):
        @classmethod
        def get_config_class(cls) -> type[WheelBuilderConfig]:
            return Config

        def get_default_build_data(self) -> dict[str, Any]:
            data = super().get_default_build_data()
            into = self.config.get_distribution_path(_package(self))
            built = sorted(libraries.glob("*.so")) if libraries else ()
            root = libraries or Path()
            if found := {str(path): f"{into}/lib/{path.name}" for path in built}:
                beside = [path for name in ("include", "cmake") for path in sorted((root / name).rglob("*.*"))]
                found |= {str(path): f"{into}/{path.relative_to(root)}" for path in beside}
                platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
                data |= {"pure_python": False, "tag": f"py3-none-{platform}", "force_include": found}
            return data

    builder = Builder(str(root))
    return builder


def _package(builder: WheelBuilder) -> str:
    """The folder of the package, as Hatchling finds it by the name of the project, or as the author names it to it."""
    packages = builder.config.packages
    if len(packages) != 1:
        raise ValueError(
            f"torchgraft.packaging builds one package, but Hatchling finds {', '.join(packages) or 'none'}: name its "
            'folder in pyproject.toml, [tool.hatch.build.targets.wheel] packages = ["src/NAME"]'
        )
    return packages[0]


def _kernels(package: Path, project: Mapping[str, Any], config_settings: Mapping[str, Any]) -> _Kernels | None:
    """The sources that a package wants compiled; None if it has none."""
    table = project.get("tool", {}).get("torchgraft", {})
    for name, value in table.items():
        if name not in _SETTINGS:
            raise ValueError(f"[tool.torchgraft] has no setting {name!r}; its settings are {', '.join(_SETTINGS)}")
        items = value if isinstance(value, list) else ()
        if not isinstance(value, _SETTINGS[name]) or not all(isinstance(each, str) for each in items):
            expected = {str: "a string", bool: "true or false", list: 'a list of strings, such as ["90-real"]'}[
                _SETTINGS[name]
            ]
            raise ValueError(f"[tool.torchgraft] {name} must be {expected}, got {value!r}")
    for name, value in config_settings.items():
        if name != "cuda" or value not in ("true", "false"):
            raise ValueError(f"a build takes one setting only, cuda=true or cuda=false, got {name}={value}")
    sources = tuple(path for path in sorted(package.rglob("*")) if path.suffix in (".cpp", ".cu"))
    if not sources:
        return None
    cuda = table.get("cuda")
    if (chosen := config_settings.get("cuda")) is not None:
        cuda = chosen == "true"
    asked = os.environ.get("TORCHGRAFT_CUDA", "").lower()
    if asked and asked not in _ASKED:
        raise ValueError(f"TORCHGRAFT_CUDA must be 0, 1 or all, got {asked!r}")
    if cuda is None:
        cuda = any(path.suffix == ".cu" for path in sources) and (_ASKED[asked] if asked else _can_use_cuda())
    architectures = ";".join(table.get("architectures", ())) or (SUPPORTED if asked == "all" else None)
    namespace = table.get("namespace", package.name)
    return _Kernels(namespace, sources, cuda, architectures, table.get("cpp", True))


def _can_use_cuda() -> bool:
    """Whether the PyTorch that the package will run with was built with CUDA, and there is a CUDA compiler."""
    if not building.has_tool(os.environ.get("CUDACXX") or "nvcc"):
        return False
    if not torch_headers.has_cuda():
        # pip shows it with -v.
        print("torchgraft: no CUDA library, as PyTorch was built without CUDA. TORCHGRAFT_CUDA=1 builds one.")
        return False
    return True
