"""``Pipeline``: the source, transforms and sink of one task, parsed from its config."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.config.definition import ConfigDef, ConfigKey, Type, at_least, one_of
from coterie.spark import transforms
from coterie.spark.bad_records.keys import BadRecordSettings, read_bad_record_settings
from coterie.spark.bad_records.queue import DeadLetterQueue, make_dead_letter_queue_if_configured
from coterie.spark.connector_keys import TASKS_MAX_ENFORCE_KEY, common_connector_definition
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.plugins import ConfiguredSource, configured_sink, configured_source
from coterie.spark.seams import Sink, Source, TaskInput, TooManyTasksError, TopicUser
from coterie.spark.task_timeouts import TaskTimeoutsAndRestarts
from coterie.spark.validation import GENERATION_KEY, INFERRED_VALUES_KEY

logger = logging.getLogger(__name__)

TASK_DEFINITION = ConfigDef(
    (
        ConfigKey(name="task.index", type=Type.INT, documentation="The task's number, from 0.", validator=at_least(0)),
        ConfigKey(
            name="task.count",
            type=Type.INT,
            documentation="How many tasks the connector has.",
            validator=at_least(1),
        ),
        ConfigKey(
            name="task.parts",
            type=Type.STRING,
            documentation="The source partitions that the task reads: a JSON list of their names.",
            default="[]",
        ),
        ConfigKey(
            name="task.split",
            type=Type.STRING,
            documentation="The function that divides the input of the source partitions between the tasks.",
            default=SplitFunction.PATH_HASH_V0.value,
            validator=one_of([function.value for function in SplitFunction]),
        ),
        ConfigKey(
            name=INFERRED_VALUES_KEY,
            type=Type.STRING,
            documentation="The checkpoint generation's values for source keys that the config omits: a JSON object.",
            default="{}",
        ),
    )
)
"""The keys that a task's config has in addition to the connector's keys, ``task.class`` and :data:`GENERATION_KEY`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The source, transforms and sink of one task."""

    source: Source
    source_partition_count_of_task: int
    """The number of source partitions that the task reads."""
    transforms: tuple[transforms.Transform, ...]
    sink: Sink
    bad_record_settings: BadRecordSettings | None
    """The handling of bad records; None means that the first bad record fails the task."""
    dead_letter_queue: DeadLetterQueue | None
    """Writes the bad records. None when the first bad record fails the task, when the sink writes the bad records in
    the transaction of the good rows, or when they are dropped."""
    timeouts: TaskTimeoutsAndRestarts
    trigger_interval_ms: int
    """Interval at which the task checks for new input; 0 means without a pause."""

    @property
    def used_topics(self) -> frozenset[str]:
        """The topics of the records that the source reads and the sink writes (:attr:`TopicUser.used_topics`)."""
        users = (part for part in (self.source, self.sink) if isinstance(part, TopicUser))
        return frozenset(topic for user in users for topic in user.used_topics)

    @classmethod
    def of(cls, config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]) -> "Pipeline":
        """The pipeline of the task with the config ``config``, whose references are resolved.

        ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        task_input = TaskInput(
            task_number=TASK_DEFINITION.required_value(config, "task.index", int),
            task_count=TASK_DEFINITION.required_value(config, "task.count", int),
            source_partitions=tuple(json.loads(TASK_DEFINITION.required_value(config, "task.parts", str))),
            split_function=SplitFunction(TASK_DEFINITION.required_value(config, "task.split", str)),
        )
        source, sink = (
            configured_source(config, worker_kafka_properties, "task.class"),
            configured_sink(config, worker_kafka_properties, "task.class"),
        )
        tolerance = read_bad_record_settings(config)
        needs_no_queue = tolerance is None or isinstance(
            tolerance.dead_letter_destination, sink.plugin.atomic_dead_letter_destinations
        )
        return cls(
            source=source.plugin.of(source.config, task_input),
            source_partition_count_of_task=len(task_input.source_partitions),
            transforms=transforms.parse_transforms(config),
            sink=sink.plugin.of(sink.config),
            bad_record_settings=tolerance,
            dead_letter_queue=None
            if tolerance is None or needs_no_queue
            else make_dead_letter_queue_if_configured(
                tolerance.dead_letter_destination, config, worker_kafka_properties
            ),
            timeouts=TaskTimeoutsAndRestarts.of(config),
            trigger_interval_ms=common_connector_definition().required_value(config, "trigger.interval.ms", int),
        )


def task_configs(
    connector: str, config: Mapping[str, str], manifest: Manifest, resolved_config: Mapping[str, str]
) -> list[Mapping[str, str]]:
    """The configs of the tasks of the checkpoint generation ``manifest``, by task number. ``config`` is the connector's
    config, and ``resolved_config`` the same with resolved references. The task configs contain the unresolved
    references. For source keys that ``config`` does not set they also contain the generation's inferred values.

    :raises ConfigError: when the connector's source is missing or unknown.
    """
    source = configured_source(resolved_config, {})
    inferred = source.config.values_by_user_key(manifest.inferred_values)
    split = use_digests_in_split_if_references(manifest.split, source, config)
    return [
        {
            **inferred,
            **config,
            "name": connector,
            "task.class": config["connector.class"],
            "task.index": str(index),
            "task.count": str(len(split.partitions_by_task)),
            "task.parts": json.dumps(source_partitions),
            "task.split": split.function.value,
            INFERRED_VALUES_KEY: json.dumps(dict(manifest.inferred_values)),
            GENERATION_KEY: str(manifest.generation),
        }
        for index, source_partitions in enumerate(split.partitions_by_task)
    ]


def use_digests_in_split_if_references(split: Split, source: ConfiguredSource, config: Mapping[str, str]) -> Split:
    """``split`` as it is stored: with digests (:meth:`Split.with_digests_if_hash_split`) if a value that identifies
    the input of ``source`` contains a reference in ``config``, the connector's config with unresolved references."""
    keys = (source.config.user_key(name) for name in source.plugin.identity_keys)
    has_references = any(config.get(key) != source.config.config.get(key) for key in keys)
    return split.with_digests_if_hash_split() if has_references else split


def split_source(source: ConfiguredSource, source_partitions: Sequence[str]) -> Split:
    """The division of the source partitions ``source_partitions`` between the tasks of a connector. Logs a warning if
    the source returns more than ``tasks.max`` tasks and ``tasks.max.enforce`` is false (KIP-1004).

    :raises ConfigError: when ``tasks.max`` or ``tasks.max.enforce`` is not valid.
    :raises TooManyTasksError: when the source returns more than ``tasks.max`` tasks and ``tasks.max.enforce`` is true.
    """
    config = source.config.config
    tasks_max = common_connector_definition().required_value(config, "tasks.max", int)
    partitions_by_task = source.plugin.divide_partitions(source_partitions, tasks_max)
    if len(partitions_by_task) > tasks_max:
        # The texts are Connect's.
        message = (
            f"The connector {config.get('name', '')} has generated {len(partitions_by_task)} tasks, which is greater "
            f"than {tasks_max}, the maximum number of tasks it is configured to create. "
        )
        if common_connector_definition().required_value(config, TASKS_MAX_ENFORCE_KEY.name, bool):
            raise TooManyTasksError(
                f"{message}This behaviour should be considered a bug and is disallowed. If necessary, it can be "
                f"permitted by reconfiguring the connector with '{TASKS_MAX_ENFORCE_KEY.name}' set to false; however, "
                "this option will be removed in a future release of Kafka Connect."
            )
        logger.warning(
            "%sThis behavior should be considered a bug and will be disallowed in future releases of Kafka Connect. "
            "Please report this to the maintainers of the connector and request that they adjust divide_partitions of "
            "%s to respect tasks_max.",
            message,
            source.plugin.__name__,
        )
    return Split(
        function=source.plugin.split_function,
        partitions_by_task=tuple(tuple(source_partitions) for source_partitions in partitions_by_task),
    )
