"""Completes the values of error responses: required fields that were not given get Kafka's empty values (null; an empty
array, text or bytes; False; 0 for a time or a float; -1 for an id, an offset or another integer).
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_args, get_origin

from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values
from coterie.wire.schemas import annotation_without_none, is_nullable, response_schema


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


def _value_with_empty_values(annotation: Any, value: Any) -> Any:
    """``value`` of the type ``annotation``, with empty values added if it is a struct or an array of structs."""
    type_without_none = annotation_without_none(annotation)
    if get_origin(type_without_none) is tuple and value is not None:
        element_type = get_args(type_without_none)[0]
        return [_value_with_empty_values(element_type, item) for item in value]
    return (
        with_empty_values(type_without_none, value)
        if is_dataclass(type_without_none) and isinstance(value, Mapping)
        else value
    )


def _empty_value(field: Field[Any]) -> Any:
    """The empty value of ``field``, as :func:`with_empty_values` describes it."""
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
