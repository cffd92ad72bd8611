"""The log that the tests of the broker's groups write to."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coterie.broker.storage.log import BrokerLog, open_log


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[BrokerLog]:
    """An empty log of a broker."""
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        yield log
