"""The failures of a check as SARIF 2.1.0, the format in which code hosts take the findings of tools.

The format: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.report.check_report import CheckReport, describe, group_alike
from torchgraft.checking.result import Result
from torchgraft.version import __version__

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "ROOT"


def as_sarif(report: CheckReport) -> str:
    """Returns the failures of a report as SARIF, one result each for those that have the same cause.

    Paths below the working directory are relative to it, as a code host wants them; others are whole.
    """
    groups = group_alike(report.failures)
    rules = list(dict.fromkeys(_rule_of(group[0]) for group in groups))
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "graft check", "version": __version__, "rules": [_rule(each) for each in rules]}},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"{Path.cwd().as_uri()}/"}},
        "invocations": [{"executionSuccessful": not report.unfinished}],
        "results": [_result(group, rules) for group in groups],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule_of(result: Result) -> str:
    """The property of a failure, without the sanitizer that may stand before it."""
    return result.property.rpartition(": ")[-1]


def _rule(name: str) -> dict[str, Any]:
    summary = PROPERTIES[name].summary if name in PROPERTIES else name
    return {"id": name, "shortDescription": {"text": summary}, "defaultConfiguration": {"level": "error"}}


def _result(group: list[Result], rules: list[str]) -> dict[str, Any]:
    first = group[0]
    assert first.failure is not None
    rule = _rule_of(first)
    what = f"{first.operator}, {rule}, {first.device}, {first.kernel}, {first.failure.kind or first.failure.at_fault}"
    found: dict[str, Any] = {
        "ruleId": rule,
        "ruleIndex": rules.index(rule),
        "level": "error",
        "message": {"text": describe(*group)},
        # What a code host takes for the same finding in another run.
        "partialFingerprints": {"torchgraft/v1": hashlib.sha256(what.encode()).hexdigest()},
        "properties": {"operator": first.operator, "device": first.device, "dtype": first.dtype},
    }
    if first.failure.file:
        region = {"startLine": max(first.failure.line, 1)}
        location = {"artifactLocation": _artifact(Path(first.failure.file)), "region": region}
        found["locations"] = [{"physicalLocation": location}]
    return found


def _artifact(file: Path) -> dict[str, str]:
    root = Path.cwd()
    if not file.is_relative_to(root):
        return {"uri": file.as_uri()}
    # The path of a URI, with what cannot stand in one escaped.
    return {"uri": file.as_uri().removeprefix(f"{root.as_uri()}/"), "uriBaseId": _ROOT}
