"""Bytes exchanged between an unmodified Kafka Connect worker and ours, in both directions (tests/kafka)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.nouns.ids import ConfigOffset, WorkerUrl
from coterie.wire.connect import ConnectProtocol, WorkerMetadata
from coterie.wire.connect_bytes import (
    decode_version_and_assignment,
    decode_version_and_metadata,
    encode_assignment,
    encode_metadata,
)
from tests.wire.recorded import assignment_of

MESSAGES = json.loads((Path(__file__).parent / "vectors" / "connect-mixed.json").read_text())


def recorded_messages(what: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "message",
        [message for message in MESSAGES if message["what"] == what],
        ids=lambda message: f"{message['when']}, by {message['by']}",
    )


@recorded_messages("metadata")
def test_exchanged_metadata_is_decoded_and_encoded_to_the_same_bytes(message: Mapping[str, Any]) -> None:
    data, decoded = bytes.fromhex(message["hex"]), message["decoded"]
    version, metadata = decode_version_and_metadata(data)
    assert metadata == WorkerMetadata(
        url=WorkerUrl(decoded["url"]),
        config_offset=ConfigOffset(decoded["config_offset"]),
        allocation=assignment_of(decoded["allocation"]) if decoded["allocation"] else None,
    )
    assert version == decoded["version"] == ConnectProtocol(version)
    assert ConnectProtocol(version).wire_name == message["protocol"]
    assert encode_metadata(ConnectProtocol(version), metadata) == data


@recorded_messages("assignment")
def test_exchanged_assignments_are_decoded_and_encoded_to_the_same_bytes(message: Mapping[str, Any]) -> None:
    data, decoded = bytes.fromhex(message["hex"]), message["decoded"]
    version, assignment = decode_version_and_assignment(data)
    assert assignment == assignment_of(decoded)
    assert version == decoded["version"]
    assert encode_assignment(ConnectProtocol(version), assignment) == data


def test_each_side_has_sent_metadata_and_assignments_in_each_protocol() -> None:
    kinds = {(message["by"], message["what"], message["protocol"]) for message in MESSAGES}
    assert {
        (by, what, name)
        for by in ("ours", "jvm")
        for what in ("metadata", "assignment")
        for name in ("default", "sessioned")
    } <= kinds
    assert {("ours", "assignment", "compatible"), ("jvm", "metadata", "compatible")} <= kinds
