"""How a worker runs Spark."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


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
    stop_at_c1: bool = True
    """Halve the CPU of small batches; heavy queries run slower (``-XX:TieredStopAtLevel=1``)."""
    starts_at_once: int = 4
    """How many queries are started at the same time; more only take turns on the same two or four cores."""
    stops_at_once: int = 64
    """How many are stopped at the same time: each may hang in Spark for a while, and none may wait for another."""
    questions_at_once: int = 16
    """How many connectors are validated or split at the same time; a plug-in may take as long as it likes."""
    look_every_ms: int = 300
    """How often the queries are asked for their progress."""
