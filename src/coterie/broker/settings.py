"""The settings of the embedded broker; what Kafka has, too, has Kafka's default."""

from dataclasses import dataclass, field
from pathlib import Path

from coterie.groups.state import Limits


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
    frame_size_max: int = 104_857_600
    """``socket.request.max.bytes``."""
    connections_max: int = 2_000
    in_flight_max: int = 32
    """Requests of one connection that are taken before the oldest is answered; then its socket is not read."""
    idle_timeout_ms: int = 600_000
    """``connections.max.idle.ms``: a connection with nothing in flight that sends no whole request is closed."""
    limits: Limits = field(default_factory=Limits)
    """Initial rebalance delay, session timeouts and size of groups."""
    stats_path: Path | None = None
    """Where `stats()` is written as JSON at shutdown."""

    @property
    def log_path(self) -> Path:
        return self.data_path / "log.sqlite"

    @property
    def lock_path(self) -> Path:
        return self.data_path / "lock"
