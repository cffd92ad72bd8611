"""Disk failures of a broker's log: a full disk, a torn write, corruption; and a kill during maintenance."""

import asyncio
import logging
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.broker.maintenance.check import log_file_findings
from coterie.broker.maintenance.loop import run_maintenance
from coterie.broker.storage.log import BrokerLog, open_log
from coterie.nouns.errors import WorldError
from coterie.wire.batches import (
    NewRecord,
    decode_uncompressed_records_without_control,
    encode_batch,
    encode_transaction_marker,
    iter_whole_batch_headers,
    read_batch_header,
)
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import RawClient, raw_client
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.storage.maintained_log import COMPACT, FREQUENT_MAINTENANCE, put

DEADLINE_S = 60

BROKER = """
import asyncio, logging, sys
from pathlib import Path
from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings
logging.basicConfig(level=logging.INFO)
asyncio.run(serve(BrokerSettings(data_path=Path(sys.argv[1])), ready=lambda host, port: print(port, flush=True)))
"""


def findings(path: Path) -> list[str]:
    return list(log_file_findings(path, report_progress=lambda _: None))


# -- full -------------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_broker_on_a_full_disk_serves_reads_and_writes_again_when_there_is_room(tmp_path: Path) -> None:
    with broker_process(BROKER, str(tmp_path)) as (process, first_line):
        with raw_client(int(first_line)) as client:
            assert client.ask(3, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True).topics
            accepted = [produce(client, b"before") for _ in range(3)]
            assert accepted == [(ErrorCode.none, 0), (ErrorCode.none, 1), (ErrorCode.none, 2)]
            # No file of the broker may grow beyond its size: the system refuses writes as on a full disk.
            used = max(path.stat().st_size for path in tmp_path.iterdir())
            limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (used, limits[1]))
            outcomes = [produce(client, b"x" * 900_000) for _ in range(5)]
            assert outcomes == [(ErrorCode.kafka_storage_error, -1)] * 5
            assert values(client, 0) == [b"before"] * 3, "records must be readable while the disk is full"
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
            assert produce(client, b"after") == (ErrorCode.none, 3)
            assert values(client, 0) == [b"before"] * 3 + [b"after"]
        process.send_signal(signal.SIGINT)
        _, logged = process.communicate(timeout=DEADLINE_S)
    assert logged.count("The broker's log cannot be written") == 1
    assert logged.count("The broker's log can be written again") == 1
    assert findings(tmp_path / "log.sqlite") == []


async def test_the_last_free_bytes_of_a_disk_are_reserved_for_writes_that_release_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_log(tmp_path / "log", tmp_path / "lock") as log, asyncio.TaskGroup() as tasks:
        partition = (await log.create_topic("t", 1, {"retention.bytes": "3000", "retention.ms": "-1"})).partitions[0]
        gone = await log.create_topic("gone", 1, {})
        for _ in range(9):
            await put(log, "t", {"a": "x" * 1_000})
        await log.run_write(lambda store: setattr(store, "free_bytes_min", 2**62))
        for _ in range(3):
            with pytest.raises(WorldError, match="the disk is nearly full"):
                await put(log, "t", {"a": ""})
        marker = encode_transaction_marker(producer_id=1, producer_epoch=0, is_commit=True, timestamp_ms=5)
        await log.append(partition, [(marker, read_batch_header(marker))])
        await log.delete_topic(gone)
        keeping = tasks.create_task(run_maintenance(log, tmp_path / "log", FREQUENT_MAINTENANCE, now_ms=lambda: 10**6))
        async with asyncio.timeout(DEADLINE_S):
            while not partition.start_offset:  # noqa: ASYNC110 - rows, not events
                await asyncio.sleep(0.005)
        await log.run_write(lambda store: setattr(store, "free_bytes_min", 0))
        assert await put(log, "t", {"a": ""}) == 10
        keeping.cancel()
    logged = [record.message for record in caplog.records]
    assert len([line for line in logged if "The broker's log cannot be written" in line]) == 1
    assert logged.count("The broker's log can be written again") == 1


async def test_maintenance_waits_while_the_disk_is_full_and_then_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with open_log(tmp_path / "log", tmp_path / "lock") as log, asyncio.TaskGroup() as tasks:
        await log.create_topic("t", 1, COMPACT)
        for n in range(50):
            await put(log, "t", {"a": str(n), f"k{n}": "x" * 2_000})
        await log.run_write(fill_disk)
        keeping = tasks.create_task(run_maintenance(log, tmp_path / "log", FREQUENT_MAINTENANCE, now_ms=lambda: 10**6))
        with pytest.raises(WorldError):
            await put(log, "t", {"a": "x" * 900_000})
        await log.run_write(lift_limit)
        await put(log, "t", {"end": ""})
        async with asyncio.timeout(DEADLINE_S):
            while [key for key, _ in await records(log, "t")].count("a") > 1:  # noqa: ASYNC110 - rows, not events
                await asyncio.sleep(0.005)
        assert await last_values(log, "t") == {"a": "49", "end": "", **{f"k{n}": "x" * 2_000 for n in range(50)}}
        keeping.cancel()
    assert findings(tmp_path / "log") == []


async def test_a_data_directory_that_was_moved_is_named_with_advice(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with open_log(folder / "log", folder / "lock") as log:
        await log.create_topic("t", 1, {})
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(
            WorldError, match=r"the data directory .*/data does not exist any more; move it back, or restart"
        ):
            await put(log, "t", {"a": "1"})
        (tmp_path / "elsewhere").rename(folder)
        assert await put(log, "t", {"a": "2"}) == 0


# -- torn -------------------------------------------------------------------------------------------------------------


def torn_tail(wal: Path) -> None:
    """Only a part of the last write has reached the disk."""
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - 1_000)


def garbled_tail(wal: Path) -> None:
    with wal.open("r+b") as file:
        file.seek(-1_000, 2)
        file.write(b"\xa5" * 1_000)


def rubbish_behind(wal: Path) -> None:
    with wal.open("ab") as file:
        file.write(b"\xa5" * 10_000)


@pytest.mark.parametrize(("damage", "lost"), [(torn_tail, 1), (garbled_tail, 1), (rubbish_behind, 0)])
async def test_a_torn_last_write_loses_only_that_write(
    damage: Callable[[Path], None], lost: int, tmp_path: Path
) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        for n in range(20):
            await put(log, "t", {"a": str(n)})
        # The files as a kill leaves them: closing the log would checkpoint the write-ahead log.
        (tmp_path / "killed").mkdir()
        for suffix in ("", "-wal"):
            (tmp_path / "killed" / f"log{suffix}").write_bytes((tmp_path / f"log{suffix}").read_bytes())
    path = tmp_path / "killed" / "log"
    damage(path.with_name("log-wal"))
    assert findings(path) == []
    async with open_log(path, tmp_path / "killed" / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 20 - lost
        assert await put(log, "t", {"a": "again"}) == 20 - lost


async def test_a_corrupt_file_causes_one_clear_error_and_its_other_pages_are_readable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        for topic in "ab":
            await log.create_topic(topic, 1, {})
            for _ in range(20):
                await put(log, topic, {"a": "x" * 10_000})
    content = (tmp_path / "log").read_bytes()
    # The last leaf of a table (SQLite's file format: a page that begins with 13) has rows of the topic written last.
    at = max(at for at in range(4096, len(content), 4096) if content[at] == 13)
    (tmp_path / "log").write_bytes(content[:at] + b"\xa5" * 4096 + content[at + 4096 :])
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        assert (
            len(decode_uncompressed_records_without_control(await log.read(log.topics["a"].partitions[0], 0, 10**6)))
            == 20
        )
        for _ in range(3):
            with pytest.raises(WorldError, match="the broker's log cannot be read: database disk image is malformed"):
                await log.read(log.topics["b"].partitions[0], 0, 10**6)
        message = (
            "The broker's log cannot be read: database disk image is malformed; requests whose reads fail get an error."
            " If the log is corrupt, `coterie broker check` lists the corruption"
        )
        assert [record.message for record in caplog.records] == [message]
        # Hours later the same error is logged again, once.
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as later:
            hours_later_s = loop.time() + 10_000
            later.setattr(loop, "time", lambda: hours_later_s)
            for _ in range(3):
                with pytest.raises(WorldError, match="database disk image is malformed"):
                    await log.read(log.topics["b"].partitions[0], 0, 10**6)
        more = "; 2 more reads failed since the last such message"
        assert [record.message for record in caplog.records] == [message, message + more]
    assert findings(tmp_path / "log")


# -- killed -----------------------------------------------------------------------------------------------------------

BUSY = """
import asyncio, sys, time
from pathlib import Path
from coterie.broker.storage.log import open_log
from coterie.broker.maintenance.loop import run_maintenance
from tests.broker.storage.maintained_log import COMPACT, FREQUENT_MAINTENANCE, put

async def main(path, number):
    async with open_log(path, path.with_name("lock")) as log, asyncio.TaskGroup() as tasks:
        for name, configs in (("c", COMPACT), ("r", {"retention.bytes": "20000"})):
            if name not in log.topics:
                await log.create_topic(name, 1, configs)
        tasks.create_task(run_maintenance(log, path, FREQUENT_MAINTENANCE, now_ms=lambda: time.time_ns() // 1_000_000))
        while True:
            number += 1
            key = f"k{number * 7 % 11}"
            await put(log, "c", {key: None if number % 3 == 0 else str(number), f"once{number % 50}": "x" * 200})
            print(key, number, flush=True)
            await put(log, "r", {"a": "x" * 1_000})
            if number % 20 == 0:
                if "d" in log.topics:
                    await log.delete_topic(log.topics["d"])
                await log.create_topic("d", 3, {})
                await put(log, "d", {"a": "x" * 50_000})

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.processes
async def test_a_kill_during_maintenance_loses_no_value_and_leaves_a_sound_log(tmp_path: Path) -> None:
    path, number = tmp_path / "log", 0
    acknowledged: dict[str, int] = {}
    for round_ in range(5):
        with broker_process(BUSY, str(path), str(number)) as (process, line):
            assert process.stdout is not None
            for _ in range(150 + 37 * round_):
                key, text = line.split()
                acknowledged[key] = number = int(text)
                line = process.stdout.readline()
            process.send_signal(signal.SIGKILL)
            for late in (line, *process.stdout.readlines()):
                if late.endswith("\n"):
                    key, text = late.split()
                    acknowledged[key] = number = int(text)
        assert findings(path) == []
        async with open_log(path, tmp_path / "lock") as log:
            found = await last_values(log, "c")
            in_flight = number + 1
            for key, last in acknowledged.items():
                expected = None if last % 3 == 0 else str(last)
                if key == f"k{in_flight * 7 % 11}" and found.get(key) != expected:
                    expected = None if in_flight % 3 == 0 else str(in_flight)
                assert found.get(key) == expected
        number = in_flight


# -- helpers ----------------------------------------------------------------------------------------------------------


async def records(log: BrokerLog, topic: str) -> list[tuple[str, str | None]]:
    partition, offset = log.topics[topic].partitions[0], 0
    found: list[tuple[str, str | None]] = []
    while data := await log.read(partition, offset, 10**6):
        found += [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in decode_uncompressed_records_without_control(data)
        ]
        offset = max(head.last_offset for _, head in iter_whole_batch_headers(data)) + 1
    return found


async def last_values(log: BrokerLog, topic: str) -> dict[str, str | None]:
    return dict(await records(log, topic))


@contextmanager
def broker_process(program: str, *arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A process and its first output line; the process is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait(30)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def produce(client: RawClient, value: bytes) -> tuple[ErrorCode, int]:
    batch = encode_batch([NewRecord(key=None, value=value)], timestamp_ms=5)
    answer = client.ask(
        0,
        9,
        transactional_id=None,
        acks=-1,
        timeout=0,
        topic_data=[{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
    )
    partition = answer.responses[0].partition_responses[0]
    return partition.error_code, partition.base_offset


def values(client: RawClient, offset: int) -> list[bytes | None]:
    answer = client.ask(
        1,
        12,
        max_wait=0,
        min_bytes=1,
        forgotten_topics_data=(),
        topics=[{"topic": "t", "partitions": [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10**6}]}],
    )
    return [
        record.value
        for record in decode_uncompressed_records_without_control(answer.responses[0].partitions[0].records or b"")
    ]
