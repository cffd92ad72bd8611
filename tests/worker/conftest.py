"""The worker's fixtures: every test that uses one of them runs with each ``connect.protocol``."""

from collections.abc import AsyncIterator

import pytest

from coterie.wire.connect import ConnectProtocol
from tests.worker.simulated import Cluster


@pytest.fixture
async def cluster(protocol: ConnectProtocol) -> AsyncIterator[Cluster]:
    async with Cluster(protocol=protocol) as cluster:
        yield cluster
