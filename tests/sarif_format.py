"""The part of the JSON schema of SARIF 2.1.0 that a report of `graft check` uses, as a small check of its own.

The objects, with their required and allowed entries, are those of the schema of the standard (sections 3.13 to 3.54):
an entry that the schema does not know is an error there too, as `additionalProperties` is false.
"""

from urllib.parse import urlsplit

_TEXT, _URI, _BOOL, _INDEX, _LINE = "text", "uri", "bool", "index", "line"
# For each object its entries; those that are required have an exclamation mark.
_OBJECTS = {
    "log": {"$schema": _URI, "version!": ("2.1.0",), "runs!": ["run"]},
    "run": {
        "tool!": "tool",
        "columnKind": ("utf16CodeUnits", "unicodeCodePoints"),
        "originalUriBaseIds": {"*": "artifactLocation"},
        "invocations": ["invocation"],
        "results": ["result"],
    },
    "tool": {"driver!": "toolComponent"},
    "toolComponent": {"name!": _TEXT, "version": _TEXT, "rules": ["reportingDescriptor"]},
    "reportingDescriptor": {
        "id!": _TEXT,
        "shortDescription": "message",
        "defaultConfiguration": "reportingConfiguration",
    },
    "reportingConfiguration": {"level": ("none", "note", "warning", "error")},
    "message": {"text!": _TEXT},
    "invocation": {"executionSuccessful!": _BOOL},
    "result": {
        "ruleId": _TEXT,
        "ruleIndex": _INDEX,
        "level": ("none", "note", "warning", "error"),
        "message!": "message",
        "locations": ["location"],
        "partialFingerprints": {"*": _TEXT},
        "properties": {"*": _TEXT},
    },
    "location": {"physicalLocation": "physicalLocation"},
    "physicalLocation": {"artifactLocation": "artifactLocation", "region": "region"},
    "artifactLocation": {"uri": _URI, "uriBaseId": _TEXT},
    "region": {"startLine": _LINE},
}
_SIMPLE = {
    _TEXT: lambda value: isinstance(value, str) and value != "",
    _URI: lambda value: isinstance(value, str) and not any(each in value for each in ' <>\\^`{|}"') and urlsplit(value),
    _BOOL: lambda value: isinstance(value, bool),
    _INDEX: lambda value: isinstance(value, int) and value >= 0,
    _LINE: lambda value: isinstance(value, int) and value >= 1,
}


def expect_sarif(log):
    """Asserts that a log is SARIF 2.1.0 and that what refers to something else in it finds it."""
    _expect(log, "log", "log")
    for run in log["runs"]:
        rules = [each["id"] for each in run["tool"]["driver"].get("rules", ())]
        assert len(rules) == len(set(rules)), rules
        for result in run.get("results", ()):
            assert result["ruleIndex"] < len(rules), f"ruleIndex: {result['ruleIndex']}"
            assert rules[result["ruleIndex"]] == result["ruleId"]
            for location in result.get("locations", ()):
                base = location["physicalLocation"]["artifactLocation"].get("uriBaseId")
                assert base is None or run["originalUriBaseIds"][base]["uri"].endswith("/")


def _expect(value, kind, where):
    if isinstance(kind, tuple):
        assert value in kind, f"{where}: {value!r} is none of {kind}"
    elif isinstance(kind, list):
        assert isinstance(value, list), where
        for number, each in enumerate(value):
            _expect(each, kind[0], f"{where}[{number}]")
    elif isinstance(kind, dict):
        for name, each in value.items():
            _expect(each, kind["*"], f"{where}.{name}")
    elif kind in _SIMPLE:
        assert _SIMPLE[kind](value), f"{where}: {value!r} is no {kind}"
    else:
        entries = {name.removesuffix("!"): of for name, of in _OBJECTS[kind].items()}
        missing = {name[:-1] for name in _OBJECTS[kind] if name.endswith("!")} - set(value)
        assert not missing, f"{where} lacks {missing}"
        for name, each in value.items():
            assert name in entries, f"{where} has {name}, which the format does not know"
            _expect(each, entries[name], f"{where}.{name}")
