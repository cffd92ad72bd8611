"""`coterie broker`: the embedded broker as a process."""

import asyncio
import ipaddress
import logging
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.assignors.members import RebalancePolicy
from coterie.broker.connect_configs import with_broker_configs
from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings, SecurityProtocol, SecuritySettings
from coterie.cli.assignors import assign_functions_by_name, load_usable_installed_assignors
from coterie.cli.garbage_collection import raise_broker_gc_thresholds
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.nouns.errors import ConfigError, WorldError

logger = logging.getLogger(__name__)


def broker_settings(
    listen: str,
    data: Path,
    *,
    advertise: str | None,
    security: str,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    acl: Path | None,
    auto_create_topics: bool,
    connections_per_address_max: int | None,
    initial_delay_ms: int,
    groups_max: int,
    group_size_max: int,
    frame_size_max: int,
    connections_max: int,
    in_flight_max: int,
    configs: Sequence[str] = (),
) -> BrokerSettings:
    """Convert the command line's options to the broker's settings. ``configs`` are texts ``KEY=VALUE``, with the names
    of broker configs (:func:`with_broker_configs`).

    ``advertise`` is the host that clients receive in metadata. By default it is the host of ``listen``, or the
    machine's name if that host stands for all interfaces.

    :raises WorldError: when ``listen`` or the security protocol is not valid, a TLS file is given without TLS, or one
        of ``configs`` is not KEY=VALUE or has the key of another.
    :raises ConfigError: when the keys or values of ``configs`` are not valid, with one message for each key.
    """
    host, port = _parse_listen_address(listen)
    if advertise is None and host in ("0.0.0.0", "::"):
        advertise = socket.gethostname()
    without_configs = BrokerSettings(
        data_path=data,
        auto_create_topics=auto_create_topics,
        host=host,
        port=port,
        advertised_host=_without_brackets(advertise) if advertise else None,
        security=_security_settings(security, certificate=certificate, key=key, client_ca=client_ca, acl=acl),
        connections_per_address_max=connections_per_address_max,
        group_limits=ClassicGroupSettings(
            initial_rebalance_delay_ms=initial_delay_ms, groups_max=groups_max, group_size_max=group_size_max
        ),
        stats_path=data / "stats.json",
        frame_size_max=frame_size_max,
        connections_max=connections_max,
        connection_requests_in_flight_max=in_flight_max,
    )
    value_by_key = _parse_configs(configs)
    try:
        return with_broker_configs(without_configs, value_by_key)
    except ConfigError as error:
        # A default that contradicts the given values has no option.
        options = {key: f"--config {key}={value_by_key[key]}" for key in error.errors if key in value_by_key}
        raise ConfigError(
            {
                key: [f"{options.get(key, f'--config: {key}')}: {message}" for message in messages]
                for key, messages in error.errors.items()
            }
        ) from error


def run_broker(settings: BrokerSettings) -> int:
    """Run a broker until SIGTERM or Ctrl-C; returns the exit code 0.

    :raises WorldError: when the data folder, a file of certificates, users or access rules, or the port cannot be used.
    """
    raise_broker_gc_thresholds()
    asyncio.run(_serve_until_signal(settings))
    return 0


async def _serve_until_signal(settings: BrokerSettings) -> None:
    for warning in insecure_settings_warnings(settings):
        logger.warning("%s", warning)
    serving_asyncio_task = asyncio.current_task()
    assert serving_asyncio_task is not None
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signal_number, serving_asyncio_task.cancel)

    def log_listening_and_client_addresses(host: str, port: int) -> None:
        logger.info("The broker listens at %s:%d; clients connect to %s:%d", settings.host, port, host, port)

    try:
        assignors = assign_functions_by_name(load_usable_installed_assignors(RebalancePolicy()))
        await serve(settings, ready=log_listening_and_client_addresses, assignors=assignors)
    except asyncio.CancelledError:
        logger.info("The broker has ended")


def insecure_settings_warnings(settings: BrokerSettings) -> Iterator[str]:
    """Yield a warning for each insecure setting, if other machines can reach the broker (its host is not a loopback
    address)."""
    security = settings.security
    if _is_loopback(settings.host):
        return
    if security.protocol is SecurityProtocol.SASL_PLAINTEXT:
        yield "Without TLS, clients that log in with PLAIN send their passwords in clear text; use --security SASL_SSL"
    authenticates_clients = security.protocol.has_sasl or security.client_ca_path is not None
    if authenticates_clients and security.acl_path is None:
        yield "Every authenticated client may do everything; restrict clients with --acl FILE"
    elif not authenticates_clients:
        allowed_actions = "do everything" if security.acl_path is None else "do what the rules allow to ANONYMOUS"
        yield (
            f"Every client that reaches {settings.host}:{settings.port} may connect and {allowed_actions}; "
            "require a password with --security SASL_SSL"
        )


# -- parsing of options -----------------------------------------------------------------------------------------------


def _security_settings(
    protocol_name: str, *, certificate: Path | None, key: Path | None, client_ca: Path | None, acl: Path | None
) -> SecuritySettings:
    """Return the security settings for ``protocol_name``, the value of ``--security``.

    :raises WorldError: when ``protocol_name`` is not a protocol, or a TLS file is given for a protocol without TLS.
    """
    try:
        protocol = SecurityProtocol(protocol_name.upper())
    except ValueError:
        raise WorldError(
            f"--security {protocol_name}: unknown protocol; use one of {', '.join(SecurityProtocol)}"
        ) from None
    for option, path in (("certificate", certificate), ("key", key), ("client-ca", client_ca)):
        if path is not None and not protocol.has_tls:
            raise WorldError(f"--tls-{option} has no effect with --security {protocol}: use SSL or SASL_SSL")
    return SecuritySettings(
        protocol=protocol, certificate_path=certificate, key_path=key, client_ca_path=client_ca, acl_path=acl
    )


def _parse_configs(configs: Sequence[str]) -> dict[str, str]:
    """Parse each of ``configs`` as ``KEY=VALUE``.

    :raises WorldError: when one of them has no ``=``, or two have the same key.
    """
    value_by_key: dict[str, str] = {}
    for config in configs:
        key, equals, value = map(str.strip, config.partition("="))
        if not equals:
            raise WorldError(f"--config {config} is not KEY=VALUE")
        if key in value_by_key:
            raise WorldError(f"--config {config}: {key} is given twice; give each key once")
        value_by_key[key] = value
    return value_by_key


def _parse_listen_address(listen: str) -> tuple[str, int]:
    """Parse ``listen`` as host (without brackets) and port.

    :raises WorldError: when ``listen`` is not HOST:PORT, has an empty host, or a port above 65535.
    """
    host, colon, port = listen.rpartition(":")
    if not (colon and port.isascii() and port.isdigit()):
        raise WorldError(f"--listen {listen} is not HOST:PORT")
    if not host:
        raise WorldError(
            f"--listen {listen} names no host; use 127.0.0.1:{port} for this machine, 0.0.0.0:{port} for all networks"
        )
    if int(port) > 65535:
        raise WorldError(f"--listen {listen}: {port} is not a port; the highest port is 65535")
    return _without_brackets(host), int(port)


def _without_brackets(host: str) -> str:
    """Return ``host`` without the brackets that an IPv6 address has before a port, as in ``[::1]:9092``."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``: a loopback address, or the name localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
