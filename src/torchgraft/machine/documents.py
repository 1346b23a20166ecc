"""The documents that commands write with `--json`: the format of each."""

from __future__ import annotations

from typing import Any

from torchgraft.machine.figures import as_json

# The version of each document's format, its entry `format`; cli/schemas has a schema of the same name. It grows if an
# entry goes, or changes its meaning, its type or its name; it does not grow if entries are added.
FORMATS = {
    "bench": 1,
    "bench-cpp": 1,
    "bench-device-like": 1,
    "bench-distrust": 1,
    "bench-memory": 1,
    "bench-overhead": 1,
    "check": 1,
    "check-list": 1,
    "check-mutants": 1,
    "demo": 1,
    "doctor": 1,
    "explain": 1,
    "shard": 1,
    "wheel": 1,
}


def with_format(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of a document with the version of its format in front."""
    return {"format": FORMATS[name], **figures}


def as_document(name: str, figures: dict[str, Any]) -> str:
    """Returns the text of a document, as `as_json` writes it, with the version of its format."""
    return as_json(with_format(name, figures))
