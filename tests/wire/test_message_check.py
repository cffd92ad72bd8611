"""Hostile messages never reach kio's native parser."""

import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.index import api_key_map, schema_name_map

from coterie.broker.apis.table import APIS
from coterie.nouns.errors import WireError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import (
    REQUEST_ELEMENTS_MAX,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response_frame,
)
from coterie.wire.kio_entities import build_request, build_response
from coterie.wire.message_check import check_and_strip_unknown_fields
from coterie.wire.primitives import Writer
from coterie.wire.schemas import CONNECT_GROUP_APIS, request_schema, response_schema

MADE_HERE = sorted(APIS)
EVERY_VERSION = [
    (key, version)
    for key in MADE_HERE
    for version in ([0] if key in CONNECT_GROUP_APIS else sorted(schema_name_map[api_key_map[key]]))
]


def test_a_hostile_count_is_refused_where_kio_would_abort_the_process() -> None:
    """A JoinGroup v6 with a count of 2**35 - 1 protocols, decoded with a memory limit, in a separate process."""
    program = textwrap.dedent(
        """
        import resource
        from coterie.nouns.errors import WireError
        from coterie.wire.frames import decode_request

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        header = bytes.fromhex("000b0006 00000001 0001 61 00")
        body = bytes.fromhex("02 67 00001770 00001770 01 00 02 63")
        for count in ("ffffffff0f", "ffffffff07", "ffff7f"):
            try:
                decode_request(header + body + bytes.fromhex(count) + b"\\0" * 40)
            except WireError as error:
                print("refused", error)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 3


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_a_check_exists_for_every_served_message(api_key: int, version: int) -> None:
    for schema in (request_schema(api_key, version), response_schema(api_key, version)):
        if not fields(schema):
            continue  # the first ApiVersions requests have no body at all
        with pytest.raises(WireError):
            check_and_strip_unknown_fields(b"\x7f", 0, schema)


def test_more_elements_than_any_client_needs_are_refused_before_they_are_created() -> None:
    writer = Writer()
    for value in (11, 6):
        writer.int16(value)
    writer.int32(1)
    writer.nullable_string(None)
    writer.no_tagged_fields()
    writer.compact_string("g")
    writer.int32(6000)
    writer.int32(6000)
    writer.compact_string("")
    writer.uvarint(0)  # null
    writer.compact_string("c")
    writer.uvarint(REQUEST_ELEMENTS_MAX + 2)
    writer.raw(b"\x01\x01\x00" * (REQUEST_ELEMENTS_MAX + 1))
    writer.no_tagged_fields()
    with pytest.raises(WireError, match="elements"):
        decode_request(writer.getvalue())


HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
FETCHED: dict[str, Any] = {
    "throttle_time": 0,
    "error_code": ErrorCode.none,
    "session_id": 0,
    "responses": [],
}


def test_trailing_bytes_are_ignored_as_kafka_ignores_them() -> None:
    _, frame = encode_request(build_request(12, 4, HEARTBEAT), correlation_id=1, client_id="c")
    assert decode_request(frame + b"\0\1\2") == decode_request(frame)


@pytest.mark.parametrize(
    "tags",
    ["ffffffff0f", "020000", "02 0001 00 0000", "01 00 ffffffff0f", "01ffffffffff"],
    ids=["count", "the same twice", "falling", "size", "endless varint"],
)
def test_malformed_tagged_fields_are_refused(tags: str) -> None:
    _, frame = encode_request(build_request(12, 4, HEARTBEAT), correlation_id=1, client_id="c")
    with pytest.raises(WireError):
        decode_request(frame[:-1] + bytes.fromhex(tags))


def test_a_string_longer_than_a_non_flexible_string_can_be_is_refused() -> None:
    """Then a string of a flexible version fits into records, whose strings have the non-flexible format."""
    for size in (32_767, 32_768):
        values = HEARTBEAT | {"group_id": "g" * size}
        _, frame = encode_request(build_request(12, 4, values), correlation_id=1, client_id="c")
        with pytest.raises(WireError, match="32768") if size > 32_767 else nullcontext():
            decode_request(frame)


def test_null_for_a_field_that_is_not_nullable_is_refused() -> None:
    """Kio would return None where a list is expected."""
    request = build_request(15, 4, {"groups": ["g"], "include_authorized_operations": False})
    _, frame = encode_request(request, correlation_id=1, client_id="c")
    assert frame.endswith(bytes.fromhex("00000001 0001 67 00"))
    with pytest.raises(WireError):
        decode_request(frame[:-8] + bytes.fromhex("ffffffff 00"))


def test_an_unknown_tagged_field_is_ignored() -> None:
    _, frame = encode_request(build_request(12, 4, HEARTBEAT), correlation_id=1, client_id="c")
    assert decode_request(frame[:-1] + bytes.fromhex("01 63 03 aabbcc"))[1].generation_id == 1


def test_unknown_tagged_fields_are_removed_on_each_level() -> None:
    """FetchRequest v15 with ReplicaState as tagged field 1: the length before it changes, too."""
    head = "00000001 00000001 7fffffff 00 00000000 ffffffff"
    state, topic_id = "00000005 0000000000000007", "00" * 16
    topics, with_unknown = (
        f"03 {topic_id} 01 00 {topic_id} 01 00",
        f"03 {topic_id} 01 01 05 00 {topic_id} 01 02 05 00 06 00",
    )
    schema = request_schema(1, 15)
    plain = bytes.fromhex(f"{head} {topics} 01 01 01 01 0d {state} 00")
    assert check_and_strip_unknown_fields(plain, 0, schema) == plain
    for tags in (f"01 01 11 {state} 01 05 02 aabb", f"02 01 0d {state} 00 63 00", f"02 01 0f {state} 01 00 00 63 00"):
        for some in (topics, with_unknown):
            assert check_and_strip_unknown_fields(bytes.fromhex(f"{head} {some} 01 01 {tags}"), 0, schema) == plain


@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=120))
@settings(max_examples=400)
def test_any_request_bytes_are_read_or_refused(api: tuple[int, int], body: bytes) -> None:
    header = Writer()
    header.int16(api[0])
    header.int16(api[1])
    header.int32(7)
    header.nullable_string(None)
    try:
        decode_request(header.getvalue() + body)
    except WireError:
        return


@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=120))
@settings(max_examples=400)
def test_any_response_bytes_are_read_or_refused(api: tuple[int, int], body: bytes) -> None:
    header = RequestHeader(api_key=api[0], api_version=api[1], correlation_id=7)
    try:
        decode_response(b"\0\0\0\x07" + body, header)
    except WireError:
        return


JOIN = {
    "group_id": "g",
    "session_timeout": 6000,
    "rebalance_timeout": 6000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "connect",
    "protocols": [{"name": "default", "metadata": b"abc"}, {"name": "compatible", "metadata": b""}],
    "reason": "why",
}


@given(st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_request_is_read_or_refused(data: st.DataObject) -> None:
    version = data.draw(st.integers(0, 9))
    _, frame = encode_request(build_request(11, version, JOIN), correlation_id=1, client_id="c")
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(8, len(frame)))
    try:
        decode_request(bytes(damaged[:cut]))
    except WireError:
        return


def test_a_fetch_response_with_tagged_structs_passes_the_check() -> None:
    header = RequestHeader(api_key=1, api_version=18, correlation_id=3)
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "high_watermark": 5,
        "current_leader": {"leader_id": 1, "leader_epoch": 4},
        "aborted_transactions": None,
        "records": b"xyz",
    }
    values = FETCHED | {
        "responses": [{"topic_id": None, "partitions": [partition]}],
        "node_endpoints": [{"node_id": 1, "host": "h", "port": 2, "rack": None}],
    }
    response = decode_response(encode_response_frame(header, build_response(1, 18, values)), header)
    assert response.responses[0].partitions[0].current_leader.leader_epoch == 4
    assert response.node_endpoints[0].host == "h"
