"""The definitions of connect groups' messages (docs/protocol/messages), and a second encoder that interprets them.

    python -m tests.wire.connect_group_definitions

writes tests/wire/vectors/connect-groups.json again. The encoder uses nothing of Coterie or kio: it is written from
Kafka's protocol guide and KIP-893. The values of a message are in the form of JSON: fields by their names in the
definition, bytes as hexadecimal digits, a uuid as its text.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFINITIONS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[2] / "docs" / "protocol" / "messages").glob("*.json"))
}
VECTORS = Path(__file__).parent / "vectors" / "connect-groups.json"

Fields = list[dict[str, Any]]
_INTEGER_SIZES = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
PRIMITIVES = {*_INTEGER_SIZES, "bool", "uuid", "string", "bytes"}


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field: ``element`` is a primitive type, or the name of a struct whose fields are `fields`."""

    element: str
    is_array: bool
    fields: Fields

    @property
    def is_struct(self) -> bool:
        return self.element not in PRIMITIVES


def type_of(definition: Mapping[str, Any], field: Mapping[str, Any]) -> FieldType:
    text: str = field["type"]
    element = text.removeprefix("[]")
    structs = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}
    return FieldType(element, text.startswith("[]"), field.get("fields") or structs.get(element, []))


def default_of(definition: Mapping[str, Any], field: Mapping[str, Any]) -> Any:
    """The default of a field, which is zero or empty where the definition names none."""
    type_, text = type_of(definition, field), field.get("default")
    if text == "null":
        return None
    if type_.is_array:
        return []
    match type_.element:
        case "string" | "bytes":
            return text or ""
        case "bool":
            return text == "true"
        case "uuid":
            return str(uuid.UUID(int=0))
        case element if element in _INTEGER_SIZES:
            return int(text or 0)
        case _:
            return {one["name"]: default_of(definition, one) for one in type_.fields}


# -- the encoder ------------------------------------------------------------------------------------------------------


class Encoder:
    """Encodes one message. With `hostile_array` n, the count of the n-th array that is written is `hostile_count`."""

    def __init__(
        self, definition: Mapping[str, Any], *, hostile_array: int | None = None, hostile_count: int = 0
    ) -> None:
        self._definition = definition
        self._hostile_array = hostile_array
        self._hostile_count = hostile_count
        self.arrays = 0

    def message(self, values: Mapping[str, Any]) -> bytes:
        return self._struct(self._definition["fields"], values)

    def _struct(self, fields: Fields, values: Mapping[str, Any]) -> bytes:
        assert not set(values) - {field["name"] for field in fields}, "no such field"
        plain, tagged = b"", {}
        for field in fields:
            default = default_of(self._definition, field)
            value = values.get(field["name"], default)
            if "tag" not in field:
                plain += self._value(field, value)
            elif value != default:
                tagged[field["tag"]] = self._value(field, value)
        written = (varint(tag) + varint(len(value)) + value for tag, value in sorted(tagged.items()))
        return plain + varint(len(tagged)) + b"".join(written)

    def _value(self, field: Mapping[str, Any], value: Any) -> bytes:
        type_ = type_of(self._definition, field)
        if type_.is_array:
            return self._array(type_, value)
        if not type_.is_struct:
            return primitive(type_.element, value)
        if "nullableVersions" not in field:
            return self._struct(type_.fields, value)
        # KIP-893: a byte before a struct that may be null. For tagged fields it is a varint, with 0 instead of -1.
        if value is None:
            return b"\x00" if "tag" in field else b"\xff"
        return b"\x01" + self._struct(type_.fields, value)

    def _array(self, type_: FieldType, value: Any) -> bytes:
        if value is None:
            return varint(0)
        count = self._hostile_count if self.arrays == self._hostile_array else len(value)
        self.arrays += 1
        return varint(count + 1) + b"".join(
            self._struct(type_.fields, one) if type_.is_struct else primitive(type_.element, one) for one in value
        )


def primitive(element: str, value: Any) -> bytes:
    match element:
        case "string":
            return varint(0) if value is None else varint(len(value.encode()) + 1) + value.encode()
        case "bytes":
            return varint(len(value) // 2 + 1) + bytes.fromhex(value)
        case "bool":
            return b"\x01" if value else b"\x00"
        case "uuid":
            return uuid.UUID(value).bytes
        case _:
            return int(value).to_bytes(_INTEGER_SIZES[element], signed=True)


def varint(value: int) -> bytes:
    head = b""
    while value > 127:
        head += bytes([value % 128 + 128])
        value //= 128
    return head + bytes([value])


# -- values -----------------------------------------------------------------------------------------------------------


def filled(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A value in every field, each a different one, and two elements in every array."""
    numbers = iter(range(1, 10_000))

    def value(field: Mapping[str, Any], path: str) -> Any:
        type_ = type_of(definition, field)
        if type_.is_array:
            return [one(type_, f"{path}{number}") for number in (1, 2)]
        return one(type_, path)

    def one(type_: FieldType, path: str) -> Any:
        if type_.is_struct:
            return {field["name"]: value(field, f"{path}.{field['name']}") for field in type_.fields}
        number = next(numbers)
        match type_.element:
            case "string":
                return path.removeprefix(".")
            case "bytes":
                return number.to_bytes(2).hex()
            case "bool":
                return True
            case "uuid":
                return str(uuid.UUID(int=number << 64 | number))
            case "int8":
                return number % 127
            case _:
                return number + 1_000

    return {field["name"]: value(field, field["name"]) for field in definition["fields"]}


def smallest(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Null, zero or empty in each field, except for the defaults of the definition."""
    return {field["name"]: default_of(definition, field) for field in definition["fields"]}


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def entity_values(definition: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for `kio_entities.build`."""

    def convert(field: Mapping[str, Any], value: Any) -> Any:
        type_ = type_of(definition, field)
        one: Callable[[Any], Any] = (
            (lambda value: struct(type_.fields, value))
            if type_.is_struct
            else {"bytes": bytes.fromhex, "uuid": _uuid_or_none}.get(type_.element, lambda value: value)
        )
        if type_.is_array:
            return None if value is None else [one(element) for element in value]
        converted = None if value is None else one(value)
        is_wrapped = type_.is_struct and "tag" in field and "nullableVersions" in field
        return {"value": converted} if is_wrapped else converted

    def struct(fields: Fields, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            snake_case(field["name"]): convert(field, values[field["name"]])
            for field in fields
            if field["name"] in values
        }

    return struct(definition["fields"], values)


def _uuid_or_none(text: str) -> uuid.UUID | None:
    """kio reads the zero uuid as None."""
    value = uuid.UUID(text)
    return value if value.int else None


def vectors() -> Iterator[dict[str, Any]]:
    for name, definition in DEFINITIONS.items():
        for kind, values in (("smallest", smallest(definition)), ("every field", filled(definition))):
            yield {"message": name, "kind": kind, "fields": values, "hex": Encoder(definition).message(values).hex()}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(list(vectors()), indent=1, ensure_ascii=False) + "\n")
