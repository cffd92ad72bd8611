"""``Pipeline``: the source, transforms and sink of one task, parsed from its config."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.config.definition import Definition, Key, Type, at_least, one_of
from coterie.spark import transforms
from coterie.spark.bad_records.keys import Tolerance, tolerance_of
from coterie.spark.bad_records.queue import DeadLetterQueue, queue_of
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.patience import Patience
from coterie.spark.plugins import SourceEnd, sink_end, source_end
from coterie.spark.seams import Share, Sink, Source
from coterie.spark.validation import INFERRED, common

TASK = Definition(
    (
        Key(name="task.index", type=Type.INT, documentation="The task's number, from 0.", check=at_least(0)),
        Key(name="task.count", type=Type.INT, documentation="How many tasks the connector has.", check=at_least(1)),
        Key(
            name="task.parts",
            type=Type.STRING,
            documentation="The source partitions that the task reads: a JSON list of their names.",
            default="[]",
        ),
        Key(
            name="task.split",
            type=Type.STRING,
            documentation="The function that divides the input of the source partitions between the tasks.",
            default=SplitFunction.PATH_HASH_V0.value,
            check=one_of([function.value for function in SplitFunction]),
        ),
        Key(
            name=INFERRED,
            type=Type.STRING,
            documentation="The checkpoint generation's values for source keys that the config omits: a JSON object.",
            default="{}",
        ),
    )
)
"""Keys of a task's config in addition to the connector's keys, ``task.class`` and :data:`GENERATION`."""
GENERATION = "generation"
"""Key of a task's config: the only checkpoint generation in which the task may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The source, transforms and sink of one task."""

    source: Source
    transforms: tuple[transforms.Transform, ...]
    sink: Sink
    tolerance: Tolerance | None
    """The handling of bad records; None means that the first bad record fails the task."""
    queue: DeadLetterQueue | None
    """Writes the bad records; None when the sink writes them in the transaction of the good rows, or when they are
    dropped."""
    patience: Patience
    trigger_interval_ms: int
    """Interval at which the task checks for new input; 0 means without a pause."""

    @classmethod
    def of(cls, task_config: Mapping[str, str], worker: Mapping[str, str]) -> "Pipeline":
        """``worker``: see :attr:`EndConfig.worker`.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        config = resolved(task_config)
        share = Share(
            index=TASK.read(config, "task.index", int),
            count=TASK.read(config, "task.count", int),
            parts=tuple(json.loads(TASK.read(config, "task.parts", str))),
            function=SplitFunction(TASK.read(config, "task.split", str)),
        )
        source, sink = source_end(config, worker, "task.class"), sink_end(config, worker, "task.class")
        tolerance = tolerance_of(config)
        holds = tolerance is None or isinstance(tolerance.letters, sink.plugin.holds)
        return cls(
            source=source.plugin.of(source.config, share),
            transforms=transforms.parsed(config),
            sink=sink.plugin.of(sink.config),
            tolerance=tolerance,
            queue=None if tolerance is None or holds else queue_of(tolerance.letters, config, worker),
            patience=Patience.of(config),
            trigger_interval_ms=common().read(config, "trigger.interval.ms", int),
        )


def task_configs(connector: str, config: Mapping[str, str], manifest: Manifest) -> list[Mapping[str, str]]:
    """The configs of the tasks of the checkpoint generation ``manifest``, for the connector's ``config``. References to
    secrets stay unresolved. The configs contain the inferred values of the keys that ``config`` does not set."""
    inferred = source_end(resolved(config), {}).config.named(manifest.inferred)
    return [
        {
            **inferred,
            **config,
            "name": connector,
            "task.class": config["connector.class"],
            "task.index": str(index),
            "task.count": str(len(manifest.split.tasks)),
            "task.parts": json.dumps(parts),
            "task.split": manifest.split.function.value,
            INFERRED: json.dumps(dict(manifest.inferred)),
            GENERATION: str(manifest.generation),
        }
        for index, parts in enumerate(manifest.split.tasks)
    ]


def split_of(source: SourceEnd, parts: Sequence[str]) -> Split:
    """The split of the source partitions ``parts`` by a connector's config.

    :raises ConfigError: when ``tasks.max`` is not valid.
    """
    tasks = source.plugin.split(parts, common().read(source.config.config, "tasks.max", int))
    return Split(function=source.plugin.split_function, tasks=tuple(tuple(parts) for parts in tasks))


def resolved(config: Mapping[str, str]) -> Mapping[str, str]:
    """Returns ``config`` unchanged: references to secrets are not supported yet."""
    return config
