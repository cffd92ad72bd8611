"""``Rotation``: how long a task waits for rows before it starts a batch, so that a sink writes fewer, larger files."""

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
                "Number of waiting rows at which a task writes them; it also writes when rotate.interval.ms is over. "
                "Default: the rows of a full batch. For sources that report the number of waiting rows (Kafka)."
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
                "Longest time that a task waits for flush.size rows; 0: it never waits. For sources that report the "
                "number of waiting rows (Kafka)."
            ),
            default="30000",
            check=at_least(0),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Rotate interval (ms)",
        ),
    )
)
"""Keys of Connect's S3 sink, for the definition of a sink that benefits from batches of many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A batch starts when ``rows`` rows are waiting, or ``interval_ms`` after the previous batch."""

    rows: int | None
    """None: the number of rows of the source's largest batch."""
    interval_ms: int

    @classmethod
    def of(cls, config: EndConfig) -> Self | None:
        """The rotation of a sink's config; None when the sink must not wait for rows.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        interval_ms = config.read(DEFINITION, "rotate.interval.ms", int)
        rows = config.find(DEFINITION, "flush.size", int)
        return cls(rows=rows, interval_ms=interval_ms) if interval_ms else None


def keys(config: EndConfig) -> tuple[str, ...]:
    """The rotation keys by the names that the user has to set."""
    return tuple(config.key(known.name) for known in DEFINITION.keys)
