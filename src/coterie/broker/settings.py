"""The settings of the embedded broker. A setting that Kafka has, too, has Kafka's default; its docstring begins with
Kafka's name for it."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from coterie.config import defaults
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.transaction_messages import TransactionSettings


class SecurityProtocol(StrEnum):
    """``security.protocol``: whether the listener uses TLS (SSL), and whether clients log in (SASL)."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        """Whether connections use TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients must log in with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class GroupProtocol(StrEnum):
    """The protocols of groups that a broker can serve, as in ``group.coordinator.rebalance.protocols``."""

    CLASSIC = "classic"
    CONNECT = "connect"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupConfigBounds:
    """``group.connect.min.*`` and ``group.connect.max.*``: the least and the greatest values that the configs of a
    connect group may have."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    heartbeat_interval_min_ms: int = 100
    heartbeat_interval_max_ms: int = 15_000
    assignment_interval_min_ms: int = 0
    assignment_interval_max_ms: int = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Settings for the authentication and authorization of clients. With TLS, ``certificate_path`` and ``key_path`` are
    both required."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    certificate_path: Path | None = None
    """PEM file with the broker's certificate, followed by its intermediate CA certificates. Required with TLS."""
    key_path: Path | None = None
    """PEM file with the key of the broker's certificate. Required with TLS, even if the file with the certificate also
    contains the key."""
    client_ca_path: Path | None = None
    """PEM file with CA certificates. If set, TLS requires a client certificate that one of these CAs has issued; its
    subject becomes the client's principal."""
    acl_path: Path | None = None
    """The file with the access rules. If it is not set, every client that can connect may do everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """When the log is maintained, and how much memory a compaction may use. Which records are kept is determined by the
    topic configs."""

    retention_check_interval_ms: int = 300_000
    """``log.retention.check.interval.ms``: the pause between two checks for records whose retention has ended."""
    cleaner_backoff_ms: int = 15_000
    """``log.cleaner.backoff.ms``: the pause after each pass of compaction over the partitions."""
    initial_delay_ms: int = 30_000
    """``log.initial.task.delay.ms``: from the start of the broker to the first retention check and the first
    compaction."""
    dedupe_buffer_bytes: int = 134_217_728
    """``log.cleaner.dedupe.buffer.size``: bytes for the keys in one compaction of a partition. A partition with more
    keys needs several compactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of one broker: its data directory, its listener, security, maintenance, and its limits for clients.
    Names in ``_ms`` are durations in milliseconds, names in ``_size_max`` are numbers of bytes.
    ``connection_requests_in_flight_max`` and ``connection_in_flight_size_max`` limit each connection,
    ``principal_in_flight_size_max`` all connections of a principal. ``group_limits`` are all settings of classic
    groups."""

    data_path: Path
    """The data directory, for this broker only; created if it does not exist."""
    host: str = "127.0.0.1"
    """The address or host name on which the broker listens."""
    port: int = 0
    """The port on which the broker listens; 0: the operating system chooses a free port."""
    advertised_host: str | None = None
    """The host to which clients connect, as Metadata responses contain it; by default the address on which the broker
    listens."""
    auto_create_topics: bool = True
    """``auto.create.topics.enable``: whether a Metadata request may create a topic that does not exist."""
    default_partitions: int = 1
    """``num.partitions``: the number of partitions of a new topic for which the request sets none."""
    topic_partitions_max: int = 1_000
    """The maximum number of partitions of one topic."""
    partitions_max: int = 20_000
    """The maximum number of partitions of all topics together: each partition takes some memory, and without access
    rules any client may create topics."""
    batch_size_max: int = 1_048_588
    """``message.max.bytes``: the maximum size of a batch in bytes, unless a topic's configs set another."""
    fetch_size_max: int = 57_671_680
    """``fetch.max.bytes`` of the broker: the maximum size, in bytes, of all batches in one Fetch response together. The
    first batch is returned even if it is larger."""
    frame_size_max: int = defaults.FRAME_SIZE_MAX_BYTES
    """``socket.request.max.bytes``: the maximum size of a request, in bytes. A peer that announces more is
    disconnected."""
    connections_max: int = defaults.CONNECTIONS_MAX
    """The maximum number of open connections; further connections are closed at once."""
    connections_per_address_max: int | None = None
    """``max.connections.per.ip``: the maximum number of open connections from one IP address. None: only
    ``connections_max`` limits them, because all clients on one machine share an address."""
    connection_requests_in_flight_max: int = defaults.IN_FLIGHT_REQUESTS_MAX
    """The maximum number of requests of one connection in flight: read, but without a written response. At the limit
    the connection's socket is not read."""
    connection_in_flight_size_max: int = 104_857_600
    """The maximum size, in bytes, of one connection's requests and responses in flight together. At the limit the
    connection's socket is not read."""
    principal_in_flight_size_max: int = 419_430_400
    """The maximum size, in bytes, of the requests and fetched records in flight of one principal over all its
    connections, or of one client address if clients are not authenticated. At the limit the next request waits. Fetched
    records may use three quarters of this size, so that clients that do not read their records do not delay the
    heartbeats of the principal's other clients."""
    handshake_timeout_ms: int = 10_000
    """The maximum time from the start of a connection to the end of its TLS and SASL handshakes."""
    failed_authentication_delay_ms: int = 100
    """``connection.failed.authentication.delay.ms``: from a failed login to its error response."""
    idle_timeout_ms: int = 600_000
    """``connections.max.idle.ms``: a connection is closed when for this time it has had no request in flight and its
    peer has sent no whole request."""
    unread_response_timeout_ms: int = 60_000
    """A connection is closed when its peer reads nothing of a response for this time: the unread bytes occupy its
    principal's budget, for which other connections may wait."""
    security: SecuritySettings = field(default_factory=SecuritySettings)
    group_limits: ClassicGroupSettings = field(default_factory=ClassicGroupSettings)
    """The settings of classic groups: initial rebalance delay, bounds of session timeouts, limits of sizes and numbers,
    and the retention of offsets. The maximum number of groups and the retention also apply to connect groups."""
    group_protocols: frozenset[GroupProtocol] = frozenset(GroupProtocol)
    """``group.coordinator.rebalance.protocols``: the protocols of the groups that the broker serves. Classic groups are
    always served. Without CONNECT the broker has no API of connect groups, and leaves their records as they are."""
    connect_groups: ConnectGroupSettings = field(default_factory=ConnectGroupSettings)
    """``group.connect.*``: the settings of connect groups, unless a group has its own configs. At its start the broker
    replaces two of them: ``server_assignors``, by ``connect_assignors_or_all``, and ``empty_group_retention_ms``, by
    the retention of offsets of ``group_limits``."""
    connect_group_config_bounds: ConnectGroupConfigBounds = field(default_factory=ConnectGroupConfigBounds)
    """The least and the greatest values that the configs of a connect group may have."""
    connect_assignors_or_all: tuple[str, ...] | None = None
    """``group.connect.assignors``: the names of the assignors that compute target assignments in the broker; None: all
    that the broker was given."""
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    """Timeouts of transactions, and when the state of idle producers and transactional ids expires."""
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    stats_path: Path | None = None
    """The file to which the result of :meth:`Broker.stats` is written as JSON at shutdown; None: it is not written."""

    @property
    def serves_connect_groups(self) -> bool:
        """Whether the broker serves connect groups."""
        return GroupProtocol.CONNECT in self.group_protocols

    @property
    def log_path(self) -> Path:
        """The SQLite file with topics, records and groups."""
        return self.data_path / "log.sqlite"

    @property
    def lock_path(self) -> Path:
        """The file that a running broker locks against other brokers."""
        return self.data_path / "lock"

    @property
    def users_path(self) -> Path:
        """The file with the users who may log in and their SCRAM credentials."""
        return self.data_path / "users.json"
