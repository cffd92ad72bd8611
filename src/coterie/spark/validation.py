"""Validates a connector's config, with errors by key, and defines the keys that every connector has."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from coterie.config.definition import (
    ConfigDef,
    ConfigKey,
    Importance,
    Type,
    Width,
    as_list,
    at_least,
    between,
    not_blank,
    one_of,
)
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import TASKS_MAX
from coterie.spark import rotation, transforms, unsupported_connect_keys
from coterie.spark.bad_records import keys as bad_records
from coterie.spark.bad_records import queue
from coterie.spark.bad_records.error_columns import ERROR, ERROR_TYPE, ORIGINAL, ORIGINAL_RECORD_TYPE
from coterie.spark.bad_records.tolerant_transforms import apply_tolerant
from coterie.spark.checkpoint import NAME_BYTES_MAX, safe_name
from coterie.spark.columns import column_ids
from coterie.spark.failures import message_of
from coterie.spark.generations.stores import NoPositions
from coterie.spark.paths import as_path
from coterie.spark.plugins import (
    SINKS,
    ConfiguredSink,
    ConfiguredSource,
    configured_sink,
    configured_source,
    sink_identity,
    sources,
)
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn
from coterie.spark.seams import TaskInput
from coterie.spark.sinks import kafka_target
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sources import kafka
from coterie.spark.sources.kafka import KafkaSource
from coterie.spark.task_timeouts import BATCH_TIMEOUT, METADATA_MAX_AGE

logger = logging.getLogger(__name__)

GROUP = "Common"
"""The group, in a form, of the keys that every connector has."""
INFERRED = "task.inferred"
"""Key of a task's config: the values that its checkpoint generation inferred for source keys that the connector's
config does not set, as a JSON object by name without the prefix."""
_PREFIXES = ("source", "sink", "transforms", "predicates")
"""The first words of a connector's keys that have a prefix."""
EXACTLY_ONCE = ConfigKey(
    name="exactly.once.support",
    type=Type.STRING,
    documentation="With required, a connector whose sink may write a row twice is rejected.",
    default="requested",
    validator=one_of(("requested", "required")),
    group=GROUP,
    order=4,
    width=Width.SHORT,
    display_name="Exactly once support",
)
"""The key by which the user requires that the sink writes each row exactly once."""

_ALTERNATIVES = (
    "or create a connector under another name; or delete this one and create it again. A new connector reads "
    "everything from the beginning, into other folders"
)
"""End of a message about a config that does not fit the connector's checkpoints, after "keep the old value": what else
the user can do."""


def _fits_folders(name: str) -> str | None:
    """A check of a connector's name: None if the name is valid, also as part of the names of the connector's folders,
    else the error message."""
    size = len(safe_name(name).encode())
    if size > NAME_BYTES_MAX:
        return (
            f"Too long for the names of folders: it needs {size} bytes there, and the maximum is {NAME_BYTES_MAX}. An "
            "ASCII letter or digit needs 1 byte, most other characters need 3 for each of their bytes in UTF-8"
        )
    return not_blank(name)


@cache
def common() -> ConfigDef:
    """The keys that every connector has, with any source and sink."""
    return ConfigDef(
        (
            ConfigKey(
                name="name",
                type=Type.STRING,
                documentation="Name of the connector, unique among all connectors.",
                importance=Importance.HIGH,
                optional=True,
                validator=_fits_folders,
                group=GROUP,
                order=0,
                width=Width.MEDIUM,
                display_name="Connector name",
            ),
            ConfigKey(
                name="connector.class",
                type=Type.CLASS,
                documentation="The plug-in: its alias or its class.",
                importance=Importance.HIGH,
                validator=one_of((*sources(), *SINKS), "No such connector; there are"),
                group=GROUP,
                order=1,
                width=Width.LONG,
                display_name="Connector class",
            ),
            ConfigKey(
                name="tasks.max",
                type=Type.INT,
                documentation="Maximum number of tasks of the connector.",
                default="1",
                importance=Importance.HIGH,
                validator=between(1, TASKS_MAX),
                group=GROUP,
                order=2,
                width=Width.SHORT,
                display_name="Tasks max",
            ),
            transforms.ALIASES,
            transforms.PREDICATE_ALIASES,
            ConfigKey(
                name="trigger.interval.ms",
                type=Type.LONG,
                documentation="Interval at which a task checks for new input; 0 means without a pause.",
                default="1000",
                validator=at_least(0),
                group=GROUP,
                order=3,
                width=Width.SHORT,
                display_name="Trigger interval (ms)",
            ),
            EXACTLY_ONCE,
            BATCH_TIMEOUT,
            METADATA_MAX_AGE,
            *bad_records.DEFINITION.keys,
        )
    )


def config_errors(
    spark: SparkSession,
    config: Mapping[str, str],
    worker_kafka_properties: Mapping[str, str],
    checkpointed_task_configs: Sequence[Mapping[str, str]],
) -> dict[str, list[str]]:
    """All errors in a connector's config, by key; empty when the config is valid. Keys that are probably typos are
    logged.

    A plug-in validates its keys only if their definition has no error. ``worker_kafka_properties``: see
    :attr:`PrefixedConfig.worker_kafka_properties`. ``checkpointed_task_configs``: the configs of the connector's tasks
    that may have checkpoints; empty for a new connector.

    :raises WorldError: when a source whose number of tasks is fixed cannot be reached, so that its partitions cannot be
        listed.
    """
    for key, probably in likely_typos(config).items():
        logger.warning("The key %s of connector %s is ignored; is %s meant?", key, config.get("name", ""), probably)
    found = common().errors(config) | transforms.config_errors(config)
    if "connector.class" in found:
        return found
    source, sink, missing = _configured_ends(config, worker_kafka_properties)
    found |= missing
    if source is not None:
        found |= source_errors(source, checkpointed_task_configs)
    if source is not None and sink is not None:
        found |= sink_errors(source, checkpointed_task_configs) | unsupported_connect_keys.unsupported_key_errors(
            source, sink
        )
    wrong: dict[str, list[str]] = {}
    if source is not None:
        source, wrong = _checked(spark, source, checkpointed_task_configs)
        if not wrong:
            if "tasks.max" not in found and source.plugin.has_fixed_split:
                found |= _fixed_split_errors(config, source, checkpointed_task_configs)
            found |= _transform_errors(spark, source, sink, found)
        found |= wrong
    if sink is not None:
        wrong = sink.definition.errors(config) | sink.config.unknown_key_errors(
            sink.definition, sink.plugin.free_key_prefixes
        )
        found |= wrong or sink.plugin.validate(spark, sink.config) | _exactly_once_errors(sink)
        if source is not None and not source.plugin.can_wait_for_rows:
            found |= _rotation_errors(source, sink)
    if source is not None and sink is not None:
        found |= _end_combination_errors(spark, config, source, sink, found)
    return found


def _end_combination_errors(
    spark: SparkSession,
    config: Mapping[str, str],
    source: ConfiguredSource,
    sink: ConfiguredSink,
    known: Mapping[str, list[str]],
) -> dict[str, list[str]]:
    """Errors, by key, in the combination of the source and the sink. ``known``: the errors that were found before; some
    checks need a config without errors."""
    found = {} if known else _writes_to_itself(spark, source, sink)
    if not any(key.startswith("errors.") for key in known):
        found |= _tolerance_errors(spark, config, source, sink)
    return found


def _checked(
    spark: SparkSession, source: ConfiguredSource, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> tuple[ConfiguredSource, dict[str, list[str]]]:
    """Check the source's keys. Returns the source, with the inferred values of keys that the config does not set, and
    the errors by key. The values are missing if an error prevents the inference."""
    wrong = source.definition.errors(source.config.config)
    wrong |= source.config.unknown_key_errors(source.definition, source.plugin.free_key_prefixes)
    # Check jars, other keys and the server first: without them Spark would only report that it finds no columns.
    wrong = wrong or source.plugin.validate(spark, source.config)
    if wrong or not source.plugin.keys_to_infer(source.config):
        return source, wrong
    source, wrong = _with_columns(spark, source, checkpointed_task_configs)
    return source, wrong or source.plugin.validate(spark, source.config)


def _with_columns(
    spark: SparkSession, source: ConfiguredSource, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> tuple[ConfiguredSource, dict[str, list[str]]]:
    """Infer the values of the keys that the config does not set (:meth:`Source.keys_to_infer`). Returns the source with
    these values and no error; or ``source`` unchanged and the errors, by key, if the values cannot be inferred."""
    try:
        kept = source.config.with_defaults(_kept_columns(source, checkpointed_task_configs))
        return replace(source, config=kept.with_defaults(source.plugin.infer(spark, kept))), {}
    except ConfigError as error:
        return source, error.listed
    except (WorldError, PySparkException, Py4JError, OSError) as error:
        key = source.config.key(source.plugin.keys_to_infer(source.config)[0])
        return source, {key: [f"No columns can be inferred: {message_of(error)}. Set {key}, or try again"]}


def _kept_columns(
    source: ConfiguredSource, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> Mapping[str, str]:
    """The inferred values of the present checkpoint generation that the next generation keeps, by key: all of them if
    the source still has one of the partitions that the tasks read, else none. This is the rule of
    :meth:`coterie.spark.generations.updater.GenerationRequest.inferred`. Columns that a former config set are not kept.

    :raises ConfigError, WorldError: see :meth:`Source.parts`.
    """
    inferred: Mapping[str, str] = (
        json.loads(checkpointed_task_configs[0].get(INFERRED, "{}")) if checkpointed_task_configs else {}
    )
    before = {part for task in checkpointed_task_configs for part in json.loads(task.get("task.parts", "[]"))}
    if not inferred or before.isdisjoint(source.plugin.parts(source.config)):
        return {}
    return {name: inferred[name] for name in source.plugin.keys_to_infer(source.config) if name in inferred}


def _tolerance_errors(
    spark: SparkSession, config: Mapping[str, str], source: ConfiguredSource, sink: ConfiguredSink
) -> dict[str, list[str]]:
    """Errors, by key, in the keys for bad records (``errors.*``) that depend on the source and the sink."""
    try:
        tolerance = bad_records.error_tolerance_of(config)
    except ConfigError as error:
        return error.listed
    if tolerance is None:
        return {}
    key = bad_records.TOLERANCE
    if not source.plugin.reports_bad_records:
        name = source.plugin.__name__
        return {key: [f"{key}=all: {name} does not report bad records; KafkaSource and FileSource do. Set none"]}
    holds = isinstance(tolerance.dead_letter_destination, sink.plugin.atomic_dead_letters)
    # The dead letter queue reads producer.override.* with the prefix `sink.` and without it.
    writer = sink.config if holds else replace(sink.config, is_prefix_optional=True)
    if (
        isinstance(tolerance.dead_letter_destination, bad_records.DeadLetterTopic)
        and _may_share_cluster(source.config, writer)
        and _reads_topic(source, tolerance.dead_letter_destination.topic)
    ):
        topic = tolerance.dead_letter_destination.topic
        return {bad_records.TOPIC: [f"Topic {topic} is one of the topics that the connector reads; name another"]}
    if isinstance(tolerance.dead_letter_destination, bad_records.DeadLetterFolder) and _overlaps_sink_folder(
        sink, tolerance.dead_letter_destination.path
    ):
        path = tolerance.dead_letter_destination.path
        return {
            bad_records.PATH: [f"Readers of the sink's folder would read the bad records in {path}; name another one"]
        }
    if not holds:
        try:
            found = queue.destination_errors(
                spark, tolerance.dead_letter_destination, config, source.config.worker_kafka_properties
            )
        except ConfigError as error:
            found = error.listed
        if found:
            return found
    if not holds and common().read(config, EXACTLY_ONCE.name, str) == "required":
        sentence = (
            f"{sink.plugin.__name__} does not commit bad records together with good ones, so a record may be lost or "
            f"duplicated if an expression is not deterministic; set {EXACTLY_ONCE.name}=requested to accept that "
            "(docs/guarantees.md)"
        )
        return {EXACTLY_ONCE.name: [f"Invalid value required for configuration {EXACTLY_ONCE.name}: {sentence}"]}
    return {}


def _overlaps_sink_folder(sink: ConfiguredSink, folder: Path) -> bool:
    """Whether the sink has a key ``path`` and ``folder`` is the folder at this path, is in it, or contains it."""
    if (path := sink.config.config.get(sink.config.key("path"))) is None:
        return False
    there, bad = as_path(path).resolve(), folder.resolve()
    return there == bad or there in bad.parents or bad in there.parents


def _reads_topic(source: ConfiguredSource, topic: str) -> bool:
    """Whether the keys ``topics`` or ``topics.regex`` of the source name ``topic``. False for an expression that only
    Java accepts."""
    config = source.config.config
    pattern = config.get(source.config.key("topics.regex"), "")
    try:
        matches = bool(pattern) and re.fullmatch(pattern, topic) is not None
    except re.error:  # Java accepts expressions that Python does not.
        matches = False
    return matches or topic in as_list(config.get(source.config.key("topics"), ""))


def _writes_to_itself(spark: SparkSession, source: ConfiguredSource, sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, if a connector from Kafka to Kafka would write to a topic that it reads, and so read its own
    records without end. Empty when it would not, and when that cannot be decided from the config."""
    if source.plugin is not KafkaSource or sink.plugin is not KafkaSink:
        return {}
    if not _may_share_cluster(source.config, sink.config):
        return {}
    key, topic = sink.config.key("topic"), sink.config.config.get(sink.config.key("topic"))
    reads = " or ".join(
        name for name in map(source.config.key, ("topics", "topics.regex")) if name in sink.config.config
    )
    if topic is not None:
        if not _reads_topic(source, topic.strip()):
            return {}
        sentence = f"{reads} names this topic, on the same cluster. Name another one, or leave it out of {reads}"
        return {key: [f"Invalid value {topic} for configuration {key}: {_ENDLESS}: {sentence}"]}
    if not _keeps_topics(spark, source):
        return {}
    return {
        key: [
            f"Missing configuration {key}: {_ENDLESS}: without {key} each record is written to the topic from which it "
            f"was read by {reads}, on the same cluster. Set {key}, or route the records by a transform such as "
            "RegexRouter"
        ]
    }


_ENDLESS = "the connector would read its own records again, without end"
"""The reason in the messages of :func:`_writes_to_itself`."""


def _may_share_cluster(source: PrefixedConfig, sink: PrefixedConfig) -> bool:
    """Whether a Kafka source and a Kafka sink have a common bootstrap address."""
    return not _servers(source, kafka.OVERRIDE).isdisjoint(_servers(sink, kafka_target.OVERRIDE))


def _servers(config: PrefixedConfig, override: str) -> set[str]:
    """The bootstrap addresses of an end: those of its key with the prefix ``override``, else those of the worker."""
    overrides = config.values_under(override)
    return set(as_list(overrides.get(kafka.SERVERS, config.worker_kafka_properties.get(kafka.SERVERS, ""))))


def _keeps_topics(spark: SparkSession, source: ConfiguredSource) -> bool:
    """Whether a Kafka sink without a key for the topic writes each record to the topic from which the Kafka source read
    the record: no transform changes the column from which the sink takes the topic."""
    share = TaskInput(task_number=0, task_count=1, parts=(), split_function=source.plugin.split_function)
    own = spark.newSession()
    reader = source.plugin.of(source.config, share)
    assert isinstance(reader, KafkaSource)
    rows = own.createDataFrame([], reader.schema(own))
    after = transforms.apply_transforms(rows, transforms.parse_transforms(source.config.config))
    name = "topic" if "topic" in after.columns else MetadataColumn.TOPIC.value
    if name == "topic" and name not in reader.columns:
        return False  # The topic is a column of the record's value.
    return column_ids(rows)[name] == column_ids(after)[name]


def _configured_ends(
    config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]
) -> tuple[ConfiguredSource | None, ConfiguredSink | None, dict[str, list[str]]]:
    """The source, the sink, and errors by key. The source or the sink is None if ``config`` does not name it
    correctly; the errors then contain the reason."""
    found: dict[str, list[str]] = {}
    source, sink = None, None
    try:
        source = configured_source(config, worker_kafka_properties)
    except ConfigError as error:
        found |= error.listed
    try:
        sink = configured_sink(config, worker_kafka_properties)
    except ConfigError as error:
        found |= error.listed
    return source, sink, found


def likely_typos(config: Mapping[str, str]) -> Mapping[str, str]:
    """The keys of ``config`` that are probably typos, each with the key that is probably meant: ``sorce.path`` with
    ``source.path``.

    Coterie ignores keys without a known prefix. Such a key is probably a typo if its first word is one edit away from a
    known prefix.
    """
    firsts = {key: key.partition(".")[0] for key in config if "." in key}
    return {
        key: prefix + key.removeprefix(first)
        for key, first in firsts.items()
        for prefix in _PREFIXES
        if first not in _PREFIXES and _is_one_edit(first, prefix)
    }


def _is_one_edit(word: str, other: str) -> bool:
    """Whether ``word`` becomes ``other`` by changing, removing or adding one letter, or by swapping two neighbours."""
    same = next((at for at, pair in enumerate(zip(word, other, strict=False)) if pair[0] != pair[1]), None)
    if same is None:  # One word is a prefix of the other.
        return abs(len(word) - len(other)) == 1
    rest, other_rest = word[same:], other[same:]
    return (
        rest[1:] == other_rest[1:]
        or rest == other_rest[1:]
        or rest[1:] == other_rest
        or (rest[:2] == other_rest[1::-1] and rest[2:] == other_rest[2:])
    )


def _exactly_once_errors(sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, if ``exactly.once.support`` is ``required`` and the sink with its config does not write rows
    exactly once."""
    required = common().read(sink.config.config, EXACTLY_ONCE.name, str) == "required"
    if not required or sink.plugin.is_exactly_once(sink.config):
        return {}
    sentence = (
        f"{sink.plugin.__name__} with these settings writes each row at least once; "
        f"set {EXACTLY_ONCE.name}=requested to accept that, or choose another sink (docs/guarantees.md)"
    )
    return {EXACTLY_ONCE.name: [f"Invalid value required for configuration {EXACTLY_ONCE.name}: {sentence}"]}


def _rotation_errors(source: ConfiguredSource, sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, for each set rotation key of the sink. ``source`` is one that cannot wait for rows, so that
    these keys have no effect."""
    sentence = (
        f"{source.plugin.__name__} does not report how many rows are waiting, so a batch cannot wait for more rows. "
        "Remove the key, and set trigger.interval.ms to have fewer and larger files"
    )
    known = {key.name for key in sink.definition.keys}
    found = [key for key in rotation.keys(sink.config) if key in known and key in sink.config.config]
    return {key: [f"Configuration {key} has no effect: {sentence}"] for key in found}


def parts_of_tasks(source: ConfiguredSource) -> Sequence[Sequence[str]]:
    """The source partitions that each task would read after a split now, by task number.

    :raises ConfigError: when a value is not valid; the error names the key.
    :raises WorldError: when the source cannot be reached.
    """
    tasks_max = common().read(source.config.config, "tasks.max", int)
    return source.plugin.split(source.plugin.parts(source.config), tasks_max)


def source_errors(
    source: ConfiguredSource, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error, by key, if the tasks with the configs ``checkpointed_task_configs`` have another class of source than
    ``source``, or another value of its key ``format``.

    Their checkpoints contain positions of the former source, and Spark cannot resume at these positions in another
    source. ``checkpointed_task_configs`` are the configs of the connector's tasks that may have checkpoints.
    """
    if not checkpointed_task_configs:
        return {}
    try:
        before = configured_source(checkpointed_task_configs[0], source.config.worker_kafka_properties, "task.class")
    except ConfigError:
        return {}  # Another runtime has created these task configs: the tasks have never run on Spark.
    if before.plugin is not source.plugin:
        class_key = "connector.class" if source.config.is_prefix_optional else "source.class"
        return _other_source(class_key, source, before.plugin.__name__)
    key = source.config.key("format")
    old, new = (end.config.config.get(end.config.key("format"), "").strip() for end in (before, source))
    if old == new or all(known.name != key for known in source.definition.keys):
        return {}
    return _other_source(key, source, old)


def sink_errors(
    source: ConfiguredSource, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error, by key, for each key of the sink whose value identifies another place than in
    ``checkpointed_task_configs``, the configs of the connector's tasks that may have checkpoints. Empty if the source's
    positions can be moved to new checkpoints: only then the sink may change."""
    if not checkpointed_task_configs or not isinstance(source.plugin.position_store, NoPositions):
        return {}
    config, worker = source.config.config, source.config.worker_kafka_properties
    try:
        before, now = sink_identity(checkpointed_task_configs[0], worker), sink_identity(config, worker)
    except ConfigError:
        return {}  # The check of the definitions reports the error.
    changed = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    if "class" in changed:
        keys = {next(key for key in ("sink.class", "sink.format", "connector.class") if key in config)}
    else:
        end = configured_sink(config, worker).config
        keys = {end.key(name) for name in changed}
    sentence = (
        f"the connector has checkpoints, and a connector of {source.plugin.__name__} keeps its sink. Set the former "
        f"value again; {_ALTERNATIVES}"
    )
    return {key: [f"The value of configuration {key} cannot be changed: {sentence}"] for key in sorted(keys)}


def _other_source(key: str, source: ConfiguredSource, before: str) -> dict[str, list[str]]:
    """The error, by ``key``, that the connector's checkpoints were made with ``before``, a class or a format."""
    sentence = (
        f"Invalid value {source.config.config[key]} for configuration {key}: the connector has checkpoints, made with "
        f"{before}, and another source cannot resume from them. Keep {before}; {_ALTERNATIVES}"
    )
    return {key: [sentence]}


def _fixed_split_errors(
    config: Mapping[str, str], source: ConfiguredSource, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """The errors, by key, of :func:`split_errors`, or of a value with which the source's partitions cannot be listed.

    :raises WorldError: when the source cannot be reached.
    """
    try:
        tasks = parts_of_tasks(source)
    except ConfigError as error:
        return error.listed
    return split_errors(config, len(tasks), checkpointed_task_configs)


def split_errors(
    config: Mapping[str, str], tasks: int, checkpointed_task_configs: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error, by key, if the number of tasks changes. ``tasks`` is the number with the new ``config``; the former
    number is in ``checkpointed_task_configs``, the configs of the connector's tasks that may have checkpoints. For a
    source whose split is fixed (:attr:`Source.has_fixed_split`).

    A task's checkpoint records which part of the task's own input was read. With another number of tasks each task has
    other input, and keeps its checkpoint or starts without one: some rows are then read by no task, others by two
    tasks.
    """
    if not checkpointed_task_configs or (before := checkpointed_task_configs[0].get("task.count")) in (
        None,
        str(tasks),
    ):
        return {}
    old, new = (common().value(one, "tasks.max") for one in (checkpointed_task_configs[0], config))
    return {
        "tasks.max": [
            f"Invalid value {new} for configuration tasks.max: the connector has checkpoints of {before} task(s), made "
            f"with tasks.max={old}; {tasks} task(s) with these checkpoints would lose rows and duplicate others. Keep "
            f"tasks.max={old}; {_ALTERNATIVES}"
        ]
    }


def _transform_errors(
    spark: SparkSession, source: ConfiguredSource, sink: ConfiguredSink | None, found: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Errors, by key, of the transforms with the source's columns, and of the sink with the resulting columns. Spark
    resolves both in the same way as for a task's query. Empty if ``found``, the errors so far, has an error in the
    transforms' or predicates' keys."""
    if any(key.startswith(("transforms", "predicates")) for key in found):
        return {}
    try:
        share = TaskInput(task_number=0, task_count=1, parts=(), split_function=source.plugin.split_function)
        # A separate session, as for each task: transforms may create views in it.
        own = spark.newSession()
        schema = source.plugin.of(source.config, share).schema(own)
        parsed = transforms.parse_transforms(source.config.config)
        to_sink = None if sink is None else sink.plugin.of(sink.config)
        tolerance = source.config.config.get(bad_records.TOLERANCE, "none").strip()
        if tolerance == "all" and source.plugin.reports_bad_records:
            hidden = [StructField(ORIGINAL, ORIGINAL_RECORD_TYPE), StructField(ERROR, ERROR_TYPE)]
            apply_tolerant(own.createDataFrame([], StructType([*schema.fields, *hidden])), parsed, to_sink)
        else:
            rows = transforms.apply_transforms(own.createDataFrame([], schema), parsed)
            if to_sink is not None:
                to_sink.to_sink_columns(rows)
    except ConfigError as error:
        return error.listed
    return {}
