"""Error responses: required fields that were not given get Kafka's empty values."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from coterie.wire.errors import ErrorCode
from coterie.wire.schemas import is_nullable, not_none, response_schema
from coterie.wire.shapes import Values


def filled_response(api_key: int, version: int, values: Values) -> Values:
    """``values`` of a response of ``version``, with empty values added at every level."""
    return filled(response_schema(api_key, version), values)


def filled(schema: Any, values: Values) -> Values:
    """``values`` for an entity of ``schema``, with an empty value added for each missing field that has no default. The
    empty value is null for a nullable field; otherwise an empty array, string or bytes, False, 0 for a time or a float,
    and -1 for an integer (an id, an offset or an epoch)."""
    complete: dict[str, Any] = {}
    for field in fields(schema):
        if field.name in values:
            complete[field.name] = _filled_value(field.type, values[field.name])
        elif field.default is MISSING:
            complete[field.name] = _empty(field)
    return complete


def _filled_value(type_: Any, value: Any) -> Any:
    inner = not_none(type_)
    if get_origin(inner) is tuple and value is not None:
        element = get_args(inner)[0]
        return [_filled_value(element, one) for one in value]
    return filled(inner, value) if is_dataclass(inner) and isinstance(value, Mapping) else value


def _empty(field: Field[Any]) -> Any:
    if is_nullable(field.type):
        return None
    if get_origin(field.type) is tuple:
        return ()
    if is_dataclass(field.type):
        return filled(field.type, {})
    match field.metadata["kafka_type"]:
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "error_code":
            return ErrorCode.none
        case "bool":
            return False
        case "timedelta_i32" | "timedelta_i64" | "datetime_i64":
            return 0
        case "float64":
            return 0.0
        case _:
            return -1
