"""The kernels of the planted operators: compiled once for what their sources say, by whoever comes first."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

import torchgraft
from torchgraft import building, native

NAMESPACE = "planted"

_HERE = Path(__file__).parent
_BUILT = _HERE.parents[1] / "build" / "planted"


def sources() -> list[Path]:
    """The kernels of all families."""
    return sorted(path for path in _HERE.glob("*/*") if path.suffix in (".cpp", ".cu"))


def directory() -> Path:
    """Where the libraries lie, by what they are made of."""
    headers = sorted((Path(torchgraft.__file__).parent / "include").rglob("*.*h"))
    made_of = hashlib.sha256()
    for path in (*sources(), *sorted(_HERE.glob("*/*.*h")), *headers):
        made_of.update(path.name.encode() + path.read_bytes())
    return _BUILT / made_of.hexdigest()[:16]


def load() -> None:
    """Loads the libraries, those that are built."""
    native.load(NAMESPACE, directory())


def build(*, cuda: bool) -> None:
    """Builds and loads what is not there yet; several processes may ask at once."""
    libraries = [directory() / f"{NAMESPACE}_{device}.so" for device in ("cpu", *(["cuda"] if cuda else []))]
    directory().mkdir(parents=True, exist_ok=True)
    with (directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(library.is_file() for library in libraries):
            building.build(NAMESPACE, sources(), directory(), cuda=cuda)
    load()
