"""Frames over TCP, good and hostile: a bad connection does not affect others."""

import logging
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coterie.broker.apis.table import APIS
from coterie.broker.settings import BrokerSettings
from coterie.wire.batches import NewRecord, encode_batch
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import RequestHeader, decode_response, with_length
from tests.broker.conftest import Connect, RawClient, ThreadedBroker
from tests.broker.full_disk import fill_disk, lift_limit

API_VERSIONS, METADATA, PRODUCE, FETCH, HEARTBEAT = 18, 3, 0, 1, 12
HOSTILE_JOIN = bytes.fromhex("000b0006 00000001 0001 61 0002 67 00001770 00001770 01 00 02 63ffffffff0f") + b"\0" * 64


@pytest.fixture
def settings(tmp_path: Path) -> BrokerSettings:
    return BrokerSettings(
        data_path=tmp_path / "broker",
        frame_size_max=100_000,
        connections_max=4,
        connection_requests_in_flight_max=3,
        idle_timeout_ms=700,
    )


@pytest.fixture
def bystander(connect: Connect) -> Iterator[None]:
    """Another connection, which must be served before and after the test."""
    client = connect()
    assert client.ask(API_VERSIONS, 4, client_software_name="t", client_software_version="1").error_code == 0
    yield
    again = connect()
    assert again.ask(API_VERSIONS, 4, client_software_name="t", client_software_version="1").error_code == 0


def test_every_advertised_version_is_served(connect: Connect) -> None:
    client = connect()
    for version in range(5):
        answer = client.ask(API_VERSIONS, version, client_software_name="t", client_software_version="1")
        assert answer.error_code is ErrorCode.none
        assert {api.api_key for api in answer.api_keys} == set(APIS)


def test_a_newer_version_of_api_versions_gets_the_supported_versions(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(with_length(bytes.fromhex("0012 0063 0000002a ffff 00") + b"whatever"))
    answer = decode_response(client.receive_frame(), RequestHeader(api_key=18, api_version=0, correlation_id=42))
    assert answer.error_code is ErrorCode.unsupported_version
    assert any(api.api_key == API_VERSIONS and api.max_version == 4 for api in answer.api_keys)


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize(
    "hostile",
    [
        with_length(HOSTILE_JOIN),
        struct.pack(">i", 100_001) + b"x",
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        with_length(b"\0"),
        with_length(bytes.fromhex("000b 0063 00000001 ffff")),
        with_length(bytes.fromhex("0000 0002 00000001 ffff 0001 000003e8 00000000")),
        with_length(bytes.fromhex("03e7 0000 00000001 ffff")),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes.fromhex("16030100c8010000c40303"),
    ],
    ids=[
        "hostile count", "too long", "negative", "empty", "half a header", "version 99", "produce v2", "no such api",
        "http", "tls",
    ],
)  # fmt: skip
def test_hostile_bytes_close_their_connection_with_one_line(
    connect: Connect, hostile: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        client = connect()
        client.socket.sendall(hostile)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    # Only our loggers: on a slow machine asyncio's debug mode logs, too.
    ours = [record for record in caplog.records if record.name.startswith("coterie.")]
    assert len(ours) <= 1, caplog.text
    assert not any(record.exc_info for record in ours)


def test_each_kind_of_protocol_error_is_logged_once_whatever_numbers_the_peer_chooses(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        for size in (100_001, 100_002, -1):
            client = connect()
            client.socket.sendall(struct.pack(">i", size))
            assert client.is_closed()
        for count in (1, 2, 3):
            client = connect()
            client.socket.sendall(struct.pack(">i", 10) + b"x" * count)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.is_closed()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "the peer announced a frame of 100001 bytes; a frame has 1 to 100000 bytes",
        "the peer disconnected in the middle of a frame, after 1 bytes",
    ]


@pytest.mark.usefixtures("bystander")
def test_an_idle_connection_is_closed(connect: Connect) -> None:
    client = connect()
    client.socket.sendall(b"\0\0")
    assert client.is_closed()


def test_a_parked_request_keeps_its_connection_open(connect: Connect) -> None:
    client = connect()
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    # Longer than the idle timeout, which does not apply while the client waits for the broker.
    assert fetch(client, offset=0, max_wait=1500).responses[0].partitions[0].records in (b"", None)


def test_more_connections_than_allowed_are_refused(connect: Connect) -> None:
    clients = [connect() for _ in range(6)]
    assert sum(client.is_closed() for client in clients[4:]) == 2


def produce(client: RawClient, *values: bytes, acks: int = -1, topic: str = "t") -> RequestHeader:
    batch = encode_batch([NewRecord(key=None, value=value) for value in values], timestamp_ms=1)
    return client.send(
        PRODUCE,
        9,
        transactional_id=None,
        acks=acks,
        timeout=1000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
    )


def fetch(client: RawClient, *, offset: int, max_wait: int = 0) -> Any:
    return client.ask(
        FETCH,
        12,
        max_wait=max_wait,
        min_bytes=1,
        max_bytes=10_000,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[
            {"topic": "t", "partitions": [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10_000}]}
        ],
        forgotten_topics_data=(),
    )


def test_pipelined_requests_are_written_and_answered_in_order(connect: Connect) -> None:
    client = connect()
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    headers = [produce(client, b"%d" % number) for number in range(40)]
    offsets = [client.receive(header).responses[0].partition_responses[0].base_offset for header in headers]
    assert offsets == list(range(40))


def test_a_produce_without_acks_is_written_even_if_its_connection_closes(connect: Connect) -> None:
    client = connect()
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    leaver = connect()
    for number in range(3):
        produce(leaver, b"%d" % number, acks=0)
    leaver.socket.close()
    for already in range(3):
        # Waits for the next record, as a consumer does.
        assert fetch(client, offset=already, max_wait=30_000).responses[0].partitions[0].high_watermark > already


@pytest.mark.parametrize(
    "hostile",
    [struct.pack(">i", 0), struct.pack(">i", 100_001), with_length(b"\0"), struct.pack(">i", 9) + b"half"],
    ids=["empty", "too long", "half a header", "half a frame"],
)
def test_a_produce_before_a_malformed_frame_is_written(connect: Connect, hostile: bytes) -> None:
    client = connect()
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    sender = connect()
    # Both frames in one segment: the broker reads the second one before the first one is executed.
    sender.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    produce(sender, b"counts")
    sender.socket.sendall(hostile)
    sender.socket.shutdown(socket.SHUT_WR)
    assert sender.is_closed()
    assert fetch(client, offset=0, max_wait=30_000).responses[0].partitions[0].high_watermark == 1


def test_a_damaged_batch_is_refused_and_nothing_is_written(connect: Connect) -> None:
    client = connect()
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    good = encode_batch([NewRecord(key=None, value=b"v")], timestamp_ms=1)
    damaged, unsound = ErrorCode.corrupt_message, ErrorCode.invalid_record
    for bad, error in ((good[:-1] + b"x", damaged), (good[:-1], unsound), (b"", unsound), (good + good, unsound)):
        answer = client.ask(
            PRODUCE,
            9,
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": bad}]}],
        )
        assert answer.responses[0].partition_responses[0].error_code is error
    assert client.receive(produce(client, b"v")).responses[0].partition_responses[0].base_offset == 0


def test_unknown_topics_get_kafkas_error_codes_by_name_and_by_id(connect: Connect) -> None:
    client = connect()
    answer = client.receive(produce(client, b"v", topic="nowhere"))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.unknown_topic_or_partition
    request = {"include_topic_authorized_operations": False, "allow_auto_topic_creation": False}
    by_name = client.ask(METADATA, 12, topics=[{"topic_id": None, "name": "no"}], **request)
    assert by_name.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    invalid = client.ask(METADATA, 12, topics=[{"topic_id": None, "name": "a b"}], **request)
    assert invalid.topics[0].error_code is ErrorCode.invalid_topic_exception
    by_id = client.ask(METADATA, 12, topics=[{"topic_id": UUID(int=7), "name": None}], **request)
    assert by_id.topics[0].error_code is ErrorCode.unknown_topic_id


def test_a_full_disk_is_reported_to_the_client_and_the_broker_keeps_running(
    connect: Connect, broker: ThreadedBroker
) -> None:
    client = connect()
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    broker.run(lambda node: node.log.run_write(partial(fill_disk, spare_pages=2)))
    refused = client.receive(produce(client, b"x" * 50_000)).responses[0].partition_responses[0]
    assert refused.error_code is ErrorCode.kafka_storage_error
    assert "full" in refused.error_message
    broker.run(lambda node: node.log.run_write(lift_limit))
    assert client.receive(produce(client, b"v")).responses[0].partition_responses[0].base_offset == 0
