"""The broker as a whole: it starts or raises an error with the reason, and leaves nothing behind."""

import asyncio
import gc
import logging
import socket
import threading
from pathlib import Path

import pytest

from coterie.broker.clock import wall_clock_ms
from coterie.broker.server import running_broker, serve
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import open_log
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NewRecord, encode_batch, read_batch_header
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import QUICK, ThreadedBroker, raw_client


async def test_a_taken_port_raises_a_world_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorldError, match=f"cannot listen on 127.0.0.1:{port}"):
            await serve(BrokerSettings(data_path=tmp_path, port=port), ready=lambda host, port: None)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
async def test_an_address_of_another_machine_is_not_reported_as_a_taken_port(host: str, tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=f"cannot listen on {host}:0: .*; name an address of this machine"):
        await serve(BrokerSettings(data_path=tmp_path, host=host), ready=lambda host, port: None)


async def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with running_broker(BrokerSettings(data_path=tmp_path)):
        with pytest.raises(WorldError, match="another broker"):
            async with running_broker(BrokerSettings(data_path=tmp_path)):
                pass


async def test_an_unusable_data_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorldError, match="cannot be used"):
        async with running_broker(BrokerSettings(data_path=tmp_path / "file" / "data")):
            pass


async def test_a_cancelled_broker_leaves_no_asyncio_task_and_no_thread(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve(BrokerSettings(data_path=tmp_path), ready=lambda host, port: ready.set_result(port))
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", await ready)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert await reader.read() == b""
    writer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    after = {thread.name for thread in threading.enumerate()}
    assert not any(name.startswith("broker-log") for name in after - before)


async def test_an_exception_in_the_with_block_is_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        async with running_broker(BrokerSettings(data_path=tmp_path)):
            raise KeyError("mine")


@pytest.mark.parametrize("turns", range(5))
async def test_connections_accepted_while_the_broker_ends_are_closed(tmp_path: Path, turns: int) -> None:
    """After any number of iterations of the event loop; a socket left open would cause a ResourceWarning."""
    peers = [socket.socket() for _ in range(3)]
    try:
        async with running_broker(BrokerSettings(data_path=tmp_path)) as broker:
            for peer in peers:
                # This may block: over loopback the kernel accepts the connection.
                peer.connect((broker.host, broker.port))
            for _ in range(turns):
                await asyncio.sleep(0)
        gc.collect()
    finally:
        for peer in peers:
            peer.close()


async def test_the_data_directory_and_its_contents_are_logged_at_the_start(
    settings: BrokerSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, logger="coterie.broker")
    async with running_broker(settings):
        pass
    async with open_log(settings.log_path, settings.lock_path) as log:
        await log.create_topic("t", 1, {})
        await log.create_topic("u", 1, {})
        data = encode_batch([NewRecord(key=None, value=b"x")] * 3, timestamp_ms=5)
        await log.append(log.topics["t"].partitions[0], [(data, read_batch_header(data))])
    monkeypatch.setattr("coterie.broker.server.FREE_BYTES_MIN", 2**62)
    async with running_broker(settings):
        pass
    messages = [record.message for record in caplog.records]
    assert f"The data directory is {settings.data_path}: it is new" in messages
    assert f"The data directory is {settings.data_path}: 2 topics, up to 3 records, 0 groups" in messages
    assert len([line for line in messages if "the broker may refuse new records while less than" in line]) == 1


def test_timestamps_of_records_are_checked_by_the_wall_clock_though_the_monotonic_clock_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after two hours of suspend, during which the monotonic clock does not advance."""
    behind_ms = 2 * 3_600_000
    monkeypatch.setattr("coterie.broker.server.make_steady_clock_ms", lambda: lambda: wall_clock_ms() - behind_ms)
    threaded = ThreadedBroker(BrokerSettings(data_path=tmp_path, group_limits=QUICK))
    threaded.start()
    try:
        with raw_client(threaded.port) as client:
            own = {"name": "own", "configs": []}
            arrival = {"name": "arrival", "configs": [{"name": "message.timestamp.type", "value": "LogAppendTime"}]}
            topics = [one | {"num_partitions": 1, "replication_factor": 1, "assignments": []} for one in (own, arrival)]
            client.ask(19, 4, topics=topics, timeout=1000, validate_only=False)
            before_ms = wall_clock_ms()
            batch = encode_batch([NewRecord(key=None, value=b"x")], timestamp_ms=before_ms)
            data = [{"name": name, "partition_data": [{"index": 0, "records": batch}]} for name in ("own", "arrival")]
            produced = client.ask(0, 9, transactional_id=None, acks=-1, timeout=1000, topic_data=data)
            of_own, of_arrival = (one.partition_responses[0] for one in produced.responses)
            assert of_own.error_code is ErrorCode.none
            assert round(of_arrival.log_append_time.timestamp() * 1000) >= before_ms
    finally:
        threaded.stop()
