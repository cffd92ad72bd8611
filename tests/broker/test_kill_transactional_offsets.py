"""The broker is killed -9 while a transaction with a record and an offset is committed. The client repeats its request.

Afterwards both the record and the offset are committed, once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.wire.batches import TRANSACTIONAL_BIT, NewRecord, decode_uncompressed_records_without_control, encode_batch
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import RawClient, raw_client
from tests.broker.dying import NEVER, TOPIC, CrashingBroker, committed_offset, create_topic, start

pytestmark = pytest.mark.processes

PRODUCE, FETCH, INIT, END, COMMIT = 0, 1, 22, 26, 28
GROUP, ID = "copiers", "copier"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CrashingBroker]:
    """A broker that is not started yet."""
    broker = CrashingBroker(tmp_path / "data")
    yield broker
    broker.stop()


class Copier:
    """A producer that commits an offset with each record; it repeats a request until the broker responds."""

    def __init__(self, broker: CrashingBroker) -> None:
        self.broker = broker
        self.kills = 0
        answer = self.ask(INIT, 5, transactional_id=ID, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
        self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}

    async def ask_until_answered(self, api_key: int, version: int, /, **values: Any) -> Any:
        """The response; if the broker kills itself instead, restart it and send the request again."""
        try:
            return self.ask(api_key, version, **values)
        except ConnectionError:
            self.kills += 1
            await start(self.broker, NEVER)
            return self.ask(api_key, version, **values)

    def ask(self, api_key: int, version: int, /, **values: Any) -> Any:
        with raw_client(self.broker.port) as client:
            return client.ask(api_key, version, **values)

    async def copy(self, number: int, *, is_commit: bool) -> None:
        """Write the record ``number`` and commit it as the offset, in one transaction."""
        batch = encode_batch(
            [NewRecord(key=None, value=b"%d" % number)],
            timestamp_ms=1,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
            **self.producer,
        )
        data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}]
        produced = await self.ask_until_answered(
            PRODUCE, 12, transactional_id=ID, acks=-1, timeout=10_000, topic_data=data
        )
        assert produced.responses[0].partition_responses[0].error_code is ErrorCode.none
        offset = {"partition_index": 0, "committed_offset": number, "committed_leader_epoch": -1}
        answer = await self.ask_until_answered(
            COMMIT, 5, transactional_id=ID, group_id=GROUP, generation_id=-1, member_id="", group_instance_id=None,
            topics=[{"name": TOPIC, "partitions": [offset | {"committed_metadata": ""}]}], **self.producer,
        )  # fmt: skip
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none
        answer = await self.ask_until_answered(END, 5, transactional_id=ID, committed=is_commit, **self.producer)
        assert answer.error_code is ErrorCode.none
        self.producer = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


def records(client: RawClient) -> list[bytes | None]:
    """All records of the topic's first partition, also those of aborted transactions, without markers."""
    asked = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1_000_000,
    }  # fmt: skip
    answer = client.ask(
        FETCH, 12, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1_000_000, isolation_level=1, session_id=0,
        session_epoch=-1, topics=[{"topic": TOPIC, "partitions": [asked]}], forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    return [
        record.value
        for record in decode_uncompressed_records_without_control(answer.responses[0].partitions[0].records or b"")
    ]


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("point", ["pending before", "pending durable", "ended before", "ended durable"])
async def test_a_kill_between_the_steps_of_a_transaction_loses_and_doubles_no_offset(
    broker: CrashingBroker, point: str, is_commit: bool
) -> None:
    await start(broker, NEVER)
    create_topic(broker)
    copier = Copier(broker)
    await copier.copy(1, is_commit=True)
    await start(broker, point)
    await copier.copy(2, is_commit=is_commit)
    assert copier.kills == 1
    with raw_client(broker.port) as client:
        assert committed_offset(client, GROUP, 0) == (2 if is_commit else 1)
        assert records(client) == [b"1", b"2"]
    await copier.copy(3, is_commit=True)
    with raw_client(broker.port) as client:
        assert committed_offset(client, GROUP, 0) == 3
        assert records(client) == [b"1", b"2", b"3"]


async def test_a_transaction_that_was_open_when_the_broker_was_killed_is_aborted_for_the_next_producer(
    broker: CrashingBroker,
) -> None:
    await start(broker, NEVER)
    create_topic(broker)
    copier = Copier(broker)
    await copier.copy(1, is_commit=True)
    await start(broker, "ended before")
    with pytest.raises(ConnectionError):
        copier.ask(END, 5, transactional_id=ID, committed=True, **copier.producer)
    await start(broker, NEVER)
    Copier(broker)
    with raw_client(broker.port) as client:
        assert committed_offset(client, GROUP, 0) == 1
