"""Tagged fields (KIP-482): the optional fields at the end of a struct, each with its tag and its size.

A field whose value is its default is not written. A reader skips the fields with unknown tags, so a struct
can get more fields without a new version.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedField(Generic[ValueT]):
    """The definition of one tagged field of a struct: its tag, how its value is written and read, and its default."""

    tag: int
    write: Callable[[Writer, ValueT], None]
    read: Callable[[Reader], ValueT]
    default: ValueT
    """The value of a field that is not written."""


class TaggedFieldsWriter:
    """Collects the tagged fields of one struct, and writes them."""

    __slots__ = ("_encoded_fields",)

    def __init__(self) -> None:
        self._encoded_fields: list[tuple[int, Writer]] = []

    def add(self, field: TaggedField[ValueT], value: ValueT) -> None:
        """Add ``field`` unless ``value`` is its default. The fields must be added in the order of their tags."""
        if value == field.default:
            return
        assert not self._encoded_fields or self._encoded_fields[-1][0] < field.tag, "the tags must rise"
        content = Writer()
        field.write(content, value)
        self._encoded_fields.append((field.tag, content))

    def write_to(self, writer: Writer) -> None:
        """Write the number of the added fields, and then each field with its tag and its size."""
        writer.uvarint(len(self._encoded_fields))
        for tag, content in self._encoded_fields:
            writer.uvarint(tag)
            writer.uvarint(len(content))
            writer.raw(content.getvalue())


class TaggedFieldsReader:
    """The tagged fields of one struct, as read from a message or record."""

    __slots__ = ("_content_by_tag",)

    def __init__(self, reader: Reader, *, last_known_field: TaggedField[Any]) -> None:
        """Read all tagged fields from ``reader``, and keep their contents for :meth:`value`. The contents of fields
        with greater tags than ``last_known_field`` are not kept.

        :raises WireError: when the fields are malformed, or their tags do not rise.
        """
        self._content_by_tag: dict[int, Reader] = {}
        last_tag = -1
        for _ in range(reader.tagged_field_count()):
            tag, content = reader.tagged_field()
            if tag <= last_tag:
                raise WireError(f"the tagged field {tag} follows the tagged field {last_tag}; the tags must rise")
            last_tag = tag
            if tag <= last_known_field.tag:
                self._content_by_tag[tag] = content

    def value(self, field: TaggedField[ValueT]) -> ValueT:
        """The value of ``field``; its default when the field was not written.

        :raises WireError: when the content of the field is malformed.
        """
        content = self._content_by_tag.get(field.tag)
        if content is None:
            return field.default
        value = field.read(content)
        content.expect_end()
        return value
