"""Checks of the partitions and offsets that clients send for a connector, in the form of Connect's REST API."""

from collections.abc import Sequence
from typing import TypeGuard

from coterie.nouns.connector_offsets import ConnectorOffset, JsonMap, OffsetsRefusedError


def require_exact_partition_fields(offset: ConnectorOffset, *names: str) -> JsonMap:
    """The partition of ``offset``, after a check that it has exactly the fields ``names``.

    :raises OffsetsRefusedError: when the partition is null, lacks one of the fields or has another one. The messages
        for null and for a missing field are those of Connect's sources.
    """
    if offset.partition is None:
        raise OffsetsRefusedError("Partition objects cannot be null")
    for name in names:
        if name not in offset.partition:
            raise OffsetsRefusedError(f"Partition objects should contain the key '{name}'")
    _refuse_other_fields("partition", offset.partition, names)
    return offset.partition


def parse_whole_number_offset(offset: ConnectorOffset, name: str, *, maximum: int) -> int | None:
    """The value of the field ``name``, the only field of the offset in ``offset``: a whole number from 0 to
    ``maximum``. None when the client has sent null in place of the offset.

    :raises OffsetsRefusedError: when the offset has other fields, or the value is not such a number. The messages are
        those of Connect's sources.
    """
    if offset.offset is None:
        return None
    if name not in offset.offset:
        raise OffsetsRefusedError(f"Offset objects should either be null or contain the key '{name}'")
    _refuse_other_fields("offset", offset.offset, (name,))
    value = offset.offset[name]
    if not is_json_integer(value):
        raise OffsetsRefusedError(f"The value for the '{name}' key in the offset is expected to be a Long value")
    if value < 0:
        raise OffsetsRefusedError(f"The value for the '{name}' key in the offset should be a non-negative value")
    if value > maximum:
        raise OffsetsRefusedError(f"The value for the '{name}' key in the offset should be at most {maximum}")
    return value


def is_json_integer(value: object) -> TypeGuard[int]:
    """Whether ``value``, from JSON, is an integer, which may be negative. ``true``, ``1.0`` and ``"1"`` are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_other_fields(kind: str, fields: JsonMap, names: Sequence[str]) -> None:
    """Check that ``fields`` has no other field than ``names``. ``kind``: what has the fields, for the message:
    ``partition`` or ``offset``.

    :raises OffsetsRefusedError: when there is another field.
    """
    if unknown := sorted(fields.keys() - set(names)):
        known = " and ".join(f"'{name}'" for name in names)
        raise OffsetsRefusedError(f"A {kind} of this source has the key {known} only, not '{unknown[0]}'")
