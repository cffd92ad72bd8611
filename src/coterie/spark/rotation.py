"""``Rotation``: how long a task waits for rows before it has a batch, so that the files of a sink are few."""

from dataclasses import dataclass
from typing import Self

from coterie.config.definition import Definition, Key, Type, Width, at_least
from coterie.spark.end_config import EndConfig
from coterie.spark.paths import SINK_GROUP

DEFINITION = Definition(
    (
        Key(
            name="flush.size",
            type=Type.INT,
            documentation=(
                "A task writes its rows once so many are waiting, or rotate.interval.ms is over; by default once they "
                "fill a batch. For sources that can tell how many rows are waiting (Kafka)."
            ),
            optional=True,
            check=at_least(1),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Flush size (rows)",
        ),
        Key(
            name="rotate.interval.ms",
            type=Type.LONG,
            documentation=(
                "A task waits at most so long for flush.size rows; 0: it never waits. For sources that can tell how "
                "many rows are waiting (Kafka)."
            ),
            default="30000",
            check=at_least(0),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Rotate interval (ms)",
        ),
    )
)
"""Keys of Connect's S3 sink, for the definition of a sink that asks for batches of many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A batch is wanted once so many rows are waiting, or so long after the one before it."""

    rows: int | None
    """None: as many as the source's largest batch has."""
    interval_ms: int

    @classmethod
    def of(cls, config: EndConfig) -> Self | None:
        """None when the config asks for every row at once.

        :raises ConfigError: when a value is not valid; names its key.
        """
        interval_ms = config.read(DEFINITION, "rotate.interval.ms", int)
        rows = config.find(DEFINITION, "flush.size", int)
        return cls(rows=rows, interval_ms=interval_ms) if interval_ms else None


def keys(config: EndConfig) -> tuple[str, ...]:
    """The keys of rotation as the user sees them."""
    return tuple(config.key(known.name) for known in DEFINITION.keys)
