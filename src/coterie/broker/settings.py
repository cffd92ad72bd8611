"""The settings of the embedded broker; what Kafka has, too, has Kafka's default."""

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
    """Who gets in, and what they may do."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    certificate_path: Path | None = None
    """PEM, with the certificates between it and its CA behind it."""
    key_path: Path | None = None
    client_ca_path: Path | None = None
    """With it, TLS takes only clients with a certificate of one of these CAs, and that says who they are."""
    acl_path: Path | None = None
    """Without it, everybody who gets in may do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How often the log is tidied up; what is kept of a topic its configs say."""

    retention_check_interval_ms: int = 300_000
    """``log.retention.check.interval.ms``."""
    cleaner_backoff_ms: int = 15_000
    """``log.cleaner.backoff.ms``: how long the cleaner sleeps when there is nothing to compact."""
    initial_delay_ms: int = 30_000
    """``log.initial.task.delay.ms``."""
    dedupe_buffer_size: int = 134_217_728
    """``log.cleaner.dedupe.buffer.size``, bytes: a partition with more keys takes several passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """One broker: where it listens, where its log is, and how much it lets anybody ask for."""

    data_path: Path
    """A directory of its own; made when it is missing."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: the system gives a free one."""
    advertised_host: str | None = None
    """What clients are told to connect to; by default ``host``."""
    auto_create_topics: bool = True
    """``auto.create.topics.enable``."""
    default_partitions: int = 1
    """``num.partitions``."""
    topic_partitions_max: int = 1_000
    partitions_max: int = 20_000
    """Over all topics: each costs some memory, and CreateTopics is open to everybody."""
    batch_size_max: int = 1_048_588
    """``message.max.bytes``."""
    fetch_size_max: int = 57_671_680
    """``fetch.max.bytes`` of the broker."""
    frame_size_max: int = defaults.FRAME_SIZE_MAX
    """``socket.request.max.bytes``."""
    connections_max: int = defaults.CONNECTIONS_MAX
    connections_per_address_max: int | None = None
    """``max.connections.per.ip``; by default only ``connections_max`` counts, as all of one machine come from one."""
    in_flight_max: int = defaults.IN_FLIGHT_MAX
    """Requests of one connection that are taken before the oldest is answered; then its socket is not read."""
    in_flight_size_max: int = 104_857_600
    """Bytes of one connection's requests and answers that are not through yet; then its socket is not read."""
    principal_in_flight_size_max: int = 419_430_400
    """Bytes of requests and fetched records of one principal, or of one host where nobody has a name; then the next
    request waits. Three quarters of it are for records, so that those who read none keep nobody from its heartbeats."""
    handshake_timeout_ms: int = 10_000
    """From the connection to the end of TLS and SASL."""
    refusal_delay_ms: int = 100
    """``connection.failed.authentication.delay.ms``."""
    idle_timeout_ms: int = 600_000
    """``connections.max.idle.ms``: a connection with nothing in flight that sends no whole request is closed."""
    deaf_timeout_ms: int = 60_000
    """A peer that reads nothing of an answer for so long is closed: what it does not read counts against its principal,
    and others may wait for that."""
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)
    """Initial rebalance delay, session timeouts and size of groups."""
    transactions: TransactionLimits = field(default_factory=TransactionLimits)
    """Timeouts, and when producers are forgotten."""
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
