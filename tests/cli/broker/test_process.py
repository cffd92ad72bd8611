"""`coterie broker`: the address on which it listens, the address that it advertises, and its warnings."""

import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.broker.settings import BrokerSettings, SecurityProtocol, SecuritySettings
from coterie.cli.app import app
from coterie.cli.broker import process
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.nouns.errors import ConfigError, WorldError


def settings_of(data: Path, *, listen: str = "127.0.0.1:9092", **more: Any) -> BrokerSettings:
    options: dict[str, Any] = {
        "advertise": None,
        "security": "PLAINTEXT",
        "certificate": None,
        "key": None,
        "client_ca": None,
        "acl": None,
        "auto_create_topics": True,
        "connections_per_address_max": 2,
        "initial_delay_ms": 0,
        "groups_max": 5,
        "group_size_max": 6,
        "frame_size_max": 2_048,
        "connections_max": 3,
        "in_flight_max": 4,
    }
    return process.broker_settings(listen, data, **{**options, **more})


@pytest.mark.parametrize(
    ("listen", "advertise", "host", "advertised_host"),
    [
        ("127.0.0.1:9092", None, "127.0.0.1", None),
        ("[::1]:9092", None, "::1", None),
        ("0.0.0.0:9092", None, "0.0.0.0", socket.gethostname()),
        ("[::]:9092", None, "::", socket.gethostname()),
        ("0.0.0.0:9092", "broker.fleet", "0.0.0.0", "broker.fleet"),
        ("[::]:9092", "[::1]", "::", "::1"),
    ],
)
def test_the_broker_advertises_a_host_that_clients_can_reach(
    listen: str, advertise: str | None, host: str, advertised_host: str | None, tmp_path: Path
) -> None:
    settings = settings_of(
        tmp_path,
        listen=listen,
        advertise=advertise,
        security="sasl_ssl",
        certificate=tmp_path / "broker.pem",
        key=tmp_path / "broker.key",
        acl=tmp_path / "rules",
        auto_create_topics=False,
    )
    assert (settings.host, settings.port, settings.advertised_host) == (host, 9092, advertised_host)
    assert settings.security == SecuritySettings(
        protocol=SecurityProtocol.SASL_SSL,
        certificate_path=tmp_path / "broker.pem",
        key_path=tmp_path / "broker.key",
        acl_path=tmp_path / "rules",
    )
    assert not settings.auto_create_topics
    assert settings.connections_per_address_max == 2
    assert settings.group_limits == ClassicGroupSettings(initial_rebalance_delay_ms=0, groups_max=5, group_size_max=6)
    assert (settings.frame_size_max, settings.connections_max) == (2_048, 3)
    assert settings.connection_requests_in_flight_max == 4


def test_broker_configs_of_connect_groups_are_given_by_name(tmp_path: Path) -> None:
    configs = ("group.connect.session.timeout.ms = 8000", "group.coordinator.rebalance.protocols=classic")
    settings = settings_of(tmp_path, configs=configs)
    assert settings.connect_groups.session_timeout_ms == 8_000
    assert not settings.serves_connect_groups


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"configs": ["group.connect.max.size"]}, "--config group.connect.max.size is not KEY=VALUE"),
        (
            {"configs": ["group.connect.max.size=2", "group.connect.max.size = 3"]},
            "--config group.connect.max.size = 3: group.connect.max.size is given twice; give each key once",
        ),
        ({"listen": "9092"}, "--listen 9092 is not HOST:PORT"),
        ({"listen": ":19092"}, "--listen :19092 names no host; use 127.0.0.1:19092 for this machine"),
        ({"listen": "localhost"}, "--listen localhost is not HOST:PORT"),
        ({"listen": "localhost:99999"}, "99999 is not a port; the highest port is 65535"),
        ({"certificate": Path("x")}, "--tls-certificate has no effect with --security PLAINTEXT"),
        ({"key": Path("x"), "security": "SASL_PLAINTEXT"}, "--tls-key has no effect with --security SASL_PLAINTEXT"),
        ({"client_ca": Path("x")}, "--tls-client-ca has no effect with --security PLAINTEXT: use SSL or SASL_SSL"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=error):
        settings_of(tmp_path, **options)


def test_each_invalid_broker_config_has_one_message(tmp_path: Path) -> None:
    configs = ["max.size=1", "group.connect.max.size=abc", "group.connect.session.timeout.ms=1"]
    with pytest.raises(ConfigError) as refused:
        settings_of(tmp_path, configs=configs)
    assert sorted(message for messages in refused.value.errors.values() for message in messages) == [
        "--config group.connect.max.size=abc: Invalid value abc for configuration group.connect.max.size: Not a number "
        "of type INT",
        "--config max.size=1: This broker has no such config.",
    ]
    with pytest.raises(ConfigError) as refused:
        settings_of(tmp_path, configs=["group.connect.min.session.timeout.ms=60000"])
    assert refused.value.errors == {
        "group.connect.session.timeout.ms": (
            "--config: group.connect.session.timeout.ms: It is 10000, and must be between 60000 and 1800000.",
        )
    }


@pytest.mark.parametrize(
    ("options", "expected_warnings"),
    [
        ({}, []),
        ({"listen": "127.0.0.2:1"}, []),
        ({"listen": "localhost:1"}, []),
        ({"listen": "0.0.0.0:1"}, ["Every client that reaches 0.0.0.0:1 may connect and do everything"]),
        (
            {"listen": "h:1", "acl": Path("x")},
            ["Every client that reaches h:1 may connect and do what the rules allow"],
        ),
        ({"listen": "h:1", "security": "SSL"}, ["Every client that reaches h:1 may connect and do everything"]),
        (
            {"listen": "h:1", "security": "SSL", "client_ca": Path("x")},
            ["Every authenticated client may do everything"],
        ),
        ({"listen": "h:1", "security": "SASL_SSL"}, ["Every authenticated client may do everything"]),
        ({"listen": "h:1", "security": "SASL_SSL", "acl": Path("x")}, []),
        (
            {"listen": "h:1", "security": "SASL_PLAINTEXT"},
            ["Without TLS, clients that log in with PLAIN", "Every authenticated client may do everything"],
        ),
    ],
)
def test_a_broker_reachable_from_other_hosts_warns_about_unrestricted_access(
    options: dict[str, Any], expected_warnings: list[str], tmp_path: Path
) -> None:
    advertised_host = list(process.insecure_settings_warnings(settings_of(tmp_path, **options)))
    assert [
        line[: len(start)] for line, start in zip(advertised_host, expected_warnings, strict=True)
    ] == expected_warnings


@pytest.mark.parametrize("options", [["--data", ""], ["check", ""], ["backup", "somewhere", " "], ["user", "list", ""]])
def test_an_empty_folder_name_is_refused(options: list[str]) -> None:
    result = CliRunner().invoke(app, ["broker", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "the folder name is empty" in result.stderr


def test_the_help_of_the_broker_shows_every_option_in_full_in_a_narrow_terminal() -> None:
    help_text = CliRunner().invoke(app, ["broker", "--help"], env={"COLUMNS": "80"}).stdout
    assert "…" not in help_text
