"""The messages of connect groups: their definitions, Coterie's classes and two encoders agree; hostile bytes."""

import copy
import json
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, NamedTuple, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.wire.connect_group_messages.structs import NullableStruct
from coterie.wire.frames import (
    REQUEST_ELEMENTS_MAX,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response_frame,
)
from coterie.wire.kio_entities import build_entity
from coterie.wire.message_check import TooManyElementsError, check_and_strip_unknown_fields
from coterie.wire.schemas import (
    CONNECT_GROUP_APIS,
    UnknownApiError,
    annotation_without_none,
    header_version,
    is_nullable,
    request_schema,
    response_schema,
)
from tests.wire.connect_group_definitions import (
    DEFINITIONS,
    PRIMITIVES,
    VECTORS,
    Encoder,
    FieldType,
    default_of,
    entity_values,
    filled,
    snake_case,
    type_of,
    varint,
    vectors,
)

RECORDED = json.loads(VECTORS.read_text())
EVERY_MESSAGE = pytest.mark.parametrize("name", sorted(DEFINITIONS))


def schema_of(definition: Mapping[str, Any]) -> Any:
    return (request_schema if definition["type"] == "request" else response_schema)(definition["apiKey"], 0)


def header_of(definition: Mapping[str, Any]) -> RequestHeader:
    return RequestHeader(api_key=definition["apiKey"], api_version=0, correlation_id=7, client_id="c")


def head_of(definition: Mapping[str, Any]) -> bytes:
    """The bytes of a frame before the message, without the length."""
    if definition["type"] == "response":
        return bytes.fromhex("00000007 00")
    return header_of(definition).api_key.to_bytes(2) + bytes.fromhex("0000 00000007 000163 00")


def encoded(definition: Mapping[str, Any], entity: Any) -> bytes:
    """The message of ``entity`` as a frame contains it."""
    frame = (
        encode_response_frame(header_of(definition), entity)
        if definition["type"] == "response"
        else encode_request(entity, correlation_id=7, client_id="c")[1]
    )
    assert frame.startswith(head_of(definition))
    return frame[len(head_of(definition)) :]


def decoded(definition: Mapping[str, Any], message: bytes) -> Any:
    frame = head_of(definition) + message
    if definition["type"] == "response":
        return decode_response(frame, header_of(definition))
    return decode_request(frame)[1]


# -- the classes agree with the definitions ---------------------------------------------------------------------------


class DescribedField(NamedTuple):
    """What a definition, or a class, says of one field."""

    name: str
    type_: str
    is_array: bool
    is_nullable: bool
    tag: int | None
    default: Any
    metadata_type: str | None


PYTHON_TYPES = {"string": str, "bytes": bytes, "bool": bool, "uuid": uuid.UUID}
NO_DEFAULT = "no default"


def field_of_definition(definition: Mapping[str, Any], field: Mapping[str, Any]) -> DescribedField:
    type_ = type_of(definition, field)
    versions = [field.get(key, "0+") for key in ("versions", "nullableVersions", "taggedVersions")]
    assert versions == ["0+"] * 3, "only version 0 is supported"
    assert ("tag" in field) == ("taggedVersions" in field), "a tag belongs to taggedVersions"
    return DescribedField(
        name=snake_case(field["name"]),
        type_=type_.element if type_.is_struct else PYTHON_TYPES.get(type_.element, int).__name__,
        is_array=type_.is_array,
        is_nullable="nullableVersions" in field,
        tag=field.get("tag"),
        default=default_of(definition, field) if "default" in field or "tag" in field else NO_DEFAULT,
        metadata_type=None if type_.is_struct else type_.element,
    )


def field_of_class(field: Field[Any]) -> DescribedField:
    type_ = annotation_without_none(field.type)
    is_array = get_origin(type_) is tuple
    element: Any = get_args(type_)[0] if is_array else type_
    nullable = is_nullable(field.type)
    default = NO_DEFAULT if field.default is MISSING else field.default
    if isinstance(element, type) and issubclass(element, NullableStruct):
        (value,) = fields(element)  # type: ignore[arg-type]
        assert not nullable, "the marker would be there twice"
        assert default == element(), "an absent field is null"
        element, nullable, default = annotation_without_none(value.type), is_nullable(value.type), value.default
    if element is uuid.UUID:
        nullable, default = False, str(default or uuid.UUID(int=0))  # kio reads the zero uuid as None
    return DescribedField(
        name=field.name,
        type_=element.__name__,
        is_array=is_array,
        is_nullable=nullable,
        tag=field.metadata.get("tag"),
        default=[] if default == () else default,
        metadata_type=field.metadata.get("kafka_type"),
    )


def struct_of_class(field: Field[Any]) -> Any:
    """The class of a field's struct, or of the structs in its array."""
    type_ = annotation_without_none(field.type)
    element: Any = get_args(type_)[0] if get_origin(type_) is tuple else type_
    return annotation_without_none(fields(element)[0].type) if issubclass(element, NullableStruct) else element


def differences(definition: Mapping[str, Any], schema: Any) -> Iterator[str]:
    """Where the class ``schema`` and the definition differ."""
    is_request = definition["type"] == "request"
    header = (definition["name"], definition["apiKey"], definition["validVersions"], definition["flexibleVersions"])
    if header != (schema.__name__, schema.__api_key__, "0", "0+"):
        yield f"the message is {header}"
    if (schema.__version__, schema.__flexible__, header_version(schema)) != (0, True, 2 if is_request else 1):
        yield "the version or its header differs"
    yield from struct_differences(definition, definition["fields"], schema)


def struct_differences(
    definition: Mapping[str, Any], field_definitions: list[dict[str, Any]], schema: Any
) -> Iterator[str]:
    """Where the class of a struct differs from the definitions of its fields."""
    ours = fields(schema)
    if [snake_case(field["name"]) for field in field_definitions] != [field.name for field in ours]:
        yield f"{schema.__name__} has the fields {[field.name for field in ours]}"
        return
    if schema.__flexible__ is not True:
        yield f"{schema.__name__} is not flexible"
    for field, our_field in zip(field_definitions, ours, strict=True):
        expected, actual = field_of_definition(definition, field), field_of_class(our_field)
        if expected != actual:
            yield f"{schema.__name__}: {expected}, but the class has {actual}"
        elif expected.metadata_type is None:
            yield from struct_differences(definition, type_of(definition, field).fields, struct_of_class(our_field))


@EVERY_MESSAGE
def test_each_class_agrees_with_its_definition(name: str) -> None:
    assert DEFINITIONS[name]["name"] == name
    assert list(differences(DEFINITIONS[name], schema_of(DEFINITIONS[name]))) == []


def test_each_api_of_connect_groups_has_two_definitions_and_only_version_0() -> None:
    assert sorted(CONNECT_GROUP_APIS) == [10000, 10001, 10002, 10003]
    assert {(one["apiKey"], one["type"]) for one in DEFINITIONS.values()} == {
        (key, type_) for key in CONNECT_GROUP_APIS for type_ in ("request", "response")
    }
    for look_up in (request_schema, response_schema):
        assert all(look_up(key, 0) is look_up(key, 0) for key in CONNECT_GROUP_APIS)
        for unknown in ((10000, 1), (10000, -1), (10004, 0)):
            with pytest.raises(UnknownApiError):
                look_up(*unknown)


def field_lists(definition: dict[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """Each list of fields in a definition, nested ones and common structs included."""

    def nested(found: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        yield found
        for field in found:
            yield from nested(field["fields"]) if "fields" in field else ()

    for top in (definition, *definition.get("commonStructs", ())):
        yield from nested(top["fields"])


def other_type(text: str) -> str:
    """Another type than ``text``, of the same kind."""
    element = text.removeprefix("[]")
    other = {"string": "bytes", "int32": "int64", "bool": "string"}.get(element, "int32")
    return text.replace(element, other if element in PRIMITIVES else "OtherStruct")


def toggle_null(field: dict[str, Any]) -> None:
    if field.pop("nullableVersions", None) is None:
        field["nullableVersions"] = "0+"


def toggle_tag(field: dict[str, Any]) -> None:
    if field.pop("tag", None) is None:
        field |= {"tag": 0, "taggedVersions": "0+"}
    else:
        del field["taggedVersions"]


def toggle_default(field: dict[str, Any]) -> None:
    """Another default, or one where there is none."""
    if field["type"].startswith("[]") or field["type"] not in PRIMITIVES:
        if field.pop("default", None) is None:
            field["default"] = "null"
    elif field["type"] == "bool":
        field["default"] = "true"
    elif field["type"] == "uuid":
        field["default"] = "null"
    else:
        field["default"] = "7" if field.get("default") != "7" else "8"


MUTATIONS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "name": lambda field: field.update(name=field["name"] + "X"),
    "type": lambda field: field.update(type=other_type(field["type"])),
    "array": lambda field: field.update(
        type=field["type"][2:] if field["type"].startswith("[]") else "[]" + field["type"]
    ),
    "null": toggle_null,
    "tag": toggle_tag,
    "number of the tag": lambda field: field.update(tag=field.get("tag", 0) + 1, taggedVersions="0+"),
    "default": toggle_default,
}


def is_detected(definition: Mapping[str, Any], schema: Any) -> bool:
    try:
        return bool(list(differences(definition, schema)))
    except AssertionError:
        return True


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
@EVERY_MESSAGE
def test_each_change_of_a_field_in_a_definition_is_detected(name: str, mutation: str) -> None:
    schema = schema_of(DEFINITIONS[name])
    undetected = []
    for place, found in enumerate(field_lists(DEFINITIONS[name])):
        for number in range(len(found)):
            changed = copy.deepcopy(DEFINITIONS[name])
            MUTATIONS[mutation](list(field_lists(changed))[place][number])
            if not is_detected(changed, schema):
                undetected.append(found[number])
    assert undetected == []


@EVERY_MESSAGE
def test_a_field_that_is_added_removed_or_moved_in_a_definition_is_detected(name: str) -> None:
    schema = schema_of(DEFINITIONS[name])
    for place, found in enumerate(field_lists(DEFINITIONS[name])):
        for number in range(len(found)):
            added, removed, moved = (copy.deepcopy(DEFINITIONS[name]) for _ in range(3))
            list(field_lists(added))[place].insert(number, {"name": "Added", "type": "int8", "versions": "0+"})
            del list(field_lists(removed))[place][number]
            list(field_lists(moved))[place].insert(0, list(field_lists(moved))[place].pop(number))
            assert is_detected(added, schema)
            assert is_detected(removed, schema)
            assert is_detected(moved, schema) or number == 0


@pytest.mark.parametrize(
    "change",
    [{"apiKey": 9}, {"name": "Other"}, {"validVersions": "0-1"}, {"flexibleVersions": "none"}, {"type": "other"}],
    ids=str,
)
@EVERY_MESSAGE
def test_a_change_of_the_message_itself_is_detected(name: str, change: Mapping[str, Any]) -> None:
    is_heads_type = change == {"type": "other"} and DEFINITIONS[name]["type"] == "response"
    changed = DEFINITIONS[name] | ({"type": "request"} if is_heads_type else change)
    assert is_detected(changed, schema_of(DEFINITIONS[name]))


# -- two encoders write the same bytes --------------------------------------------------------------------------------


def test_the_vectors_are_those_of_the_definitions() -> None:
    """After a change of a definition: python -m tests.wire.connect_group_definitions"""
    assert list(vectors()) == RECORDED


@pytest.mark.parametrize("vector", RECORDED, ids=lambda one: f"{one['message']}, {one['kind']}")
def test_a_recorded_message_is_encoded_to_its_bytes_and_decoded(vector: Mapping[str, Any]) -> None:
    definition, message = DEFINITIONS[vector["message"]], bytes.fromhex(vector["hex"])
    entity = build_entity(schema_of(definition), entity_values(definition, vector["fields"]))
    assert encoded(definition, entity) == message
    assert decoded(definition, message) == entity


def values(definition: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The values of any message, in the form of JSON."""

    def struct(field_definitions: list[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({field["name"]: value(field) for field in field_definitions})

    def value(field: Mapping[str, Any]) -> st.SearchStrategy[Any]:
        type_ = type_of(definition, field)
        strategy: st.SearchStrategy[Any] = one(type_)
        if type_.is_array:
            strategy = st.lists(strategy, max_size=3)
        if "nullableVersions" in field:
            strategy = st.none() | strategy
        return strategy | st.just(default_of(definition, field)) if "tag" in field else strategy

    def one(type_: FieldType) -> st.SearchStrategy[Any]:
        if type_.is_struct:
            return struct(type_.fields)
        bits = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}.get(type_.element)
        if bits is not None:
            return st.integers(-(2**bits), 2**bits - 1)
        kinds: dict[str, st.SearchStrategy[Any]] = {
            "string": st.text(max_size=5) | st.sampled_from(["é" * 64, "x" * 127, "x" * 128]),
            "bytes": st.binary(max_size=5).map(bytes.hex),
            "bool": st.booleans(),
            "uuid": st.uuids().map(str),
        }
        return kinds[type_.element]

    return struct(definition["fields"])


VALUES = {name: values(definition) for name, definition in DEFINITIONS.items()}


@EVERY_MESSAGE
@given(st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_message_is_encoded_as_by_the_second_encoder_and_decoded(name: str, data: st.DataObject) -> None:
    definition = DEFINITIONS[name]
    values = data.draw(VALUES[name])
    entity = build_entity(schema_of(definition), entity_values(definition, values))
    message = Encoder(definition).message(values)
    assert encoded(definition, entity) == message
    assert decoded(definition, message) == entity


HEARTBEAT = """
    2710 0000 00000007 0001 63 00   API 10000, version 0, correlation id 7, client id "c", no tagged fields
    02 67                           GroupId "g"
    03 6d31                         MemberId "m1"
    00000005                        MemberEpoch 5
    00                              InstanceId null
    ffffffff                        RebalanceTimeoutMs -1
    00                              ServerAssignor null
    02                              ClientAssignors: one
      04 666f6f                       Name "foo"
      0000 0002                       MinimumVersion 0, MaximumVersion 2
      03                              Reason 3
      0001                            Version 1
      03 aabb                         Metadata
      00                              no tagged fields
    01                              ConnectorsAndTasks is not null
      02 02 61                        Connectors: "a"
      02                              Tasks: one connector
        02 61                           ConnectorId "a"
        03 00000000 00000001            TaskIds 0, 1
        00                              no tagged fields
      00                              no tagged fields
    05                              five tagged fields
      00 08 08 687474703a2f2f         Url "http://"
      02 08 000000000000002a          ConfigOffset 42
      05 05                           Claims, 5 bytes
        01                              they are not null
        01                              Wildcard
        01 01                           no Connectors, no Tasks
        00                              no tagged fields
      06 01 01                        Draining 1
      08 08 0000000000000100          RequestNumber 256
"""


def test_a_heartbeat_has_these_bytes() -> None:
    frame = bytes.fromhex("".join(line[:34] for line in HEARTBEAT.splitlines()))
    request = build_entity(
        request_schema(10000, 0),
        {
            "group_id": "g",
            "member_id": "m1",
            "member_epoch": 5,
            "client_assignors": [
                {"name": "foo", "minimum_version": 0, "maximum_version": 2, "reason": 3, "version": 1,
                 "metadata": b"\xaa\xbb"}
            ],
            "connectors_and_tasks": {"connectors": ["a"], "tasks": [{"connector_id": "a", "task_ids": [0, 1]}]},
            "url": "http://",
            "config_offset": 42,
            "claims": {"value": {"wildcard": True, "connectors": [], "tasks": []}},
            "draining": 1,
            "request_number": 256,
        },
    )  # fmt: skip
    assert encode_request(request, correlation_id=7, client_id="c")[1] == frame
    assert decode_request(frame)[1] == request
    assert request.rebalance_timeout_ms == -1
    assert request.configured.value is None


def test_a_struct_of_127_bytes_in_a_tagged_field_has_a_length_that_counts_its_marker() -> None:
    """Kafka itself wrote this length wrongly (KAFKA-18199)."""
    definition = DEFINITIONS["ConnectGroupHeartbeatRequest"]
    for size in range(120, 130):
        values = filled(definition) | {"Claims": {"Wildcard": False, "Connectors": ["c" * size], "Tasks": []}}
        message = Encoder(definition).message(values)
        assert encoded(definition, build_entity(schema_of(definition), entity_values(definition, values))) == message
        assert decoded(definition, message).claims.value.connectors == ("c" * size,)


def test_a_tagged_struct_with_a_null_marker_is_read_as_absent_or_refused() -> None:
    """No encoder writes one, since null is the default: Kafka's would write 0, kio's -1."""
    definition = DEFINITIONS["ConnectGroupHeartbeatRequest"]
    plain = Encoder(definition).message({"GroupId": "g", "MemberId": "m"})
    assert decoded(definition, plain[:-1] + bytes.fromhex("01 05 01 ff")) == decoded(definition, plain)
    for other in ("00", "fe", "80"):
        with pytest.raises(WireError):
            decoded(definition, plain[:-1] + bytes.fromhex("01 05 01" + other))


@pytest.mark.parametrize("marker", ["fe", "80"])
def test_a_negative_null_marker_other_than_minus_1_is_refused(marker: str) -> None:
    """Kio reads a struct after it: the check must not read null there, else an array of the struct is unchecked."""
    definition = DEFINITIONS["ConnectGroupHeartbeatRequest"]
    plain = Encoder(definition).message({"GroupId": "g", "MemberId": "m"})
    assert plain.endswith(b"\xff\0")
    with pytest.raises(WireError, match="marker"):
        decoded(definition, plain[:-2] + bytes.fromhex(marker) + bytes.fromhex("00 feffffff0f"))


# -- hostile bytes ----------------------------------------------------------------------------------------------------


@EVERY_MESSAGE
def test_a_message_that_is_cut_off_is_refused_at_every_byte(name: str) -> None:
    definition = DEFINITIONS[name]
    schema = schema_of(definition)
    message = Encoder(definition).message(filled(definition))
    assert check_and_strip_unknown_fields(message, 0, schema) == message
    for size in range(len(message)):
        with pytest.raises(WireError):
            check_and_strip_unknown_fields(message[:size], 0, schema)
        with pytest.raises(WireError):
            decoded(definition, message[:size])


def hostile_messages(definition: Mapping[str, Any], count: int) -> Iterator[bytes]:
    """Messages with a value in every field, in each of which another array announces ``count`` elements."""
    values = filled(definition)
    encoder = Encoder(definition)
    encoder.message(values)
    for number in range(encoder.arrays):
        yield Encoder(definition, hostile_array=number, hostile_count=count).message(values)


@EVERY_MESSAGE
@pytest.mark.parametrize("count", [20_000, 2**31, 2**32 - 1, 2**34])
def test_an_array_that_announces_more_elements_than_bytes_follow_is_refused(name: str, count: int) -> None:
    definition = DEFINITIONS[name]
    for message in hostile_messages(definition, count):
        with pytest.raises(WireError):
            check_and_strip_unknown_fields(message, 0, schema_of(definition))


def test_hostile_counts_take_little_memory() -> None:
    """Kio's parser ends the process when it cannot allocate memory, so this is a process with little of it."""
    program = textwrap.dedent(
        """
        import resource
        from pathlib import Path
        from coterie.nouns.errors import WireError
        from tests.wire.test_connect_group_messages import DEFINITIONS, decoded, hostile_messages

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + 64 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        refused = 0
        for definition in DEFINITIONS.values():
            for count in (20_000, 2**31, 2**34):
                for message in hostile_messages(definition, count):
                    try:
                        decoded(definition, message)
                    except WireError:
                        refused += 1
                    else:
                        raise SystemExit(f"decoded: {message.hex()}")
        print(refused)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_a_leader_may_report_a_hundred_thousand_tasks_and_no_request_may_have_a_million_elements() -> None:
    definition = DEFINITIONS["ConnectGroupHeartbeatRequest"]

    def heartbeat(connectors: int, tasks: int) -> bytes:
        task_ids = list(range(tasks))
        configured = {
            "ConfigOffset": 1,
            "Connectors": [],
            "Tasks": [{"ConnectorId": f"c{number}", "TaskIds": task_ids} for number in range(connectors)],
        }
        return Encoder(definition).message({"GroupId": "g", "MemberId": "m", "Configured": configured})

    message = heartbeat(100, 1_000)
    assert sum(len(one.task_ids) for one in decoded(definition, message).configured.value.tasks) == 100_000
    with pytest.raises(TooManyElementsError):
        check_and_strip_unknown_fields(message, 0, schema_of(definition), elements_max=REQUEST_ELEMENTS_MAX)
    with pytest.raises(TooManyElementsError):
        decoded(definition, heartbeat(1_000, 1_000))


def with_unknown_fields(definition: Mapping[str, Any]) -> bytes:
    """A message with a value in every field, and an unknown tagged field in every struct."""

    class Newer(Encoder):
        def _struct(self, field_definitions: list[dict[str, Any]], values: Mapping[str, Any]) -> bytes:
            newer = {"name": "Newer", "type": "string", "tag": 99, "taggedVersions": "0+"}
            return super()._struct([*field_definitions, newer], {**values, "Newer": "unknown"})

    return Newer(definition).message(filled(definition))


@EVERY_MESSAGE
def test_unknown_tagged_fields_are_dropped_in_every_struct(name: str) -> None:
    definition = DEFINITIONS[name]
    message = Encoder(definition).message(filled(definition))
    newer = with_unknown_fields(definition)
    assert newer.count(varint(99) + b"\x08\x08unknown") >= 1
    assert check_and_strip_unknown_fields(newer, 0, schema_of(definition)) == message
    assert decoded(definition, newer) == decoded(definition, message)


@EVERY_MESSAGE
@given(st.data())
@settings(max_examples=100)
def test_a_damaged_message_is_read_or_refused(name: str, data: st.DataObject) -> None:
    definition = DEFINITIONS[name]
    damaged = bytearray(Encoder(definition).message(filled(definition)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded(definition, bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except WireError:
        return
