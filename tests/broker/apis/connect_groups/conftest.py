"""A broker that computes target assignments at once."""

from pathlib import Path

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.groups.connect.settings import ConnectGroupSettings
from tests.broker.conftest import QUICK
from tests.ports import free_port


@pytest.fixture
def settings(tmp_path: Path) -> BrokerSettings:
    return BrokerSettings(
        data_path=tmp_path / "broker",
        port=free_port(),
        group_limits=QUICK,
        connect_groups=ConnectGroupSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0),
    )
