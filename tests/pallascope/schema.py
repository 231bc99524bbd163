"""The schema of a report as JSON, and the same without room for other fields."""

from pallascope import report

SCHEMA = report.schema()


def closed(schema):
    """The schema, which then refuses fields that it does not describe."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: closed(part) for name, part in schema.items()}
    return parts | ({"additionalProperties": False} if "properties" in parts else {})
