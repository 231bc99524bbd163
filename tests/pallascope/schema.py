"""The schemas of what is saved as JSON, and the same without room for other fields."""

import json
import pathlib

import pytest

import pallascope
from pallascope import report

SCHEMA = report.schema()


def validate(document, command):
    """Raises unless a command's document is as its schema says, with no other field."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema reads the schema")
    place = pathlib.Path(pallascope.__file__).parent / "command" / f"{command}.schema.json"
    schema = SCHEMA if command == "check" else json.loads(place.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(closed(schema)).validate(document)


def closed(schema):
    """The schema, which then refuses fields that it does not describe."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    return parts | ({"additionalProperties": False} if "properties" in parts else {})
