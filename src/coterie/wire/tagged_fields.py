"""Tagged fields (KIP-482): the optional fields at the end of a struct, each with its tag and its size.

A field whose value is its default is not written. A reader skips the fields whose tags it does not know, so a struct
can get more fields without a new version.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedField(Generic[T]):
    """One tagged field of a struct."""

    tag: int
    write: Callable[[Writer, T], None]
    read: Callable[[Reader], T]
    default: T
    """The value of a field that is not written."""


class TaggedFieldsWriter:
    """Collects the tagged fields of one struct, and writes them."""

    __slots__ = ("_contents",)

    def __init__(self) -> None:
        self._contents: list[tuple[int, Writer]] = []

    def add(self, field: TaggedField[T], value: T) -> None:
        """Add ``field`` unless ``value`` is its default. The fields must be added in the order of their tags."""
        if value == field.default:
            return
        assert not self._contents or self._contents[-1][0] < field.tag, "the tags must rise"
        content = Writer()
        field.write(content, value)
        self._contents.append((field.tag, content))

    def write_to(self, writer: Writer) -> None:
        """Write the number of the fields and the fields."""
        writer.uvarint(len(self._contents))
        for tag, content in self._contents:
            writer.uvarint(tag)
            writer.uvarint(len(content))
            writer.raw(content.getvalue())


class TaggedFieldsReader:
    """The tagged fields of one struct."""

    __slots__ = ("_contents",)

    def __init__(self, reader: Reader, *, last_known: TaggedField[Any]) -> None:
        """Read all tagged fields from ``reader``. Fields with greater tags than ``last_known`` are skipped.

        :raises WireError: when the fields are malformed, or their tags do not rise.
        """
        self._contents: dict[int, Reader] = {}
        last_tag = -1
        for _ in range(reader.tagged_field_count()):
            tag, content = reader.tagged_field()
            if tag <= last_tag:
                raise WireError(f"the tagged field {tag} follows the tagged field {last_tag}; the tags must rise")
            last_tag = tag
            if tag <= last_known.tag:
                self._contents[tag] = content

    def value(self, field: TaggedField[T]) -> T:
        """The value of ``field``; its default when the field was not written.

        :raises WireError: when the content of the field is malformed.
        """
        content = self._contents.get(field.tag)
        if content is None:
            return field.default
        value = field.read(content)
        content.expect_end()
        return value
