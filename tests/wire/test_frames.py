"""Frames compared with those that an unmodified Connect exchanged with an unmodified broker."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.nouns.errors import WireError
from coterie.wire.connect_bytes import decode_version_and_metadata
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response_frame,
    with_length,
)
from coterie.wire.kio_entities import build_request, build_response, to_milliseconds
from coterie.wire.schemas import UnknownApiError

RECORDED: Mapping[str, Any] = json.loads((Path(__file__).parent / "vectors" / "connect-wire.json").read_text())
KEYS = {"FindCoordinator": 10, "JoinGroup": 11, "Heartbeat": 12, "LeaveGroup": 13, "SyncGroup": 14}
FRAMES = [(what, bytes.fromhex(frame["hex"])) for what, frames in RECORDED["raw_frames"].items() for frame in frames]


@pytest.mark.parametrize(("what", "frame"), [pair for pair in FRAMES if " req" in pair[0]])
def test_recorded_requests_are_decoded_and_encoded_to_the_same_bytes(what: str, frame: bytes) -> None:
    header, request = decode_request(frame)
    api, version, *_ = what.split()
    assert (header.api_key, f"v{header.api_version}") == (KEYS[api], version)
    again, written = encode_request(request, correlation_id=header.correlation_id, client_id=header.client_id)
    assert (again, written) == (header, frame)


@pytest.mark.parametrize(("what", "frame"), [pair for pair in FRAMES if " resp" in pair[0]])
def test_recorded_responses_are_decoded_and_encoded_to_the_same_bytes(what: str, frame: bytes) -> None:
    api, version, *_ = what.split()
    header = RequestHeader(api_key=KEYS[api], api_version=int(version[1:]), correlation_id=int.from_bytes(frame[:4]))
    response = decode_response(frame, header)
    assert encode_response_frame(header, response) == frame


def test_connects_metadata_in_a_join_is_decoded() -> None:
    frame = next(frame for what, frame in FRAMES if what.startswith("JoinGroup v9 req"))
    _, join = decode_request(frame)
    assert join.protocol_type == "connect"
    assert to_milliseconds(join.session_timeout) == 6000
    assert decode_version_and_metadata(join.protocols[0].metadata)[1].url.startswith("http://")


def test_an_api_versions_response_has_a_header_that_every_client_can_read() -> None:
    header = RequestHeader(api_key=18, api_version=3, correlation_id=9)
    response = build_response(18, 3, {"error_code": ErrorCode.none, "api_keys": [], "throttle_time": 0})
    frame = encode_response_frame(header, response)
    assert frame == bytes.fromhex("00000009 0000 01 00000000 00")
    assert decode_response(frame, header) == response


def test_an_api_versions_response_with_unsupported_version_is_decoded_as_version_0() -> None:
    request_header = RequestHeader(api_key=18, api_version=4, correlation_id=1)
    answer = build_response(
        18,
        0,
        {
            "error_code": ErrorCode.unsupported_version,
            "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 2}],
        },
    )
    assert decode_response(encode_response_frame(request_header, answer), request_header) == answer


def test_the_header_of_an_unknown_api_or_version_can_be_read() -> None:
    for key, version in ((11, 99), (11, -1), (999, 0), (-3, 0)):
        frame = key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True) + bytes.fromhex("0000000f 0001 63")
        with pytest.raises(UnknownApiError, match=f"API {key} does not exist, or has no version {version}"):
            decode_request(frame)
        header = decode_request_header(frame)
        assert (header.correlation_id, header.client_id) == (15, "c")


@pytest.mark.parametrize("frame", [b"", b"\x00\x0b", bytes.fromhex("000b0006000000010005")])
def test_an_incomplete_header_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode_request(frame)


def test_a_response_to_another_request_is_refused() -> None:
    header = RequestHeader(api_key=12, api_version=4, correlation_id=1)
    frame = encode_response_frame(header, build_response(12, 4, {"throttle_time": 0, "error_code": ErrorCode.none}))
    with pytest.raises(WireError, match="but 2 was expected"):
        decode_response(frame, RequestHeader(api_key=12, api_version=4, correlation_id=2))


def test_the_same_values_are_encoded_in_every_version() -> None:
    values = {
        "group_id": "g", "session_timeout": 6000, "rebalance_timeout": 60_000, "member_id": "m",
        "group_instance_id": None, "protocol_type": "connect", "reason": None,
        "protocols": [{"name": "default", "metadata": b"x"}],
    }  # fmt: skip
    for version in range(10):
        _, frame = encode_request(build_request(11, version, values), correlation_id=1, client_id=None)
        _, join = decode_request(frame)
        assert to_milliseconds(join.session_timeout) == 6000
        assert join.protocols[0].metadata == b"x"


def test_a_frame_is_preceded_by_its_length() -> None:
    assert with_length(b"abc") == b"\0\0\0\x03abc"
