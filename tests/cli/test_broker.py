"""`coterie broker`: which address it takes and which one its clients are told."""

import asyncio
import socket
from pathlib import Path

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.cli import broker


@pytest.mark.parametrize(
    ("listen", "advertise", "host", "told"),
    [
        ("127.0.0.1:9092", None, "127.0.0.1", None),
        ("[::1]:9092", None, "::1", None),
        ("0.0.0.0:9092", None, "0.0.0.0", socket.gethostname()),
        ("[::]:9092", None, "::", socket.gethostname()),
        ("0.0.0.0:9092", "broker.fleet", "0.0.0.0", "broker.fleet"),
        ("[::]:9092", "[::1]", "::", "::1"),
    ],
)
def test_clients_are_told_a_host_that_they_can_reach(
    listen: str, advertise: str | None, host: str, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[BrokerSettings] = []

    async def serve(settings: BrokerSettings) -> None:
        await asyncio.sleep(0)
        served.append(settings)

    monkeypatch.setattr(broker, "_serve", serve)
    assert broker.run(listen, tmp_path, advertise=advertise, initial_delay_ms=0) == 0
    assert [(one.host, one.port, one.advertised_host) for one in served] == [(host, 9092, told)]
