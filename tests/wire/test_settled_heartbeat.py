"""The heartbeats that are decoded and encoded by hand: the same entities and bytes as in kio's general way."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.wire.connect_group_messages.settled_heartbeat import (
    decode_heartbeat_if_no_changes,
    encode_frame_if_no_news,
)
from coterie.wire.frames import (
    RequestHeader,
    decode_request,
    encode_request,
    encode_response_frame,
    encode_response_frame_from_values,
)
from coterie.wire.frames import _decode_entity as decode_by_schema
from coterie.wire.kio_entities import build_request, build_response
from coterie.wire.message_check import ELEMENTS_MAX
from coterie.wire.schemas import CONNECT_GROUP_HEARTBEAT, request_schema

SCHEMA: Any = request_schema(CONNECT_GROUP_HEARTBEAT, 0)
HEADER = RequestHeader(api_key=CONNECT_GROUP_HEARTBEAT, api_version=0, correlation_id=-7, client_id="worker-1")
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=150)
SETTLED: dict[str, Any] = {"group_id": "fleet", "member_id": "worker-é", "member_epoch": 7, "request_number": 9}
WITHOUT_NEWS: dict[str, Any] = {
    "throttle_time_ms": 0,
    "error_code": 0,
    "error_message": None,
    "member_epoch": 7,
    "heartbeat_interval_ms": 3_000,
    "session_timeout_ms": -1,
}
FURTHER_REQUEST_FIELDS: list[dict[str, Any]] = [
    {"request_number": 0},
    {"instance_id": "a"},
    {"rebalance_timeout_ms": 5},
    {"server_assignor": "cooperative"},
    {"client_assignors": []},
    {"connectors_and_tasks": {"connectors": [], "tasks": []}},
    {"url": "http://a"},
    {"config_offset": 3},
    {"draining": 1},
    {"connection_grace_ms": 3},
    {"resumes": True},
    {"group_id": "g" * 127},
    {"member_id": "m" * 127},
]
FURTHER_RESPONSE_FIELDS: list[dict[str, Any]] = [
    {"error_message": "the worker must join again"},
    {"session_timeout_ms": 10_000},
    {"leader_id": "a", "leader_epoch": 1, "leader_url": ""},
    {"assignment_epoch": 4},
    {"config_offset": 4},
    {
        "assignment": {
            "error": 0,
            "connectors_and_tasks": {"connectors": [], "tasks": []},
            "version": 0,
            "metadata": b"",
        }
    },
]


def body_of(values: dict[str, Any]) -> bytes:
    _, frame = encode_request(build_request(CONNECT_GROUP_HEARTBEAT, 0, values), correlation_id=1, client_id=None)
    return frame[11:]  # after key, version, correlation id, null client id and tagged fields


@given(group_id=TEXT, member_id=TEXT, member_epoch=INT32, request_number=INT64, max_wait_ms=INT32)
def test_a_settled_heartbeat_is_decoded_as_by_its_schema(**values: Any) -> None:
    body = body_of(values)
    decoded = decode_heartbeat_if_no_changes(body, 0)
    longest = max(len(values["group_id"].encode()), len(values["member_id"].encode()))
    assert (decoded is None) == (values["request_number"] == 0 or longest > 126)
    assert decoded in (None, decode_by_schema(body, 0, SCHEMA, ELEMENTS_MAX))


@pytest.mark.parametrize("max_wait_ms", [0, 1_000])
def test_a_heartbeat_in_which_nothing_changed_is_decoded_by_hand(max_wait_ms: int) -> None:
    values = SETTLED | {"max_wait_ms": max_wait_ms}
    assert decode_heartbeat_if_no_changes(body_of(values), 0) == build_request(CONNECT_GROUP_HEARTBEAT, 0, values)


@pytest.mark.parametrize("max_wait_ms", [0, 1_000])
@pytest.mark.parametrize("further", FURTHER_REQUEST_FIELDS, ids=lambda fields: next(iter(fields)))
def test_a_heartbeat_with_a_further_field_is_decoded_by_its_schema(further: dict[str, Any], max_wait_ms: int) -> None:
    request = build_request(CONNECT_GROUP_HEARTBEAT, 0, SETTLED | {"max_wait_ms": max_wait_ms} | further)
    _, frame = encode_request(request, correlation_id=1, client_id=None)
    assert decode_heartbeat_if_no_changes(frame[11:], 0) is None
    assert decode_request(frame)[1] == request


@given(damage=st.data())
def test_damaged_heartbeats_are_decoded_or_refused_as_by_their_schema(damage: st.DataObject) -> None:
    body = bytearray(body_of(SETTLED | {"max_wait_ms": damage.draw(st.sampled_from((0, 1_000)))}))
    for _ in range(damage.draw(st.integers(1, 3))):
        body[damage.draw(st.integers(0, len(body) - 1))] = damage.draw(st.integers(0, 255))
    damaged = bytes(body[: damage.draw(st.integers(0, len(body)))] if damage.draw(st.booleans()) else body)
    decoded = decode_heartbeat_if_no_changes(damaged, 0)
    try:
        by_schema = decode_by_schema(damaged, 0, SCHEMA, ELEMENTS_MAX)
    except WireError:
        assert decoded is None
    else:
        assert decoded in (None, by_schema)


def test_bytes_after_a_heartbeat_leave_it_to_its_schema() -> None:
    body = body_of(SETTLED | {"max_wait_ms": 1_000})
    assert decode_heartbeat_if_no_changes(body + b"\x00", 0) is None


@given(correlation_id=INT32, error_code=st.integers(0, 200), member_epoch=INT32, heartbeat_interval_ms=INT32)
def test_a_response_without_news_has_the_bytes_of_its_schema(correlation_id: int, **changes: int) -> None:
    values = WITHOUT_NEWS | changes
    header = RequestHeader(api_key=CONNECT_GROUP_HEARTBEAT, api_version=0, correlation_id=correlation_id)
    by_hand = encode_frame_if_no_news(correlation_id, values)
    assert by_hand == encode_response_frame(header, build_response(CONNECT_GROUP_HEARTBEAT, 0, values))


def test_a_response_without_the_fields_that_have_a_default_has_the_bytes_of_its_schema() -> None:
    values = {name: WITHOUT_NEWS[name] for name in WITHOUT_NEWS.keys() - {"error_message", "session_timeout_ms"}}
    by_schema = encode_response_frame(HEADER, build_response(CONNECT_GROUP_HEARTBEAT, 0, values))
    assert encode_frame_if_no_news(HEADER.correlation_id, values) == by_schema


@pytest.mark.parametrize("further", FURTHER_RESPONSE_FIELDS, ids=lambda fields: next(iter(fields)))
def test_a_response_with_news_is_encoded_by_its_schema(further: dict[str, Any]) -> None:
    values = WITHOUT_NEWS | further
    assert encode_frame_if_no_news(1, values) is None
    by_schema = encode_response_frame(HEADER, build_response(CONNECT_GROUP_HEARTBEAT, 0, values))
    assert encode_response_frame_from_values(HEADER, values) == by_schema
