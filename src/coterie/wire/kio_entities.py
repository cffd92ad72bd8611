"""Builds kio's entities, which have one class for each version, from field values without a version.

A handler gives the fields of the newest version as plain mappings; :func:`build_entity` drops the fields that the
requested version does not have. Durations are int milliseconds in the mappings and `timedelta` in kio's entities.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, get_args, get_origin

from coterie.wire.schemas import annotation_without_none, is_nullable, request_schema, response_schema

Values = Mapping[str, Any]
"""Values by kio's field name. The value of a struct is again such a mapping, that of an array is a sequence."""


def build_response(api_key: int, version: int, values: Values) -> Any:
    """kio's response entity of API ``api_key`` in ``version``. Values that this version does not have are dropped;
    fields that are not given get their defaults.

    :raises UnknownApiError: when there is no such API or version.
    :raises TypeError: when a field without default is missing, which is a bug in Coterie.
    """
    return build_entity(response_schema(api_key, version), values)


def build_request(api_key: int, version: int, values: Values) -> Any:
    """kio's request entity of API ``api_key`` in ``version``, built like :func:`build_response`.

    :raises UnknownApiError: when there is no such API or version.
    :raises TypeError: when a field without default is missing, which is a bug in Coterie.
    """
    return build_entity(request_schema(api_key, version), values)


def build_entity(schema: Any, values: Values) -> Any:
    """An entity of the class ``schema``. Values of fields that the class does not have are dropped; fields that are not
    given get their defaults.

    :raises TypeError: when a field without default is missing, which is a bug in Coterie.
    """
    return schema(
        **{name: convert(values[name]) for name, convert in _converters_by_field_name(schema) if name in values}
    )


def to_milliseconds(duration: timedelta) -> int:
    """kio's duration as int milliseconds, rounded."""
    return round(duration / timedelta(milliseconds=1))


_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def _converters_by_field_name(schema: Any) -> tuple[tuple[str, Any], ...]:
    """For each field of ``schema``: its name, and the function that converts its value."""
    return tuple(
        (field.name, _value_converter(field.type, field.metadata.get("kafka_type"))) for field in fields(schema)
    )


def _value_converter(annotation: Any, kafka_type: str | None) -> Any:
    """The function that converts a value of `Values` to the type that kio requires in a field with this annotation and
    ``kafka_type``."""
    type_without_none = annotation_without_none(annotation)
    if get_origin(type_without_none) is tuple:
        convert_element = _value_converter(get_args(type_without_none)[0], kafka_type)
        return lambda values: None if values is None else tuple(convert_element(value) for value in values)
    if is_dataclass(type_without_none):
        return lambda values: None if values is None else build_entity(type_without_none, values)
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return lambda value_ms: timedelta(milliseconds=value_ms)
    if kafka_type == "datetime_i64":
        # kio writes a null time as -1. In a field that may not be null, -1 is the time 1 ms before 1970.
        is_field_nullable = is_nullable(annotation)
        return lambda value_ms: (
            None if is_field_nullable and value_ms < 0 else _UNIX_EPOCH + timedelta(milliseconds=value_ms)
        )
    return lambda value: value
