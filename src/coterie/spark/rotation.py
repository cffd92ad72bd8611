"""``Rotation``: how long a task waits for rows before it starts a batch, so that a sink writes fewer, larger files."""

from dataclasses import dataclass
from typing import Self

from coterie.config.definition import ConfigDef, ConfigKey, Type, Width, at_least
from coterie.spark.paths import SINK_GROUP
from coterie.spark.prefixed_config import PrefixedConfig

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="flush.size",
            type=Type.INT,
            documentation=(
                "Number of waiting rows at which a task writes them; it also writes when rotate.interval.ms is over. "
                "Default: the rows of a full batch. For sources that report the number of waiting rows (Kafka)."
            ),
            is_optional=True,
            validator=at_least(1),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Flush size (rows)",
        ),
        ConfigKey(
            name="rotate.interval.ms",
            type=Type.LONG,
            documentation=(
                "Longest time that a task waits for flush.size rows; 0: it never waits. For sources that report the "
                "number of waiting rows (Kafka)."
            ),
            default="30000",
            validator=at_least(0),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Rotate interval (ms)",
        ),
    )
)
"""The keys that define how long a batch waits for rows (:class:`Rotation`), named as in Connect's S3 sink. A sink that
writes large batches more efficiently adds these keys to its own definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """How long a batch waits for rows. It starts when ``waiting_rows_min`` rows are waiting, and at the latest
    ``rotate_interval_ms`` after the start of the previous batch if any row is waiting then. By default that is 30 s; a
    config with ``rotate.interval.ms=0`` has no rotation."""

    waiting_rows_min: int | None
    """Number of waiting rows at which a batch starts; None means the number of rows of the source's largest batch."""
    rotate_interval_ms: int
    """Longest time from the start of a batch to the start of the next one, if any row is waiting then."""

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self | None:
        """How long batches wait for rows, as a sink's config defines it; None when they do not wait
        (``rotate.interval.ms`` = 0).

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        interval_ms = config.required_value(DEFINITION, "rotate.interval.ms", int)
        rows = config.optional_value(DEFINITION, "flush.size", int)
        return cls(waiting_rows_min=rows, rotate_interval_ms=interval_ms) if interval_ms else None


def rotation_user_keys(config: PrefixedConfig) -> tuple[str, ...]:
    """The user's keys (:meth:`PrefixedConfig.user_key`) of ``flush.size`` and ``rotate.interval.ms``, whether or not
    the user has set them."""
    return tuple(config.user_key(key.name) for key in DEFINITION.keys)
