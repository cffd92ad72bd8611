"""`coterie broker`: the embedded broker as a process."""

import asyncio
import logging
import signal
import socket
from pathlib import Path

from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings, Security, SecurityProtocol
from coterie.groups.state import Limits
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def settings(
    listen: str,
    data: Path,
    *,
    advertise: str | None,
    security: str,
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    acl: Path | None,
    connections_per_address_max: int | None,
    initial_delay_ms: int,
    groups_max: int,
    group_size_max: int,
    frame_size_max: int,
    connections_max: int,
    in_flight_max: int,
) -> BrokerSettings:
    """The broker's settings from the command line's words.

    ``advertise`` is the host that clients are told; by default that of ``listen``, or the machine's name where that
    stands for all interfaces.

    :raises WorldError: for an address or a security protocol that is none.
    """
    host, _, port = listen.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise WorldError(f"--listen {listen} is not HOST:PORT")
    host = _unbracketed(host)
    if advertise is None and host in ("0.0.0.0", "::"):
        advertise = socket.gethostname()
    return BrokerSettings(
        data_path=data,
        host=host,
        port=int(port),
        advertised_host=_unbracketed(advertise) if advertise else None,
        security=Security(
            protocol=_protocol(security),
            certificate_path=certificate,
            key_path=key,
            client_ca_path=client_ca,
            acl_path=acl,
        ),
        connections_per_address_max=connections_per_address_max,
        limits=Limits(
            initial_rebalance_delay_ms=initial_delay_ms, groups_max=groups_max, group_size_max=group_size_max
        ),
        stats_path=data / "stats.json",
        frame_size_max=frame_size_max,
        connections_max=connections_max,
        in_flight_max=in_flight_max,
    )


def run(settings: BrokerSettings) -> int:
    """Run a broker until SIGTERM or Ctrl-C; returns the exit code.

    :raises WorldError: when the data folder or the port cannot be had.
    """
    asyncio.run(_serve(settings))
    return 0


async def _serve(settings: BrokerSettings) -> None:
    if settings.security.protocol is SecurityProtocol.SASL_PLAINTEXT and settings.host not in _LOOPBACK:
        logger.warning("Without TLS, clients that log in with PLAIN show their passwords to whoever listens on the way")
    serving = asyncio.current_task()
    assert serving is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serve(settings, ready=lambda host, port: logger.info("The broker listens at %s:%d", host, port))
    except asyncio.CancelledError:
        logger.info("The broker has ended")


def _protocol(word: str) -> SecurityProtocol:
    try:
        return SecurityProtocol(word.upper())
    except ValueError:
        raise WorldError(f"--security {word} is none of {', '.join(SecurityProtocol)}") from None


def _unbracketed(host: str) -> str:
    """``[::1]`` is how an IPv6 address is written before a port."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host
