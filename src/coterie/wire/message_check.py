"""Walks a peer's message before kio parses it, and rejects every count or length that is greater than the bytes that
follow allow.

kio's native parser allocates memory for as many elements as an array announces. For a JoinGroup v6 whose array of
protocols begins with `ff ff ff ff 0f`, that is more memory than the host has, and the process is aborted. So each
message is first walked by its schema (the `kafka_type` of kio's fields, flexible or not, tagged fields), and every
count and length is compared with the bytes left. The walk of each type of message is built once.

The walk also removes the tagged fields that are not in kio's schema, on every level: a newer peer may send such fields
and its messages must be accepted (KIP-482), but kio rejects them.
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, get_args, get_origin

from coterie.nouns.errors import WireError
from coterie.wire.primitives import STRING_SIZE_MAX, Writer
from coterie.wire.schemas import annotation_without_none, is_nullable

ELEMENTS_MAX = 500_000
"""The maximum number of array elements and tagged fields in one message, nested ones included.

The size of a frame is limited by the code that reads it from a connection. But an element of 3 bytes becomes some 100
bytes of objects, and each element takes time. Responses of large clusters come nearest to this limit: metadata of
50,000 partitions with three replicas each.
"""


class TooManyElementsError(WireError):
    """The message has more array elements and tagged fields than the caller allows. Raised before kio creates any of
    them."""


_FIXED_SIZES = {
    "bool": 1, "int8": 1, "uint8": 1,
    "int16": 2, "uint16": 2, "error_code": 2,
    "int32": 4, "uint32": 4, "timedelta_i32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "timedelta_i64": 8, "datetime_i64": 8,
    "uuid": 16,
}  # fmt: skip
"""The sizes in bytes of kio's types that have a fixed size."""


class _MessageBytes:
    """The bytes of a message that is walked, and how many more array elements and tagged fields it may contain."""

    __slots__ = ("data", "elements_left", "elements_max", "end", "replacements")

    def __init__(self, data: bytes, elements_max: int) -> None:
        self.data = data
        self.end = len(data)
        self.elements_max = elements_max
        self.elements_left = elements_max
        self.replacements: list[tuple[int, int, bytes]] = []
        """Replacements (start, end, bytes) in ascending order: tagged fields without those that kio's schema lacks."""

    def without_unknown_tagged_fields(self) -> bytes:
        """The bytes with their replacements: without the tagged fields that kio's schema lacks."""
        return self.slice_with_replacements(0, self.end, self.replacements) if self.replacements else self.data

    def slice_with_replacements(self, start: int, end: int, replacements: list[tuple[int, int, bytes]]) -> bytes:
        """The bytes from ``start`` to ``end`` with those ``replacements`` that are between them."""
        parts: list[bytes] = []
        position = start
        for replaced_from, replaced_to, replacement in replacements:
            if start <= replaced_from and replaced_to <= end:
                parts += (self.data[position:replaced_from], replacement)
                position = replaced_to
        return b"".join((*parts, self.data[position:end]))

    def skip(self, position: int, size: int) -> int:
        """The position after the ``size`` bytes at ``position``.

        :raises WireError: when fewer bytes are left.
        """
        if size < 0 or size > self.end - position:
            raise WireError(f"{size} bytes are expected at position {position}, but {self.end - position} are left")
        return position + size

    def check_and_count_elements(self, position: int, count: int, size_min_bytes: int) -> int:
        """``count``, the number of elements that begin at ``position``, each of at least ``size_min_bytes`` bytes,
        after a check. Counts the elements toward the maximum of the message.

        :raises WireError: when the bytes left are too few, or the message has too many elements.
        """
        if count < 0 or count * size_min_bytes > self.end - position:
            raise WireError(
                f"{count} elements are announced before position {position}, but {self.end - position} bytes are left"
            )
        self.elements_left -= count
        if self.elements_left < 0:
            raise TooManyElementsError(
                f"a message has more than {self.elements_max} array elements and tagged fields, the maximum"
            )
        return count

    def read_number(self, position: int, size: int) -> int:
        """The signed number in the ``size`` bytes at ``position``.

        :raises WireError: when fewer bytes are left.
        """
        return int.from_bytes(self.data[position : self.skip(position, size)], signed=True)

    def read_uvarint(self, position: int) -> tuple[int, int]:
        """The unsigned varint of at most 5 bytes at ``position``, and the position after it.

        :raises WireError: when the varint is cut off or longer.
        """
        value = 0
        for shift in range(0, 35, 7):
            if position >= self.end:
                break
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
        raise WireError(f"the varint before position {position} is cut off or too long")


_WalkFunction: TypeAlias = Callable[[_MessageBytes, int], int]
"""Walks one value of a message: checks the counts and lengths in the value that begins at the given position, and
returns the position after the value."""


@dataclass(frozen=True, slots=True)
class _TypeWalk:
    """How the values of one type are walked: checked for their counts and lengths, and passed over."""

    walk: _WalkFunction
    """Walks one value of the type."""
    size_min_bytes: int
    """The fewest bytes of one value."""
    is_fixed_size: bool = False
    """Whether every value has ``size_min_bytes`` bytes."""


def check_and_strip_unknown_fields(
    data: bytes, position: int, entity_type: Any, *, elements_max: int = ELEMENTS_MAX
) -> bytes:
    """Check the counts and lengths of the message of kio's ``entity_type`` that begins at position ``position``; return
    ``data`` without the tagged fields that kio's schema lacks. Bytes after the message stay and are ignored, as in
    Kafka: librdkafka sends some after its Metadata v12.

    :raises WireError: when a count or length exceeds the bytes left, or the message is malformed otherwise;
        `TooManyElementsError` when it has more than ``elements_max`` array elements and tagged fields.
    """
    message = _MessageBytes(data, elements_max)
    _make_entity_walk(entity_type).walk(message, position)
    return message.without_unknown_tagged_fields()


# -- the walks, built once for each type -------------------------------------------------------------------------------


@cache
def _make_entity_walk(entity_type: Any) -> _TypeWalk:
    """The :class:`_TypeWalk` of a message or struct: it checks the counts and lengths of one value, field by field and
    without decoding it. Built once for each type."""
    is_flexible: bool = entity_type.__flexible__
    untagged: list[_TypeWalk] = []
    walk_by_tag: dict[int, _WalkFunction] = {}
    for field in fields(entity_type):
        tag = field.metadata.get("tag")
        if tag is None:
            untagged.append(_make_field_walk(field, is_flexible=is_flexible, may_be_null=is_nullable(field.type)))
        else:
            # A null tagged field is absent, so kio reads it without a null marker.
            walk_by_tag[tag] = _make_field_walk(field, is_flexible=is_flexible, may_be_null=False).walk
    walks = tuple(_join_fixed_size_walks(untagged))
    size_min_bytes = sum(type_walk.size_min_bytes for type_walk in untagged) + is_flexible

    def walk(message: _MessageBytes, position: int) -> int:
        for walk_field in walks:
            position = walk_field(message, position)
        return _walk_tagged_fields(message, position, walk_by_tag) if is_flexible else position

    return _TypeWalk(walk, size_min_bytes)


def _join_fixed_size_walks(type_walks: list[_TypeWalk]) -> list[_WalkFunction]:
    """The functions that check consecutive fields with the given walks, in the order of the fields. Adjacent fields of
    fixed size get one function for all of them."""
    walks: list[_WalkFunction] = []
    fixed_size = 0
    for type_walk in type_walks:
        if type_walk.is_fixed_size:
            fixed_size += type_walk.size_min_bytes
            continue
        if fixed_size:
            walks.append(_make_fixed_size_walk(fixed_size).walk)
            fixed_size = 0
        walks.append(type_walk.walk)
    if fixed_size:
        walks.append(_make_fixed_size_walk(fixed_size).walk)
    return walks


def _make_field_walk(field: Field[Any], *, is_flexible: bool, may_be_null: bool) -> _TypeWalk:
    """The :class:`_TypeWalk` that checks the values of one field. ``may_be_null`` counts only for a struct: a byte then
    stands before the struct, -1 for null. Whether an array may be null follows from the type of ``field``."""
    value_type: Any = annotation_without_none(field.type)
    is_array = get_origin(value_type) is tuple
    if is_array:
        value_type = annotation_without_none(get_args(value_type)[0])
    is_entity = is_dataclass(value_type)
    element_walk = (
        _make_entity_walk(value_type)
        if is_entity
        else _make_primitive_walk(field.metadata["kafka_type"], is_flexible=is_flexible)
    )
    if is_array:
        assert element_walk.size_min_bytes > 0, (
            f"{field.name} has elements without bytes: nothing would limit their number"
        )
        # kio accepts null even where the schema does not; the code that handles the message does not expect null there.
        return _make_array_walk(element_walk, is_flexible=is_flexible, may_be_null=is_nullable(field.type))
    return _make_nullable_entity_walk(element_walk) if may_be_null and is_entity else element_walk


def _make_primitive_walk(kafka_type: str, *, is_flexible: bool) -> _TypeWalk:
    """The :class:`_TypeWalk` that checks values of kio's primitive type ``kafka_type``, such as ``int32`` or
    ``string``.

    :raises NotImplementedError: when the type is not known here, which is a bug in Coterie.
    """
    if kafka_type in _FIXED_SIZES:
        return _make_fixed_size_walk(_FIXED_SIZES[kafka_type])
    if kafka_type not in ("string", "bytes", "records"):
        raise NotImplementedError(
            f"coterie.wire.message_check cannot check kio's type {kafka_type}, which is a bug in Coterie: add the type "
            "there"
        )
    is_string = kafka_type == "string"
    return (
        _make_compact_bytes_walk(is_string=is_string) if is_flexible else _make_sized_bytes_walk(2 if is_string else 4)
    )


def _make_fixed_size_walk(size: int) -> _TypeWalk:
    """The :class:`_TypeWalk` of values of ``size`` bytes each: it checks that so many bytes are left."""
    return _TypeWalk(lambda message, position: message.skip(position, size), size, is_fixed_size=True)


def _make_compact_bytes_walk(*, is_string: bool) -> _TypeWalk:
    """The :class:`_TypeWalk` that checks strings or bytes of a flexible version: an unsigned varint of length + 1 (0
    for null), and the bytes. With ``is_string``, the length is at most `STRING_SIZE_MAX`."""

    def walk(message: _MessageBytes, position: int) -> int:
        size, position = message.read_uvarint(position)
        if is_string and size - 1 > STRING_SIZE_MAX:
            raise WireError(
                f"a string has a stated size of {size - 1} bytes; the maximum in Kafka's messages is {STRING_SIZE_MAX}"
            )
        return message.skip(position, size - 1) if size else position

    return _TypeWalk(walk, 1)


def _make_sized_bytes_walk(length_size: int) -> _TypeWalk:
    """The :class:`_TypeWalk` that checks strings or bytes of an older version: a signed length of ``length_size`` bytes
    (-1 for null), and the bytes."""

    def walk(message: _MessageBytes, position: int) -> int:
        size = message.read_number(position, length_size)
        position += length_size
        return message.skip(position, size) if size != -1 else position

    return _TypeWalk(walk, length_size)


def _make_array_walk(element_walk: _TypeWalk, *, is_flexible: bool, may_be_null: bool) -> _TypeWalk:
    """The :class:`_TypeWalk` that checks arrays: their count, and each element with ``element_walk``. A null array is
    an error unless ``may_be_null``."""

    def walk(message: _MessageBytes, position: int) -> int:
        if is_flexible:
            compact_count, position = message.read_uvarint(position)
            count = compact_count - 1
        else:
            count = message.read_number(position, 4)
            position += 4
        if count == -1 and may_be_null:
            return position
        count = message.check_and_count_elements(position, count, element_walk.size_min_bytes)
        if element_walk.is_fixed_size:
            return message.skip(position, count * element_walk.size_min_bytes)
        for _ in range(count):
            position = element_walk.walk(message, position)
        return position

    return _TypeWalk(walk, 1 if is_flexible else 4)


def _make_nullable_entity_walk(entity_walk: _TypeWalk) -> _TypeWalk:
    """The :class:`_TypeWalk` that checks a struct that may be null. One byte stands before the struct: -1 for
    null, else 1 (KIP-893). As in Kafka, each number from 0 announces a struct. Other negative numbers are refused:
    Kafka reads them as null, but kio would read a struct after them."""

    def walk(message: _MessageBytes, position: int) -> int:
        marker = message.read_number(position, 1)
        if marker < -1:
            raise WireError(f"the null marker {marker} of a struct at position {position} is neither -1 nor 1")
        return position + 1 if marker == -1 else entity_walk.walk(message, position + 1)

    return _TypeWalk(walk, 1)


def _walk_tagged_fields(message: _MessageBytes, position: int, walk_by_tag: dict[int, _WalkFunction]) -> int:
    """Check the tagged fields at ``position``, and return the position after them. ``walk_by_tag`` has the functions
    that check the values of those in kio's schema. The others are marked for removal.

    :raises WireError: when a count or size exceeds the bytes left, the tags do not rise, or a value does not have the
        size that its field states.
    """
    start = position
    replacement_count_before = len(message.replacements)
    count, position = message.read_uvarint(position)
    known_fields: list[tuple[int, int, int]] = []
    last_tag = -1
    for _ in range(message.check_and_count_elements(position, count, 2)):
        tag, position = message.read_uvarint(position)
        if tag <= last_tag:
            raise WireError(
                f"the tagged field {tag} comes after the tagged field {last_tag}, before position {position}"
            )
        last_tag = tag
        size, position = message.read_uvarint(position)
        end = message.skip(position, size)
        if tag in walk_by_tag:
            known_fields.append((tag, position, end))
            if walk_by_tag[tag](message, position) != end:
                raise WireError(
                    f"the tagged field {tag} at position {position} states {size} bytes, but its value has another size"
                )
        position = end
    if len(known_fields) < count or len(message.replacements) > replacement_count_before:
        _add_replacement_of_tagged_fields(message, start, position, known_fields, replacement_count_before)
    return position


def _add_replacement_of_tagged_fields(
    message: _MessageBytes,
    start: int,
    end: int,
    known_fields: list[tuple[int, int, int]],
    replacement_count_before: int,
) -> None:
    """Replace the tagged fields between the positions ``start`` and ``end`` by those in ``known_fields`` (tag, start
    and end of the value): add one replacement to ``message.replacements``.

    The first ``replacement_count_before`` items of ``message.replacements`` were found before this struct's tagged
    fields. The later items are inside the values of these fields: they are removed from the list, and the values in
    ``known_fields`` are written with these replacements, each after its new length.
    """
    nested_replacements = message.replacements[replacement_count_before:]
    del message.replacements[replacement_count_before:]
    writer = Writer()
    writer.uvarint(len(known_fields))
    for tag, value_start, value_end in known_fields:
        value = message.slice_with_replacements(value_start, value_end, nested_replacements)
        writer.uvarint(tag)
        writer.uvarint(len(value))
        writer.raw(value)
    message.replacements.append((start, end, writer.getvalue()))
