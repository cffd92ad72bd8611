"""Limits: how much one peer may ask for at once, and that others do not feel it."""

import asyncio
import logging
import select
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.node import Node
from coterie.broker.security.budget import Budget, Budgets, RequestBudget, SharedBudget
from coterie.broker.security.principals import ANONYMOUS
from coterie.broker.storage.reader import StoreReader
from coterie.wire.batches import NewRecord, encode_batch
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import RequestHeader
from tests.broker.conftest import DEADLINE_S, RawClient, awaited, raw_client
from tests.broker.secured import USER, logged_in, secured_broker

PRODUCE, FETCH, METADATA, OFFSET_FETCH, HEARTBEAT, DESCRIBE_GROUPS = 0, 1, 3, 9, 12, 15


def is_served(client: RawClient) -> bool:
    return bool(client.ask(METADATA, 4, topics=[], allow_auto_topic_creation=False).brokers)


async def test_who_wants_more_than_there_is_waits_for_it() -> None:
    budget = Budget(100)
    await budget.take(60)
    assert not budget.has_room(41)
    waiting = asyncio.create_task(budget.take(41))
    await asyncio.sleep(0)
    assert not waiting.done()
    budget.give_back(60)
    await waiting
    assert budget.taken == 41


async def test_alone_even_more_than_everything_may_be_taken() -> None:
    budget = Budget(100)
    await budget.take(1_000)
    assert not budget.has_room(1)
    budget.give_back(1_000)
    assert budget.has_room(1_000)


async def test_whoever_gives_up_waiting_is_forgotten() -> None:
    budget = Budget(100)
    await budget.take(100)
    waiting = asyncio.create_task(budget.take(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    budget.give_back(100)
    assert budget.taken == 0


async def test_the_answer_that_is_due_next_passes_those_that_go_out_behind_it() -> None:
    budget = Budget(100)
    due = [1]
    first = RequestBudget(budget, SharedBudget("a", 1_000), 0, is_next=lambda: due == [0])
    second = RequestBudget(budget, SharedBudget("a", 1_000), 0, is_next=lambda: due == [1])
    await second.reserve(90)
    waiting = asyncio.create_task(first.reserve(90))
    await asyncio.sleep(0)
    assert not waiting.done()
    due[0] = 0
    budget.give_back(0)
    await waiting
    first.settle(80)
    assert budget.taken == 170


async def test_answers_leave_a_quarter_to_requests_and_one_alone_may_always_be() -> None:
    shared = SharedBudget("a", 100)
    await shared.take_for_answer(80, is_next=lambda: True)
    assert shared.has_room(20)
    waiting = asyncio.create_task(shared.take_for_answer(40, is_next=lambda: True))
    await asyncio.sleep(0)
    shared.take_anyway(20)
    assert not waiting.done()
    shared.give_back_answer(80)
    await waiting
    assert shared.taken == 60


async def test_an_answer_behind_another_keeps_nothing_that_the_other_may_wait_for() -> None:
    shared = SharedBudget("a", 100)
    due = [0]
    behind = asyncio.create_task(shared.take_for_answer(75, is_next=lambda: due == [1]))
    await asyncio.sleep(0)
    await shared.take_for_answer(75, is_next=lambda: due == [0])
    due[0] = 1
    shared.give_back_answer(75)
    await behind
    assert shared.taken == 75


def test_a_budget_lives_as_long_as_its_members() -> None:
    budgets = Budgets(100)
    first = budgets.join("a")
    assert budgets.join("a") is first
    budgets.leave("a")
    assert budgets.join("a") is first
    budgets.leave("a")
    budgets.leave("a")
    assert budgets.join("a") is not first


def test_one_address_may_not_take_all_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        secured_broker(tmp_path, "PLAINTEXT", connections_per_address_max=2) as broker,
        raw_client(broker.port) as one,
        raw_client(broker.port) as two,
    ):
        assert is_served(one)
        assert is_served(two)
        with raw_client(broker.port) as three, caplog.at_level(logging.WARNING, logger="coterie.broker"):
            assert three.is_closed()
        assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
            "2 connections from its address are open, the maximum (--connections-per-ip-max)"
        ]
        two.socket.close()

        def again() -> bool:
            try:
                with raw_client(broker.port) as client:
                    return is_served(client)
            except ConnectionError:
                return False

        awaited(again)
        assert is_served(one)


def test_more_bytes_than_a_connection_may_have_in_flight_are_taken_one_after_the_other(tmp_path: Path) -> None:
    batch = encode_batch([NewRecord(key=None, value=b"x" * 5_000)], timestamp_ms=1)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    with secured_broker(tmp_path, "PLAINTEXT", in_flight_size_max=6_000) as broker, raw_client(broker.port) as client:
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
        caplog.at_level(logging.WARNING, logger="coterie.broker"),
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
            # Behind the fetch, on its own connection, so that this one cannot come first.
            first.send(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=False)
            awaited(lambda: "its principal has" in caplog.text)
            header = second.send(METADATA, 4, topics=[], allow_auto_topic_creation=False)
            awaited(lambda: caplog.text.count("its principal has") == 2)
            assert is_served(bob)
        # The greedy connection is gone, and with it what it had in flight.
        assert second.receive(header).brokers
        assert is_served(bob)


@pytest.fixture
def sizes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each read of batches from the log, as they are read."""
    sizes: list[int] = []
    read = StoreReader.batches

    def batches(self: StoreReader, *asked: int) -> bytes:
        data = read(self, *asked)
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


def test_a_peer_that_reads_no_answer_stops_being_read(tmp_path: Path, sizes_read: list[int]) -> None:
    """Its answers pile up to the limit and no further; others are served meanwhile."""
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000_000)], timestamp_ms=1)
    size_max = 4 * len(batch)
    with (
        secured_broker(tmp_path, "PLAINTEXT", in_flight_size_max=size_max) as broker,
        raw_client(broker.port) as other,
        raw_client(broker.port) as deaf,
    ):
        produce(other, batch, often=4)
        headers = [fetch(deaf, max_bytes=size_max) for _ in range(32)]
        for _ in range(100):
            assert is_served(other)
        # One thread reads for all: what the deaf peer's requests had it read comes before this.
        other.receive(fetch(other, max_bytes=1))
        # The limit, one answer that is being sent, and what the system has taken of those before.
        assert sum(sizes_read) < 8 * size_max
        for header in headers:
            assert len(deaf.receive(header).responses[0].partitions[0].records) == size_max
    assert sum(sizes_read) > 32 * size_max


def test_many_that_read_no_answer_take_no_more_together_and_hold_up_no_heartbeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: set[SharedBudget] = set()
    taken: list[int] = []
    take_for_answer = SharedBudget.take_for_answer

    async def recorded(self: SharedBudget, size: int, *, is_next: Callable[[], bool]) -> None:
        await take_for_answer(self, size, is_next=is_next)
        taken.append(self.taken)
        budgets.add(self)

    monkeypatch.setattr(SharedBudget, "take_for_answer", recorded)
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000_000)], timestamp_ms=1)
    size_max = 16 * len(batch)
    with (
        secured_broker(tmp_path, "PLAINTEXT", principal_in_flight_size_max=size_max) as broker,
        raw_client(broker.port) as bystander,
        ExitStack() as stack,
        caplog.at_level(logging.WARNING, logger="coterie.broker"),
    ):
        produce(bystander, batch, often=4)
        # More of each than the system takes in for a peer that reads nothing.
        deaf = [stack.enter_context(raw_client(broker.port)) for _ in range(8)]
        headers = [[fetch(client, max_bytes=4 * len(batch)) for _ in range(5)] for client in deaf]
        awaited(lambda: "Fetch responses for User:ANONYMOUS@127.0.0.1 are delayed" in caplog.text)
        for _ in range(100):
            bystander.ask(HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
        assert "its principal has" not in caplog.text
        deaf[0].socket.close()

        def read_all(client: RawClient, its: list[RequestHeader]) -> list[int]:
            return [len(client.receive(header).responses[0].partitions[0].records) for header in its]

        # All at once: whoever is read waits for what the others' answers have taken.
        with ThreadPoolExecutor(7) as readers:
            sizes = list(readers.map(read_all, deaf[1:], headers[1:]))
        assert sizes == [[4 * len(batch)] * 5] * 7
        (budget,) = budgets
        awaited(lambda: budget.taken == 0)
    assert max(taken) <= size_max


def test_whoever_waits_for_a_deaf_peer_waits_no_longer_than_that_may_be_deaf(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch = encode_batch([NewRecord(key=None, value=b"x" * 1_000_000)], timestamp_ms=1)
    size_max = 16 * len(batch)
    with (
        secured_broker(tmp_path, "PLAINTEXT", principal_in_flight_size_max=size_max, deaf_timeout_ms=1_000) as broker,
        raw_client(broker.port) as reader,
        ExitStack() as stack,
        # Of one address, a line a minute is a warning; the others are for debugging.
        caplog.at_level(logging.DEBUG, logger="coterie.broker"),
    ):
        produce(reader, batch, often=4)
        deaf = [stack.enter_context(raw_client(broker.port)) for _ in range(8)]
        for client in deaf:
            for _ in range(5):
                fetch(client, max_bytes=4 * len(batch))
        awaited(lambda: "Fetch responses for User:ANONYMOUS@127.0.0.1 are delayed" in caplog.text)
        header = fetch(reader, max_bytes=4 * len(batch))
        assert len(reader.receive(header).responses[0].partitions[0].records) == 4 * len(batch)
        awaited(lambda: caplog.text.count("the peer has read none of its responses for 1000 ms") == len(deaf))
        assert is_served(reader)


def test_a_waiting_fetch_reads_only_once_there_is_enough(tmp_path: Path, sizes_read: list[int]) -> None:
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
    ("api_key", "version", "asked"),
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
def test_others_are_answered_while_a_long_request_is(
    tmp_path: Path, api_key: int, version: int, asked: dict[str, Any]
) -> None:
    with (
        secured_broker(tmp_path, "PLAINTEXT") as broker,
        raw_client(broker.port) as greedy,
        raw_client(broker.port) as other,
    ):
        greedy.send(api_key, version, **asked)

        async def budget(node: Node) -> Budget:
            return node.admission.budgets.join(f"{ANONYMOUS}@127.0.0.1")

        shared = broker.run(budget)
        awaited(lambda: shared.taken > 100_000)  # the whole frame is there
        heard = 0
        while not select.select([greedy.socket], [], [], 0)[0]:
            other.ask(HEARTBEAT, 4, group_id="g", generation_id=1, member_id="m", group_instance_id=None)
            heard += 1
        assert heard > 2  # one, which waits for all of it, were it answered in one go
        assert len(greedy.receive_frame()) > 20_000


def test_requests_behind_a_long_one_do_not_pass_it(tmp_path: Path) -> None:
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
