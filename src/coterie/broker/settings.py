"""The settings of the embedded broker; a setting that Kafka also has uses Kafka's default."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coterie.config import defaults
from coterie.groups.classic.state import Limits
from coterie.groups.transaction_messages import TransactionLimits


class SecurityProtocol(StrEnum):
    """``security.protocol``: how the listener is secured."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """How clients are authenticated and authorized."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    certificate_path: Path | None = None
    """PEM file with the broker's certificate, followed by its intermediate CA certificates."""
    key_path: Path | None = None
    client_ca_path: Path | None = None
    """If set, TLS requires a client certificate from one of these CAs; its subject becomes the client's principal."""
    acl_path: Path | None = None
    """Without it, every client that can connect may do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How often the log is maintained; the topic configs determine what is kept."""

    retention_check_interval_ms: int = 300_000
    """``log.retention.check.interval.ms``."""
    cleaner_backoff_ms: int = 15_000
    """``log.cleaner.backoff.ms``: how long the cleaner sleeps when no partition needs compaction."""
    initial_delay_ms: int = 30_000
    """``log.initial.task.delay.ms``."""
    dedupe_buffer_size: int = 134_217_728
    """``log.cleaner.dedupe.buffer.size``, bytes: a partition with more keys takes several compactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of one broker: its listener, its data directory, and its limits for clients."""

    data_path: Path
    """A directory for this broker only; created if it does not exist."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the operating system chooses a free port."""
    advertised_host: str | None = None
    """The host that clients are to connect to, as sent in Metadata responses; by default ``host``."""
    auto_create_topics: bool = True
    """``auto.create.topics.enable``."""
    default_partitions: int = 1
    """``num.partitions``."""
    topic_partitions_max: int = 1_000
    partitions_max: int = 20_000
    """Over all topics: each partition costs some memory, and without access rules any client may create topics."""
    batch_size_max: int = 1_048_588
    """``message.max.bytes``."""
    fetch_size_max: int = 57_671_680
    """``fetch.max.bytes`` of the broker."""
    frame_size_max: int = defaults.FRAME_SIZE_MAX
    """``socket.request.max.bytes``."""
    connections_max: int = defaults.CONNECTIONS_MAX
    connections_per_address_max: int | None = None
    """``max.connections.per.ip``; by default only ``connections_max`` applies, because all clients on one machine share
    an address."""
    in_flight_max: int = defaults.IN_FLIGHT_MAX
    """Requests of one connection that may be in flight; at the limit its socket is not read."""
    in_flight_size_max: int = 104_857_600
    """Bytes of one connection's requests and responses in flight; at the limit its socket is not read."""
    principal_in_flight_size_max: int = 419_430_400
    """Bytes of requests and fetched records in flight of one principal, or of one host if clients are not
    authenticated; at the limit the next request waits. Records may use three quarters of it, so that clients that read
    no records do not block the heartbeats of others."""
    handshake_timeout_ms: int = 10_000
    """From the start of the connection to the end of TLS and SASL."""
    refusal_delay_ms: int = 100
    """``connection.failed.authentication.delay.ms``."""
    idle_timeout_ms: int = 600_000
    """``connections.max.idle.ms``: close a connection that has no request in flight and sends no whole request."""
    deaf_timeout_ms: int = 60_000
    """Close a peer that reads nothing of a response for this long: its unread bytes count against its principal's
    budget, which other connections may wait for."""
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)
    """Initial rebalance delay, session timeouts and size of groups."""
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    """Transaction timeouts, and when the state of idle producers expires."""
    upkeep: Upkeep = field(default_factory=Upkeep)
    stats_path: Path | None = None
    """Where `stats()` is written as JSON at shutdown."""

    @property
    def log_path(self) -> Path:
        return self.data_path / "log.sqlite"

    @property
    def lock_path(self) -> Path:
        return self.data_path / "lock"

    @property
    def users_path(self) -> Path:
        return self.data_path / "users.json"
