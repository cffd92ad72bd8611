"""REST's fixture: every test that uses it runs with each ``connect.protocol``."""

from collections.abc import AsyncIterator

import pytest

from coterie.wire.connect import ConnectProtocol
from tests.rest.served import ServedCluster


@pytest.fixture
async def cluster(protocol: ConnectProtocol) -> AsyncIterator[ServedCluster]:
    async with ServedCluster(protocol=protocol) as cluster:
        yield cluster
