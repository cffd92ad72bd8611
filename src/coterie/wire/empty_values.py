"""Completes the values of error responses: required fields that were not given get Kafka's empty values."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values
from coterie.wire.schemas import is_nullable, not_none, response_schema


def response_with_empty_values(api_key: int, version: int, values: Values) -> Values:
    """``values`` of the response of API ``api_key`` in ``version``, with empty values added as in
    :func:`with_empty_values`."""
    return with_empty_values(response_schema(api_key, version), values)


def with_empty_values(schema: Any, values: Values) -> Values:
    """``values`` for an entity of ``schema``, with an empty value added for each missing field that has no default,
    also in nested structs and arrays. The empty value is null for a nullable field; otherwise an empty array, string or
    bytes, False, 0 for a time or a float, NONE for an error code, and -1 for an integer (an id, an offset or an epoch).
    A struct gets its fields' empty values."""
    complete: dict[str, Any] = {}
    for field in fields(schema):
        if field.name in values:
            complete[field.name] = _value_with_empty_values(field.type, values[field.name])
        elif field.default is MISSING:
            complete[field.name] = _empty_value(field)
    return complete


def _value_with_empty_values(type_: Any, value: Any) -> Any:
    """``value`` of the type ``type_``, with empty values added if it is a struct or an array of structs."""
    inner = not_none(type_)
    if get_origin(inner) is tuple and value is not None:
        element = get_args(inner)[0]
        return [_value_with_empty_values(element, one) for one in value]
    return with_empty_values(inner, value) if is_dataclass(inner) and isinstance(value, Mapping) else value


def _empty_value(field: Field[Any]) -> Any:
    """The empty value of ``field``."""
    if is_nullable(field.type):
        return None
    if get_origin(field.type) is tuple:
        return ()
    if is_dataclass(field.type):
        return with_empty_values(field.type, {})
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
        case "int32" if field.name.endswith("_ms"):
            return 0  # a duration in a message of connect groups
        case _:
            return -1
