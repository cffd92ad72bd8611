"""Limits on what one peer may request at once, so that others are served meanwhile."""

import asyncio
import logging
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.security.budget import ByteBudget, PrincipalByteBudget, PrincipalByteBudgets, RequestBudgetShare
from coterie.broker.security.principals import ANONYMOUS
from coterie.broker.storage.reader import StoreReader
from coterie.wire.batches import NewRecord, encode_batch
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import RequestHeader
from tests.broker.conftest import DEADLINE_S, RawClient, raw_client, wait_until
from tests.broker.secured import USER, logged_in, secured_broker

PRODUCE, FETCH, METADATA, OFFSET_FETCH, HEARTBEAT, DESCRIBE_GROUPS = 0, 1, 3, 9, 12, 15


def is_served(client: RawClient) -> bool:
    return bool(client.ask(METADATA, 4, topics=[], allow_auto_topic_creation=False).brokers)


async def test_taking_more_than_the_remaining_bytes_waits_for_a_release() -> None:
    budget = ByteBudget(100)
    await budget.take(60)
    assert not budget.has_capacity(41)
    waiting = asyncio.create_task(budget.take(41))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.release(60)
    await waiting
    assert budget.bytes_in_flight == 41


async def test_a_single_request_may_take_more_than_the_whole_budget() -> None:
    budget = ByteBudget(100)
    await budget.take(1_000)
    assert not budget.has_capacity(1)
    budget.release(1_000)
    assert budget.has_capacity(1_000)


async def test_a_cancelled_wait_takes_no_bytes() -> None:
    budget = ByteBudget(100)
    await budget.take(100)
    waiting = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    budget.release(100)
    assert budget.bytes_in_flight == 0


async def test_the_next_response_is_not_blocked_by_bytes_of_later_responses() -> None:
    budget = ByteBudget(100)
    due = [1]
    first = RequestBudgetShare(budget, PrincipalByteBudget("a", 1_000), 0, is_next_response=lambda: due == [0])
    second = RequestBudgetShare(budget, PrincipalByteBudget("a", 1_000), 0, is_next_response=lambda: due == [1])
    await second.reserve_response_bytes(90)
    waiting = asyncio.create_task(first.reserve_response_bytes(90))
    await asyncio.sleep(0)
    assert not waiting.done()
    due[0] = 0
    budget.release(0)
    await waiting
    first.replace_with_response_bytes(80)
    assert budget.bytes_in_flight == 170


async def test_responses_leave_a_quarter_of_a_principals_budget_to_requests() -> None:
    shared = PrincipalByteBudget("a", 100)
    await shared.take_for_response(80, is_next_response=lambda: True)
    assert shared.has_capacity(20)
    waiting = asyncio.create_task(shared.take_for_response(40, is_next_response=lambda: True))
    await asyncio.sleep(0)
    shared.take_unchecked(20)
    assert not waiting.done()
    shared.release_response(80)
    await waiting
    assert shared.bytes_in_flight == 60


async def test_delayed_requests_and_responses_of_a_principal_are_each_warned_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    budgets = PrincipalByteBudgets(100)
    for _ in range(3):
        # The last release removes the budget: a client that connects again and again gets a new one each time.
        shared = budgets.acquire("User:a")
        shared.log_delayed_request("127.0.0.1:5")
        await shared.take_for_response(75, is_next_response=lambda: True)
        waiting = asyncio.create_task(shared.take_for_response(75, is_next_response=lambda: True))
        await asyncio.sleep(0)
        shared.release_response(75)
        await waiting
        budgets.release("User:a")
    budgets.acquire("User:b").log_delayed_request("127.0.0.1:6")
    assert [(one.levelname, one.getMessage().partition(":")[0]) for one in caplog.records] == [
        ("WARNING", "Connection 127.0.0.1"),
        ("WARNING", "Fetch responses for User"),
        ("WARNING", "Connection 127.0.0.1"),
    ]


async def test_a_later_response_takes_no_bytes_before_the_next_response() -> None:
    shared = PrincipalByteBudget("a", 100)
    due = [0]
    behind = asyncio.create_task(shared.take_for_response(75, is_next_response=lambda: due == [1]))
    await asyncio.sleep(0)
    await shared.take_for_response(75, is_next_response=lambda: due == [0])
    due[0] = 1
    shared.release_response(75)
    await behind
    assert shared.bytes_in_flight == 75


def test_a_principals_budget_exists_until_its_last_connection_releases_it() -> None:
    budgets = PrincipalByteBudgets(100)
    first = budgets.acquire("a")
    assert budgets.acquire("a") is first
    budgets.release("a")
    assert budgets.acquire("a") is first
    budgets.release("a")
    budgets.release("a")
    assert budgets.acquire("a") is not first


def test_one_address_may_not_take_all_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        secured_broker(tmp_path, "PLAINTEXT", connections_per_address_max=2) as broker,
        raw_client(broker.port) as one,
        raw_client(broker.port) as two,
    ):
        assert is_served(one)
        assert is_served(two)
        for _ in range(3):  # a client that connects again and again does not fill the log
            with raw_client(broker.port) as three, caplog.at_level(logging.WARNING, logger="coterie.broker"):
                assert three.is_closed()
        assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
            "2 connections from its address are open, which is the maximum (--connections-per-ip-max)"
        ]
        two.socket.close()

        def again() -> bool:
            try:
                with raw_client(broker.port) as client:
                    return is_served(client)
            except ConnectionError:
                return False

        wait_until(again)
        assert is_served(one)


def test_a_connection_over_its_in_flight_bytes_is_read_one_request_at_a_time(tmp_path: Path) -> None:
    batch = encode_batch([NewRecord(key=None, value=b"x" * 5_000)], timestamp_ms=1)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    with (
        secured_broker(tmp_path, "PLAINTEXT", connection_in_flight_size_max=6_000) as broker,
        raw_client(broker.port) as client,
    ):
        client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        headers = [
            client.send(PRODUCE, 9, transactional_id=None, acks=-1, timeout=1000, topic_data=data) for _ in range(30)
        ]
        offsets = [client.receive(header).responses[0].partition_responses[0].base_offset for header in headers]
    assert offsets == list(range(30))


def test_a_greedy_principal_waits_and_others_are_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        secured_broker(tmp_path, "SASL_PLAINTEXT", principal_in_flight_size_max=1_000) as broker,
        logged_in(broker, "bob") as bob,
        logged_in(broker, USER) as second,
        caplog.at_level(logging.DEBUG, logger="coterie.broker"),
    ):
        with logged_in(broker, USER) as first:
            first.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
            partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}] * 100
            first.send(
                FETCH,
                4,
                replica_id=-1,
                max_wait=600_000,
                min_bytes=1,
                max_bytes=1,
                isolation_level=0,
                topics=[{"topic": "t", "partitions": partitions}],
            )
            # After the fetch and on the same connection, so that it is executed after the fetch.
            first.send(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=False)
            wait_until(lambda: "is not read until responses are sent" in caplog.text)
            header = second.send(METADATA, 4, topics=[], allow_auto_topic_creation=False)
            wait_until(lambda: caplog.text.count("is not read until responses are sent") == 2)
            assert is_served(bob)
        assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) == 1, "one warning a minute"
        # The greedy connection is closed, and its bytes in flight are released.
        assert second.receive(header).brokers
        assert is_served(bob)


@pytest.fixture
def sizes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size in bytes of each read of batches from the log."""
    sizes: list[int] = []
    read = StoreReader.batches

    def batches(self: StoreReader, *values: int) -> bytes:
        data = read(self, *values)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(StoreReader, "batches", batches)
    return sizes


def fetch(client: RawClient, *, min_bytes: int = 1, max_bytes: int, max_wait_ms: int = 0) -> RequestHeader:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": max_bytes}
    return client.send(
        FETCH,
        4,
        replica_id=-1,
        max_wait=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=0,
        topics=[{"topic": "t", "partitions": [partition]}],
    )


def produce(client: RawClient, batch: bytes, *, often: int) -> None:
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    for _ in range(often):
        produced = client.ask(PRODUCE, 9, transactional_id=None, acks=-1, timeout=1000, topic_data=data)
        assert produced.responses[0].partition_responses[0].error_code is ErrorCode.none


def test_no_further_requests_are_read_from_a_peer_that_reads_no_responses(
    tmp_path: Path, sizes_read: list[int]
) -> None:
    """Its pending responses grow up to the limit only; others are served meanwhile."""
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000_000)], timestamp_ms=1)
    size_max = 4 * len(batch)
    with (
        secured_broker(tmp_path, "PLAINTEXT", connection_in_flight_size_max=size_max) as broker,
        raw_client(broker.port) as other,
        raw_client(broker.port) as stalled,
    ):
        produce(other, batch, often=4)
        headers = [fetch(stalled, max_bytes=size_max) for _ in range(32)]
        for _ in range(100):
            assert is_served(other)
        # One thread reads for all connections: it reads for the stalled peer's requests before this one.
        other.receive(fetch(other, max_bytes=1))
        # The limit, one response that is being sent, and what the socket buffers hold of earlier ones.
        assert sum(sizes_read) < 8 * size_max
        for header in headers:
            assert len(stalled.receive(header).responses[0].partitions[0].records) == size_max
    assert sum(sizes_read) > 32 * size_max


def test_peers_that_read_no_responses_stay_within_one_budget_and_delay_no_heartbeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: set[PrincipalByteBudget] = set()
    taken: list[int] = []
    take_for_response = PrincipalByteBudget.take_for_response

    async def recording_take(self: PrincipalByteBudget, size: int, *, is_next_response: Callable[[], bool]) -> None:
        await take_for_response(self, size, is_next_response=is_next_response)
        taken.append(self.bytes_in_flight)
        budgets.add(self)

    monkeypatch.setattr(PrincipalByteBudget, "take_for_response", recording_take)
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000_000)], timestamp_ms=1)
    size_max = 16 * len(batch)
    with (
        secured_broker(tmp_path, "PLAINTEXT", principal_in_flight_size_max=size_max) as broker,
        raw_client(broker.port) as bystander,
        ExitStack() as stack,
        caplog.at_level(logging.WARNING, logger="coterie.broker"),
    ):
        produce(bystander, batch, often=4)
        # More for each peer than the socket buffers hold for a peer that reads nothing.
        stalled = [stack.enter_context(raw_client(broker.port)) for _ in range(8)]
        headers = [[fetch(client, max_bytes=4 * len(batch)) for _ in range(5)] for client in stalled]
        wait_until(lambda: "Fetch responses for User:ANONYMOUS@127.0.0.1 are delayed" in caplog.text)
        for _ in range(100):
            bystander.ask(HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
        assert "is not read until responses are sent" not in caplog.text
        stalled[0].socket.close()

        def read_all(client: RawClient, its: list[RequestHeader]) -> list[int]:
            return [len(client.receive(header).responses[0].partitions[0].records) for header in its]

        # All at once: a response to one peer waits for the bytes of the others' responses.
        with ThreadPoolExecutor(7) as readers:
            sizes = list(readers.map(read_all, stalled[1:], headers[1:]))
        assert sizes == [[4 * len(batch)] * 5] * 7
        (budget,) = budgets
        wait_until(lambda: budget.bytes_in_flight == 0)
    assert max(taken) <= size_max


def test_a_peer_that_reads_no_responses_delays_others_at_most_for_its_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000_000)], timestamp_ms=1)
    size_max = 16 * len(batch)
    with (
        secured_broker(
            tmp_path, "PLAINTEXT", principal_in_flight_size_max=size_max, unread_response_timeout_ms=1_000
        ) as broker,
        raw_client(broker.port) as reader,
        ExitStack() as stack,
        # For one address, one message a minute is a warning; the others are debug messages.
        caplog.at_level(logging.DEBUG, logger="coterie.broker"),
    ):
        produce(reader, batch, often=4)
        stalled = [stack.enter_context(raw_client(broker.port)) for _ in range(8)]
        for client in stalled:
            for _ in range(5):
                fetch(client, max_bytes=4 * len(batch))
        wait_until(lambda: "Fetch responses for User:ANONYMOUS@127.0.0.1 are delayed" in caplog.text)
        header = fetch(reader, max_bytes=4 * len(batch))
        assert len(reader.receive(header).responses[0].partitions[0].records) == 4 * len(batch)
        wait_until(lambda: caplog.text.count("the peer has read none of its responses for 1000 ms") == len(stalled))
        assert is_served(reader)


def test_a_waiting_fetch_reads_the_log_only_when_enough_bytes_have_arrived(
    tmp_path: Path, sizes_read: list[int]
) -> None:
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000)], timestamp_ms=1)
    with (
        secured_broker(tmp_path, "PLAINTEXT") as broker,
        raw_client(broker.port) as producer,
        raw_client(broker.port) as consumer,
    ):
        produce(producer, batch, often=1)
        header = fetch(consumer, min_bytes=20 * len(batch), max_bytes=1_000_000, max_wait_ms=DEADLINE_S * 1_000)
        produce(producer, batch, often=19)
        assert len(consumer.receive(header).responses[0].partitions[0].records) == 20 * len(batch)
    assert sizes_read == [20 * len(batch)]


@pytest.mark.parametrize(
    ("api_key", "version", "values"),
    [
        (
            METADATA,
            9,
            {
                "topics": [{"name": f"t{number}"} for number in range(20_000)],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        ),
        (DESCRIBE_GROUPS, 5, {"groups": [f"g{n}" for n in range(20_000)], "include_authorized_operations": False}),
        (
            OFFSET_FETCH,
            8,
            {"groups": [{"group_id": f"g{n}", "topics": None} for n in range(20_000)], "require_stable": False},
        ),
        (
            FETCH,
            4,
            {
                "replica_id": -1,
                "max_wait": 0,
                "min_bytes": 1,
                "max_bytes": 1,
                "isolation_level": 0,
                "topics": [
                    {
                        "topic": "t",
                        "partitions": [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1}],
                    }
                    for n in range(20_000)
                ],
            },
        ),
    ],
    ids=["metadata", "describe groups", "offset fetch", "fetch"],
)
def test_others_are_served_during_a_long_request(
    tmp_path: Path, api_key: int, version: int, values: dict[str, Any]
) -> None:
    with (
        secured_broker(tmp_path, "PLAINTEXT") as broker,
        raw_client(broker.port) as greedy,
        raw_client(broker.port) as other,
    ):
        greedy.send(api_key, version, **values)

        async def budget(node: BrokerContext) -> ByteBudget:
            return node.security.budgets.acquire(f"{ANONYMOUS}@127.0.0.1")

        shared = broker.run(budget)
        wait_until(lambda: shared.bytes_in_flight > 100_000)  # the whole frame is there
        heartbeats = 0
        while not select.select([greedy.socket], [], [], 0)[0]:
            other.ask(HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
            heartbeats += 1
        assert heartbeats > 2  # a single one, if the long request blocked the event loop
        assert len(greedy.receive_frame()) > 20_000


def test_requests_after_a_long_one_are_executed_after_it(tmp_path: Path) -> None:
    batch = encode_batch([NewRecord(key=None, value=b"x")], timestamp_ms=1)
    many = [{"name": "t", "partition_data": [{"index": 0, "records": batch}] * 3_000}]
    one = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    with secured_broker(tmp_path, "PLAINTEXT") as broker, raw_client(broker.port) as client:
        client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
        headers = [
            client.send(PRODUCE, 9, transactional_id=None, acks=-1, timeout=1000, topic_data=data)
            for data in (one, many, one)
        ]
        answers = [client.receive(header).responses[0].partition_responses for header in headers]
    offsets = [partition.base_offset for answer in answers for partition in answer]
    assert offsets == list(range(3_002))
