"""Lays a wheel out as Hugging Face's `kernels` loads it: a folder for each kind of machine, with the package in it."""

from __future__ import annotations

import json
import platform
import re
import shutil
import tempfile
from pathlib import Path

from packaging.metadata import parse_email
from packaging.version import Version

from torchgraft import native
from torchgraft.authoring.wheel import Wheel, unpack
from torchgraft.building import BuildError

# What `graft new` writes in the place of a licence.
_UNCHOSEN = "LicenseRef-Unchosen"


def lay_out(wheel: Wheel, folder: Path, *, cuda: str = "") -> list[Path]:
    """Adds the package of a wheel to a folder that `kernels.get_local_kernel` loads, or that can be uploaded.

    The package keeps its name and its operators their namespace, so that a process can load one version of it. It needs
    torchgraft where it is loaded.

    Args:
        wheel: of a package with operators.
        folder: gets `build/torch-stable-abi211-cpu-x86_64-linux` and the like; others that are there stay.
        cuda: the version of CUDA that a CUDA library is compiled with, as `13.0`.

    Returns:
        The folders that were written.

    Raises:
        BuildError: the wheel holds several packages or names no licence, or it holds a CUDA library and `cuda` is not
            given.
    """
    has_cuda = any(each.name.endswith("_cuda.so") for each in wheel.libraries)
    if has_cuda and not cuda:
        raise BuildError(
            f"{wheel.path.name} holds a CUDA library: give the CUDA version that compiled it, for example cuda='13.0'"
        )
    written = []
    with tempfile.TemporaryDirectory() as name:
        unpack(wheel.path, Path(name))
        packages = [path.parent for path in Path(name).glob("*/__init__.py")]
        if len(packages) != 1:
            raise BuildError(
                f"{wheel.path.name} must hold one package for Hugging Face's kernels, and it holds {len(packages)}"
            )
        metadata = _metadata(Path(name), packages[0])
        gpus = [gpu for each in wheel.libraries if each.name.endswith("_cuda.so") for gpu in each.architectures]
        backends: dict[str, dict[str, object]] = {"cpu": {"type": "cpu"}}
        if has_cuda:
            backends[f"cu{cuda.replace('.', '')}"] = {"type": "cuda", **({"archs": gpus} if gpus else {})}
        for variant, backend in backends.items():
            oldest = "".join(map(str, native.OLDEST_TORCH))
            place = folder / "build" / f"torch-stable-abi{oldest}-{variant}-{platform.machine()}-linux"
            shutil.rmtree(place, ignore_errors=True)
            # What C++ programs without Python need is of no use there.
            left_out = ["*_schemas.so", "include", "cmake", *(["*_cuda.so"] if variant == "cpu" else [])]
            shutil.copytree(packages[0], place, ignore=shutil.ignore_patterns(*left_out))
            (place / "metadata.json").write_text(json.dumps({**metadata, "backend": backend}, indent=2) + "\n")
            written.append(place)
    return written


def _metadata(unpacked: Path, package: Path) -> dict[str, object]:
    found, _ = parse_email(next(unpacked.glob("*.dist-info/METADATA")).read_bytes())
    licence = found.get("license_expression") or found.get("license")
    if licence in (None, "", _UNCHOSEN):
        raise BuildError(
            f"Hugging Face's kernels need a licence: state {package.name}'s in pyproject.toml, for example "
            'license = "BSD-3-Clause"'
        )
    return {
        # What the module is called where it is loaded: the modules of the package import each other by this name.
        "id": package.name,
        "name": re.sub("_+", "-", package.name).strip("-").lower(),
        "version": Version(found["version"]).major,
        "license": licence,
        "python-depends": [],
    }
