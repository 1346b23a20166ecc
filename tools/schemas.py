"""Writes JSON Schemas of the documents that commands write with `--json`, from the classes whose figures they hold.

`python tools/schemas.py` writes src/torchgraft/cli/schemas/*.json, which a test compares with the classes and with
what commands write. An entry that a schema does not name is no error: later versions may add some.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torchgraft.authoring.doctor import Finding
from torchgraft.authoring.proving import Proof
from torchgraft.authoring.wheel import Wheel
from torchgraft.benchmarking.cpp_calls import CppCalls
from torchgraft.benchmarking.distribution import MAY_BE_EMPTY
from torchgraft.benchmarking.distrusted import DistrustedReport
from torchgraft.benchmarking.load import Load
from torchgraft.benchmarking.memory import MemoryReport
from torchgraft.benchmarking.overhead import OperatorOverhead, Overhead
from torchgraft.benchmarking.provenance import Provenance
from torchgraft.benchmarking.results import BenchReport
from torchgraft.benchmarking.rows import Row
from torchgraft.checking import CheckReport
from torchgraft.checking.explaining import Explanation
from torchgraft.checking.mutants.folders import Outcome
from torchgraft.checking.result import Result
from torchgraft.checking.spreading import Spread
from torchgraft.demo.timing import StepTime
from torchgraft.kernels.fallback import Fallback
from torchgraft.machine.documents import FORMATS
from torchgraft.machine.environment import Environment

FOLDER = Path(__file__).parents[1] / "src/torchgraft/cli/schemas"
Schema = dict[str, Any]

_NUMBERS = {bool: "boolean", int: "integer", str: "string", Path: "string", NoneType: "null"}
# Fields that a document leaves out.
_LEFT_OUT = {Result: ("lines",), Outcome: ("mutant",)}
# Fields that a document may leave out.
_OPTIONAL = {Row: MAY_BE_EMPTY, Environment: ("driver",)}
_ATTRIBUTE = re.compile(r"^    (\w+): (.+?)(?=^    \w+: |\n\n|\Z)", re.MULTILINE | re.DOTALL)


class _Schemas:
    """Schemas of types; those of classes are collected as definitions."""

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """Returns the schema of what JSON has for values of a type."""
        origin, inner = get_origin(kind), get_args(kind)
        if kind in _NUMBERS:
            return {"type": _NUMBERS[kind]}
        if kind is float:
            # JSON has neither nan nor infinity.
            return {"type": ["number", "null"]}
        if origin is Literal:
            return {"enum": list(inner)}
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(each) for each in inner]}
        if origin is tuple and inner[-1] is not ...:
            return {"type": "array", "prefixItems": [self.of(each) for each in inner], "minItems": len(inner)}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(inner[0])}
        if is_dataclass(kind):
            if kind.__name__ not in self.definitions:
                self.definitions[kind.__name__] = {}
                self.definitions[kind.__name__] = self.of_class(kind)
            return {"$ref": f"#/$defs/{kind.__name__}"}
        raise TypeError(f"there is no schema of {kind!r}")

    def of_class(self, kind: Any, /, **more: Any) -> Schema:
        """Returns the schema of a dataclass, or of a NamedTuple that is written as an object.

        Args:
            kind: the class.
            more: types of further entries; None in place of a type leaves a field out.
        """
        text = inspect.getdoc(kind) or ""
        told = {name: " ".join(said.split()) for name, said in _ATTRIBUTE.findall(text.partition("Attributes:")[2])}
        hints = get_type_hints(kind)
        names = [each.name for each in fields(kind)] if is_dataclass(kind) else list(kind._fields)
        types = {name: hints[name] for name in names if name not in _LEFT_OUT.get(kind, ())} | more
        types = {name: each for name, each in types.items() if each is not None}
        made = {"description": " ".join(text.partition("\n\n")[0].split()), **self.object_of(types, told)}
        made["required"] = [name for name in made["required"] if name not in _OPTIONAL.get(kind, ())]
        return made

    def object_of(self, types: Mapping[str, Any], told: Mapping[str, str] | None = None) -> Schema:
        """Returns the schema of an object; all of its entries are always there.

        Args:
            types: a type, or a schema that is made already, for each entry.
            told: descriptions of entries.
        """
        properties = {}
        for name, kind in types.items():
            found = kind if isinstance(kind, dict) else self.of(kind)
            properties[name] = found | ({"description": told[name]} if told and name in told else {})
        return {"type": "object", "properties": properties, "required": list(properties)}

    def list_of(self, item: Schema) -> Schema:
        """Returns the schema of a list of objects."""
        return {"type": "array", "items": item}


def _check(schemas: _Schemas) -> Schema:
    found = schemas.of_class(CheckReport, passed=bool)
    calls = {"description": "with --distrust: the operators of PyTorch that the kernel called"}
    found["properties"]["calls"] = schemas.of(list[str]) | calls
    return found


def _check_list(schemas: _Schemas) -> Schema:
    listed = {"name": str, "proves": str, "devices": list[str], "quick": bool, "sanitized": bool}
    return schemas.object_of({"properties": schemas.list_of(schemas.object_of(listed))})


def _check_mutants(schemas: _Schemas) -> Schema:
    more = {"folder": str, "file": str, "line": int, "kind": str, "original": str, "changed": str}
    return schemas.object_of({"seed": int, "mutants": schemas.list_of(schemas.of_class(Outcome, **more))})


def _bench_overhead(schemas: _Schemas) -> Schema:
    costs = schemas.object_of({"ours": float, "theirs": float, "ratio": float})
    layer = {"name": str, "replaced": str, "costs": {"type": "object", "additionalProperties": costs}}
    derived = {"front_door": float, "yardstick": float, "excess": float}
    reached = {"front_door_reached": bool, "excess_reached": bool}
    return schemas.of_class(
        Overhead,
        unit=str,
        goals=dict[str, float],
        operators=schemas.list_of(schemas.of_class(OperatorOverhead, **derived, **reached)),
        layers=schemas.list_of(schemas.object_of(layer)),
        reached=bool,
        fallbacks=schemas.list_of(schemas.of_class(Fallback)),
        load=schemas.of_class(Load, others=float),
        others=None,
    )


def _bench_cpp(schemas: _Schemas) -> Schema:
    return schemas.of_class(CppCalls, unit=str, load=schemas.of_class(Load, others=float), others=None)


def _bench_device_like(schemas: _Schemas) -> Schema:
    names = ("operator", "suite", "sample", "dtype", "layout", "direction")
    row = schemas.object_of({**dict.fromkeys(names, str), "kernels": list[str]})
    return schemas.object_of({"device_like": str, "rows": schemas.list_of(row)})


def _demo(schemas: _Schemas) -> Schema:
    texts = dict.fromkeys(("name", "title", "description"), str)
    numbers = dict.fromkeys(("epochs", "batch_size", "seed", "steps"), int)
    names = ("learning_rate", "largest_difference", "largest_difference_first_epoch", "tolerance", "least_accuracy")
    network = {"name": str, "parameters": int, "accuracy": float, "step_milliseconds": float, "losses": list[float]}
    steps = schemas.of_class(StepTime, speedup=float, trusted=bool, shares=tuple[float, float] | None)
    part = schemas.object_of(
        {
            **texts,
            **numbers,
            **dict.fromkeys(names, float),
            "environment": Environment,
            "provenance": Provenance,
            "networks": schemas.list_of(schemas.object_of(network)),
            "step_milliseconds_in_turn": schemas.list_of(steps),
            "fallbacks": schemas.list_of(schemas.of_class(Fallback)),
            "problems": list[str],
            "passed": bool,
        }
    )
    return schemas.object_of({"parts": schemas.list_of(part), "passed": bool})


# The command that writes each document, and what makes its schema.
_DOCUMENTS: dict[str, tuple[str, Any]] = {
    "check": ("graft check, graft adopt", _check),
    "check-list": ("graft check --list", _check_list),
    "check-mutants": ("graft check --mutants", _check_mutants),
    "explain": ("graft explain", lambda it: it.object_of({"explanations": list[Explanation]})),
    "bench": ("graft bench run, graft bench show", lambda it: it.of_class(BenchReport, unit=str, doubts=list[str])),
    "bench-device-like": ("graft bench --explain --device-like", _bench_device_like),
    "bench-distrust": ("graft bench --distrust", lambda it: it.of_class(DistrustedReport, passed=bool)),
    "bench-overhead": ("graft bench overhead", _bench_overhead),
    "bench-cpp": ("graft bench cpp", _bench_cpp),
    "bench-memory": ("graft bench memory", lambda it: it.of_class(MemoryReport)),
    "demo": ("graft demo", _demo),
    "doctor": ("graft doctor", lambda it: it.object_of({"findings": list[Finding]})),
    "shard": ("graft shard", lambda it: it.of_class(Spread)),
    "wheel": (
        "graft wheel",
        lambda it: it.of_class(Wheel, tag=str, requirements=str | None, installation=str | None, proofs=list[Proof]),
    ),
}


def schema_of(name: str) -> Schema:
    """Makes the schema of a document."""
    commands, make = _DOCUMENTS[name]
    schemas = _Schemas()
    made = make(schemas)
    version = {"const": FORMATS[name], "description": "the version of the format of this document"}
    made["properties"] = {"format": version, **made["properties"]}
    made["required"] = ["format", *made["required"]]
    if name == "shard":
        # The document is a list, of an object for each operator.
        made = {"type": "array", "items": made}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"The document of --json: {commands}"}
    return {**head, **made, **({"$defs": schemas.definitions} if schemas.definitions else {})}


def text_of(name: str) -> str:
    """Returns the text of the file of a schema."""
    return json.dumps(schema_of(name), indent=2) + "\n"


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    for name in _DOCUMENTS:
        (FOLDER / f"{name}.json").write_text(text_of(name))


if __name__ == "__main__":
    main()
