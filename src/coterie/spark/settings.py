"""How a worker runs Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.config.defaults import MAVEN_CENTRAL, OFFSET_FLUSH_INTERVAL_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class JarSettings:
    """Where a worker finds the jars that its connectors need."""

    folder: Path
    fetch: bool = False
    """Whether what is missing in ``folder`` is fetched before Spark starts."""
    mirror: str = field(default=MAVEN_CENTRAL, repr=False)
    """Where from; may hold a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """What a worker allows of users' Python."""

    modules: tuple[str, ...] = ()
    """Modules, and packages with all their modules, from which connectors may run functions."""
    executable: str | None = None
    """The Python in which functions over rows run; None is the worker's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """How a worker runs Spark."""

    checkpoint_location: Path
    """Shared by all workers."""
    scratch: Path
    """This worker's own: temporary files of Spark and ours."""
    log_file: Path
    """What the JVM prints."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """``spark.*`` settings, over ours."""
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What sources and sinks of Kafka use where a connector says nothing else: properties of Kafka's clients."""
    jars: JarSettings | None = None
    """Without it Spark has its own jars only."""
    python: PythonSettings = PythonSettings()
    offset_flush_interval_ms: int = OFFSET_FLUSH_INTERVAL_MS
    """How often the offsets of tasks that read from Kafka are committed to their connector's group."""
