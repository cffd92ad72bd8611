"""`coterie broker`: which address it takes and which one its clients are told."""

import socket
from pathlib import Path

import pytest

from coterie.broker.settings import Security, SecurityProtocol
from coterie.cli import broker
from coterie.groups.state import Limits


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
    listen: str, advertise: str | None, host: str, told: str | None, tmp_path: Path
) -> None:
    settings = broker.settings(
        listen,
        tmp_path,
        advertise=advertise,
        security="sasl_ssl",
        certificate=tmp_path / "broker.pem",
        key=tmp_path / "broker.key",
        client_ca=None,
        acl=tmp_path / "rules",
        connections_per_address_max=2,
        initial_delay_ms=0,
        groups_max=5,
        group_size_max=6,
        frame_size_max=2_048,
        connections_max=3,
        in_flight_max=4,
    )
    assert (settings.host, settings.port, settings.advertised_host) == (host, 9092, told)
    assert settings.security == Security(
        protocol=SecurityProtocol.SASL_SSL,
        certificate_path=tmp_path / "broker.pem",
        key_path=tmp_path / "broker.key",
        acl_path=tmp_path / "rules",
    )
    assert settings.connections_per_address_max == 2
    assert settings.limits == Limits(initial_rebalance_delay_ms=0, groups_max=5, group_size_max=6)
    assert (settings.frame_size_max, settings.connections_max, settings.in_flight_max) == (2_048, 3, 4)
