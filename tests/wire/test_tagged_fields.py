"""Tagged fields: their bytes, their defaults, and those of newer versions."""

import pytest

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer
from coterie.wire.tagged_fields import TaggedField, TaggedFieldsReader, TaggedFieldsWriter

NUMBER = TaggedField(tag=0, write=Writer.int32, read=Reader.int32, default=-1)
NAME = TaggedField(tag=2, write=Writer.compact_string, read=Reader.compact_string, default="")


def written(number: int, name: str) -> str:
    fields = TaggedFieldsWriter()
    fields.add(NUMBER, number)
    fields.add(NAME, name)
    writer = Writer()
    fields.write_to(writer)
    return writer.getvalue().hex(" ")


def read(data: str) -> tuple[int, str]:
    reader = Reader(bytes.fromhex(data))
    fields = TaggedFieldsReader(reader, last_known_field=NAME)
    reader.expect_end()
    return fields.value(NUMBER), fields.value(NAME)


@pytest.mark.parametrize(
    ("values", "data"),
    [
        ((-1, ""), "00"),
        ((7, ""), "01 00 04 00 00 00 07"),
        ((-1, "a"), "01 02 02 02 61"),
        ((7, "a"), "02 00 04 00 00 00 07 02 02 02 61"),
    ],
)
def test_only_values_other_than_the_defaults_are_written(values: tuple[int, str], data: str) -> None:
    assert written(*values) == data
    assert read(data) == values


@pytest.mark.parametrize("unknown", ["01 01 99", "03 00", "ff7f 02 0102"])
def test_a_field_with_an_unknown_tag_is_skipped(unknown: str) -> None:
    number, name = "00 04 00000007", "02 02 0261"
    order = (number, unknown, name) if unknown.startswith("01") else (number, name, unknown)
    assert read("03" + "".join(order)) == (7, "a")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("02 02 02 0261 00 04 00000007", "the tagged field 0 follows the tagged field 2; the tags must rise"),
        ("02 00 04 00000007 00 04 00000008", "the tagged field 0 follows the tagged field 0"),
        ("01 00 05 0000000700", "1 bytes follow the last value"),
        ("01 00 03 000007", "4 bytes are expected"),
        ("01 02 02 0361 00", "follow the last value"),
        ("02 00 04 00000007", "2 bytes are left|bytes are expected"),
        ("01 00 05 00000007", "5 bytes are expected"),
    ],
)
def test_malformed_fields_are_refused(data: str, message: str) -> None:
    with pytest.raises(WireError, match=message):
        read(data)


def test_the_content_of_a_field_does_not_continue_in_the_next_field() -> None:
    with pytest.raises(WireError, match="2 bytes are expected at position 4, but 1 are left"):
        TaggedFieldsReader(Reader(bytes.fromhex("02 02 02 0361 03 01 62")), last_known_field=NAME).value(NAME)
