"""Builds kio's entities, which have one class for each version, from field values without a version.

A handler gives the fields of the newest version as plain mappings; :func:`build` drops the fields that the requested
version does not have. Durations are int milliseconds in the mappings and `timedelta` in kio's entities.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin

from coterie.wire.schemas import is_nullable, not_none, request_schema, response_schema

Values = Mapping[str, Any]
"""Values by kio's field name. The value of a struct is again such a mapping, that of an array is a sequence."""


def build_response(api_key: int, version: int, values: Values) -> Any:
    """kio's response entity of API ``api_key`` in ``version``. Values that this version does not have are dropped;
    fields that are not given get their defaults.

    :raises UnknownApiError: when there is no such API or version.
    :raises TypeError: when a field without default is missing, which is a bug in Coterie.
    """
    return build(response_schema(api_key, version), values)


def build_request(api_key: int, version: int, values: Values) -> Any:
    """kio's request entity of API ``api_key`` in ``version``, built like :func:`build_response`.

    :raises UnknownApiError: when there is no such API or version.
    :raises TypeError: when a field without default is missing, which is a bug in Coterie.
    """
    return build(request_schema(api_key, version), values)


def build(schema: Any, values: Values) -> Any:
    """An entity of the class ``schema``. Values that it does not have are dropped; fields that are not given get their
    defaults.

    :raises TypeError: when a field without default is missing, which is a bug in Coterie.
    """
    return schema(**{name: convert(values[name]) for name, convert in _converters(schema) if name in values})


def milliseconds(duration: timedelta) -> int:
    """kio's duration as int milliseconds, rounded."""
    return round(duration / timedelta(milliseconds=1))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def _converters(schema: Any) -> tuple[tuple[str, Any], ...]:
    """For each field of ``schema``: its name, and the function that converts its value."""
    return tuple((field.name, _converter(field.type, field.metadata.get("kafka_type"))) for field in fields(schema))


def _converter(type_: Any, kafka_type: str | None) -> Any:
    """The function that converts a value to kio's type of a field."""
    inner = not_none(type_)
    if get_origin(inner) is tuple:
        element = _converter(get_args(inner)[0], kafka_type)
        return lambda values: None if values is None else tuple(element(value) for value in values)
    if is_dataclass(inner):
        return lambda values: None if values is None else build(inner, values)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return lambda value_ms: timedelta(milliseconds=value_ms)
    if kafka_type == "datetime_i64":
        # kio writes a null time as -1. In a field that may not be null, -1 is the time 1 ms before 1970.
        may_be_none = is_nullable(type_)
        return lambda value_ms: None if may_be_none and value_ms < 0 else _EPOCH + timedelta(milliseconds=value_ms)
    return lambda value: value
