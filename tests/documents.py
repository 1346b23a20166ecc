"""Documents of `--json`, compared with their schemas."""

import json
from pathlib import Path

from jsonschema import Draft202012Validator

import torchgraft.cli

SCHEMAS = Path(torchgraft.cli.__file__).parent / "schemas"


def read_document(name, text):
    """A document, from its text; it must be as its schema says, and hold nothing that the schema does not name."""
    document = json.loads(text)
    errors = [f"{error.json_path}: {error.message}" for error in validator_of(name).iter_errors(document)]
    assert not errors, "\n".join(errors[:5])
    return document


def validator_of(name):
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema))


def _closed(schema):
    """A schema that refuses entries which it does not name: later versions may add some, and name them then."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(each) for name, each in schema.items()}
    return closed | ({"additionalProperties": False} if isinstance(closed.get("properties"), dict) else {})
