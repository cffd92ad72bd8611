"""``Pipeline``: what one task runs, parsed once from its config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.config.definition import Definition, Key, Type, at_least
from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from coterie.spark.plugins import find_sink, source_of
from coterie.spark.seams import Share, Sink, Source
from coterie.spark.validation import common, shares_of, split_errors

TASK = Definition(
    (
        Key(name="task.index", type=Type.INT, documentation="The task's number, from 0.", check=at_least(0)),
        Key(name="task.count", type=Type.INT, documentation="How many tasks the connector has.", check=at_least(1)),
    )
)
"""What a task's config has beside the connector's and ``task.class``; written by :func:`task_configs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One task's share of a source, what is done to its rows, and where they are written."""

    source: Source
    transforms: tuple[transforms.Transform, ...]
    sink: Sink
    trigger_interval_ms: int
    """How often the task looks for new input; 0 means again at once."""

    @classmethod
    def of(cls, task_config: Mapping[str, str]) -> "Pipeline":
        """:raises ConfigError: when a value is not valid; names its key."""
        config = resolved(task_config)
        share = Share(index=TASK.read(config, "task.index", int), count=TASK.read(config, "task.count", int))
        return cls(
            source=source_of(config, "task.class").of(config, share),
            transforms=transforms.parsed(config),
            sink=find_sink(config).of(config),
            trigger_interval_ms=common().read(config, "trigger.interval.ms", int),
        )


def task_configs(
    connector: str, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """The configs of the connector's tasks, references unresolved.

    :raises ConfigError: when there is no such connector, ``tasks.max`` is not valid, or the split differs from that of
        the ``checkpointed`` tasks.
    :raises WorldError: when the source cannot be reached.
    """
    source = source_of(config, "connector.class")
    shares = shares_of(source, resolved(config))
    if errors := split_errors(config, len(shares), checkpointed):
        raise ConfigError(errors)
    return [
        {
            **config,
            **share,
            "name": connector,
            "task.class": config["connector.class"],
            "task.index": str(index),
            "task.count": str(len(shares)),
        }
        for index, share in enumerate(shares)
    ]


def resolved(config: Mapping[str, str]) -> Mapping[str, str]:
    """``config`` as a plug-in gets it: the one place where references to secrets will be replaced by what they name."""
    return config
