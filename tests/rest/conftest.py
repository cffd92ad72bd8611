"""REST's fixtures: every test that uses one of them runs with several protocols of the group."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from coterie.nouns.membership import GroupProtocolName
from coterie.wire.connect import ConnectProtocol
from tests.logger_levels import kept_logger_levels
from tests.rest.recording_leader import RecordingLeader, follower_of
from tests.rest.served import ServedCluster, ServedConnectCluster, ServedWorker


@pytest.fixture(params=[*(one.setting for one in ConnectProtocol), GroupProtocolName.CONNECT.value])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ServedCluster]:
    """Workers of a classic group with each ``connect.protocol``, and of a connect group."""
    if request.param == GroupProtocolName.CONNECT:
        async with ServedConnectCluster(tmp_path) as connect_cluster:
            yield connect_cluster
    else:
        async with ServedCluster(protocol=ConnectProtocol.from_setting(request.param)) as cluster:
            yield cluster


@pytest.fixture
async def classic_cluster(protocol: ConnectProtocol) -> AsyncIterator[ServedCluster]:
    """Workers of a classic group with each ``connect.protocol``, for tests that take the part of the coordinator."""
    async with ServedCluster(protocol=protocol) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def logger_levels() -> Iterator[None]:
    """Clients may set the levels of this process's loggers; after a test they are as before."""
    with kept_logger_levels():
        yield


@pytest.fixture
async def leader() -> AsyncIterator[RecordingLeader]:
    """A server in place of a leader."""
    recording, end = RecordingLeader(), asyncio.Event()

    async def until_end() -> None:
        await end.wait()

    serving = asyncio.create_task(recording.serve_while(until_end()))
    yield recording
    end.set()
    await serving


@pytest.fixture
async def follower(leader: RecordingLeader) -> AsyncIterator[ServedWorker]:
    """A worker that takes ``leader`` for the leader."""
    async with follower_of(leader, ConnectProtocol.STATIC) as worker:
        yield worker
