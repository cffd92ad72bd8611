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
    Definition,
    Importance,
    Key,
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
from coterie.spark import connect_keys, rotation, transforms
from coterie.spark.bad_records import keys as bad_records
from coterie.spark.bad_records import queue
from coterie.spark.bad_records.guarded import guarded
from coterie.spark.bad_records.hidden import ERROR, FAULT, ORIGINAL, RECORD
from coterie.spark.checkpoint import NAME_BYTES_MAX, safe_name
from coterie.spark.columns import column_ids
from coterie.spark.end_config import EndConfig
from coterie.spark.failures import sentence_of
from coterie.spark.generations.stores import NoPositions
from coterie.spark.paths import as_path
from coterie.spark.patience import BATCH_TIMEOUT, PARTS_AGE
from coterie.spark.plugins import SINKS, SinkEnd, SourceEnd, sink_end, source_end, sources, written_to
from coterie.spark.record import Part
from coterie.spark.seams import Share
from coterie.spark.sinks import kafka_target
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sources import kafka
from coterie.spark.sources.kafka import KafkaSource

logger = logging.getLogger(__name__)

GROUP = "Common"
INFERRED = "task.inferred"
"""Key of a task's config: its checkpoint generation's values for source keys that the config omits, as JSON by name."""
_PREFIXES = ("source", "sink", "transforms", "predicates")
EXACTLY_ONCE = Key(
    name="exactly.once.support",
    type=Type.STRING,
    documentation="With required, a connector whose sink may write a row twice is rejected.",
    default="requested",
    check=one_of(("requested", "required")),
    group=GROUP,
    order=4,
    width=Width.SHORT,
    display_name="Exactly once support",
)

_OTHERWISE = (
    "or create a connector under another name; or delete this one and create it again. A new connector reads "
    "everything from the beginning, into other folders"
)
"""The alternatives to keeping the old value, for a config that does not match a connector's checkpoints."""


def _fits_folders(name: str) -> str | None:
    """A check of a connector's name: the folders of its checkpoints and files contain the name."""
    size = len(safe_name(name).encode())
    if size > NAME_BYTES_MAX:
        return (
            f"Too long for the names of folders: it needs {size} bytes there, and the maximum is {NAME_BYTES_MAX}. An "
            "ASCII letter or digit needs 1 byte, most other characters need 3 for each of their bytes in UTF-8"
        )
    return not_blank(name)


@cache
def common() -> Definition:
    """The keys that every connector has, with any source and sink."""
    return Definition(
        (
            Key(
                name="name",
                type=Type.STRING,
                documentation="Name of the connector, unique among all connectors.",
                importance=Importance.HIGH,
                optional=True,
                check=_fits_folders,
                group=GROUP,
                order=0,
                width=Width.MEDIUM,
                display_name="Connector name",
            ),
            Key(
                name="connector.class",
                type=Type.CLASS,
                documentation="The plug-in: its alias or its class.",
                importance=Importance.HIGH,
                check=one_of((*sources(), *SINKS), "No such connector; there are"),
                group=GROUP,
                order=1,
                width=Width.LONG,
                display_name="Connector class",
            ),
            Key(
                name="tasks.max",
                type=Type.INT,
                documentation="Maximum number of tasks of the connector.",
                default="1",
                importance=Importance.HIGH,
                check=between(1, TASKS_MAX),
                group=GROUP,
                order=2,
                width=Width.SHORT,
                display_name="Tasks max",
            ),
            transforms.ALIASES,
            transforms.PREDICATE_ALIASES,
            Key(
                name="trigger.interval.ms",
                type=Type.LONG,
                documentation="Interval at which a task checks for new input; 0 means without a pause.",
                default="1000",
                check=at_least(0),
                group=GROUP,
                order=3,
                width=Width.SHORT,
                display_name="Trigger interval (ms)",
            ),
            EXACTLY_ONCE,
            BATCH_TIMEOUT,
            PARTS_AGE,
            *bad_records.DEFINITION.keys,
        )
    )


def errors_of(
    spark: SparkSession,
    config: Mapping[str, str],
    worker: Mapping[str, str],
    checkpointed: Sequence[Mapping[str, str]],
) -> dict[str, list[str]]:
    """All errors by key: first those of the definitions, then those of the plug-ins for keys without an error.

    ``worker``: see :attr:`EndConfig.worker`. ``checkpointed`` are the configs of the connector's tasks that may have
    checkpoints.
    """
    for key, probably in slips(config).items():
        logger.warning("The key %s of connector %s is ignored; is %s meant?", key, config.get("name", ""), probably)
    found = common().errors(config) | transforms.errors_of(config)
    if "connector.class" in found:
        return found
    source, sink, missing = _ends(config, worker)
    found |= missing
    if source is not None:
        found |= source_errors(source, checkpointed)
    if source is not None and sink is not None:
        found |= sink_errors(source, checkpointed) | connect_keys.errors_of(source, sink)
    wrong: dict[str, list[str]] = {}
    if source is not None:
        source, wrong = _checked(spark, source, checkpointed)
        if not wrong:
            if "tasks.max" not in found and source.plugin.has_fixed_split:
                found |= split_errors(config, len(parts_of_tasks(source)), checkpointed)
            found |= _unfit_transforms(spark, source, sink, found)
        found |= wrong
    if sink is not None:
        wrong = sink.definition.errors(config) | sink.config.unknown(sink.definition, sink.plugin.free_prefixes)
        found |= wrong or sink.plugin.validate(spark, sink.config) | _weaker(sink)
        if source is not None and not source.plugin.can_rotate:
            found |= _without_rotation(source, sink)
    if source is not None and sink is not None:
        found |= _unfit_ends(spark, config, source, sink, found)
    return found


def _unfit_ends(
    spark: SparkSession,
    config: Mapping[str, str],
    source: SourceEnd,
    sink: SinkEnd,
    known: Mapping[str, list[str]],
) -> dict[str, list[str]]:
    """Errors in the combination of the source and the sink, in addition to the ``known`` ones."""
    found = {} if known else _writes_to_itself(spark, source, sink)
    if not any(key.startswith("errors.") for key in known):
        found |= _unfit_tolerance(spark, config, source, sink)
    return found


def _checked(
    spark: SparkSession, source: SourceEnd, checkpointed: Sequence[Mapping[str, str]]
) -> tuple[SourceEnd, dict[str, list[str]]]:
    """The source with the values that its tasks would get for keys that the config omits; and errors of its keys."""
    wrong = source.definition.errors(source.config.config)
    wrong |= source.config.unknown(source.definition, source.plugin.free_prefixes)
    # Check jars, other keys and the server first: without them Spark would only report that it finds no columns.
    wrong = wrong or source.plugin.validate(spark, source.config)
    if wrong or not source.plugin.open_keys(source.config):
        return source, wrong
    source, wrong = _with_columns(spark, source, checkpointed)
    return source, wrong or source.plugin.validate(spark, source.config)


def _with_columns(
    spark: SparkSession, source: SourceEnd, checkpointed: Sequence[Mapping[str, str]]
) -> tuple[SourceEnd, dict[str, list[str]]]:
    """The source with the values that its tasks would get for the keys that the config omits; or the errors, by key, if
    the values cannot be inferred."""
    try:
        kept = source.config.filled(_kept_columns(source, checkpointed))
        return replace(source, config=kept.filled(source.plugin.infer(spark, kept))), {}
    except ConfigError as error:
        return source, error.listed
    except (WorldError, PySparkException, Py4JError, OSError) as error:
        key = source.config.key(source.plugin.open_keys(source.config)[0])
        return source, {key: [f"No columns can be inferred: {sentence_of(error)}. Set {key}, or try again"]}


def _kept_columns(source: SourceEnd, checkpointed: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The columns inferred for an earlier checkpoint generation that the next one keeps, by the rule of
    :meth:`coterie.spark.generations.owner.Wanted.inferred`. Columns that a former config set are not kept.

    :raises ConfigError, WorldError: see :meth:`Source.parts`.
    """
    inferred: Mapping[str, str] = json.loads(checkpointed[0].get(INFERRED, "{}")) if checkpointed else {}
    before = {part for task in checkpointed for part in json.loads(task.get("task.parts", "[]"))}
    if not inferred or before.isdisjoint(source.plugin.parts(source.config)):
        return {}
    return {name: inferred[name] for name in source.plugin.open_keys(source.config) if name in inferred}


def _unfit_tolerance(
    spark: SparkSession, config: Mapping[str, str], source: SourceEnd, sink: SinkEnd
) -> dict[str, list[str]]:
    """Errors in the keys for bad records that depend on the source and the sink."""
    try:
        tolerance = bad_records.tolerance_of(config)
    except ConfigError as error:
        return error.listed
    if tolerance is None:
        return {}
    key = bad_records.TOLERANCE
    if not source.plugin.sifts_bad_records:
        name = source.plugin.__name__
        return {key: [f"{key}=all: {name} does not report bad records; KafkaSource and FileSource do. Set none"]}
    holds = isinstance(tolerance.letters, sink.plugin.holds)
    # The dead letter queue reads producer.override.* with the prefix `sink.` and without it.
    writer = sink.config if holds else replace(sink.config, is_prefix_optional=True)
    if (
        isinstance(tolerance.letters, bad_records.ToTopic)
        and _may_share_cluster(source.config, writer)
        and _reads(source, tolerance.letters.topic)
    ):
        topic = tolerance.letters.topic
        return {bad_records.TOPIC: [f"Topic {topic} is one of the topics that the connector reads; name another"]}
    if isinstance(tolerance.letters, bad_records.ToFolder) and _shows(sink, tolerance.letters.path):
        path = tolerance.letters.path
        return {
            bad_records.PATH: [f"Readers of the sink's folder would read the bad records in {path}; name another one"]
        }
    if not holds:
        try:
            found = queue.errors_of(spark, tolerance.letters, config, source.config.worker)
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


def _shows(sink: SinkEnd, folder: Path) -> bool:
    """Whether the sink writes files, and ``folder`` is the sink's folder, is in it, or contains it."""
    if (path := sink.config.config.get(sink.config.key("path"))) is None:
        return False
    there, bad = as_path(path).resolve(), folder.resolve()
    return there == bad or there in bad.parents or bad in there.parents


def _reads(source: SourceEnd, topic: str) -> bool:
    config = source.config.config
    pattern = config.get(source.config.key("topics.regex"), "")
    try:
        matches = bool(pattern) and re.fullmatch(pattern, topic) is not None
    except re.error:  # Java accepts expressions that Python does not.
        matches = False
    return matches or topic in as_list(config.get(source.config.key("topics"), ""))


def _writes_to_itself(spark: SparkSession, source: SourceEnd, sink: SinkEnd) -> dict[str, list[str]]:
    """An error if a connector would write to a topic that it reads, and so read its own records without end."""
    if source.plugin is not KafkaSource or sink.plugin is not KafkaSink:
        return {}
    if not _may_share_cluster(source.config, sink.config):
        return {}
    key, topic = sink.config.key("topic"), sink.config.config.get(sink.config.key("topic"))
    reads = " or ".join(
        name for name in map(source.config.key, ("topics", "topics.regex")) if name in sink.config.config
    )
    if topic is not None:
        if not _reads(source, topic.strip()):
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


def _may_share_cluster(source: EndConfig, sink: EndConfig) -> bool:
    """Whether a Kafka source and a Kafka sink have a common bootstrap address."""
    return not _servers(source, kafka.OVERRIDE).isdisjoint(_servers(sink, kafka_target.OVERRIDE))


def _servers(config: EndConfig, override: str) -> set[str]:
    overrides = config.under(override)
    return set(as_list(overrides.get(kafka.SERVERS, config.worker.get(kafka.SERVERS, ""))))


def _keeps_topics(spark: SparkSession, source: SourceEnd) -> bool:
    """Whether no transform changes the column from which the Kafka sink takes a record's topic."""
    share = Share(index=0, count=1, parts=(), function=source.plugin.split_function)
    own = spark.newSession()
    reader = source.plugin.of(source.config, share)
    assert isinstance(reader, KafkaSource)
    rows = own.createDataFrame([], reader.schema(own))
    after = transforms.transform(rows, transforms.parsed(source.config.config))
    name = "topic" if "topic" in after.columns else Part.TOPIC.value
    if name == "topic" and name not in reader.columns:
        return False  # The topic is a column of the record's value.
    return column_ids(rows)[name] == column_ids(after)[name]


def _ends(
    config: Mapping[str, str], worker: Mapping[str, str]
) -> tuple[SourceEnd | None, SinkEnd | None, dict[str, list[str]]]:
    """The source and the sink, and errors by key; an end is None if the config does not name it correctly."""
    found: dict[str, list[str]] = {}
    source, sink = None, None
    try:
        source = source_end(config, worker)
    except ConfigError as error:
        found |= error.listed
    try:
        sink = sink_end(config, worker)
    except ConfigError as error:
        found |= error.listed
    return source, sink, found


def slips(config: Mapping[str, str]) -> Mapping[str, str]:
    """Ignored keys that are probably typos, with the key that is probably meant: ``sorce.path`` and ``source.path``.

    Keys without a known prefix are ignored. A typo is a key whose first word is one edit away from a known prefix.
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


def _weaker(sink: SinkEnd) -> dict[str, list[str]]:
    """An error if exactly once is required and the sink does not guarantee it."""
    required = common().read(sink.config.config, EXACTLY_ONCE.name, str) == "required"
    if not required or sink.plugin.is_exactly_once(sink.config):
        return {}
    sentence = (
        f"{sink.plugin.__name__} with these settings writes each row at least once; "
        f"set {EXACTLY_ONCE.name}=requested to accept that, or choose another sink (docs/guarantees.md)"
    )
    return {EXACTLY_ONCE.name: [f"Invalid value required for configuration {EXACTLY_ONCE.name}: {sentence}"]}


def _without_rotation(source: SourceEnd, sink: SinkEnd) -> dict[str, list[str]]:
    """An error for each rotation key that is set although it has no effect with this source."""
    sentence = (
        f"{source.plugin.__name__} does not report how many rows are waiting, so a batch cannot wait for more rows. "
        "Remove the key, and set trigger.interval.ms to have fewer and larger files"
    )
    known = {key.name for key in sink.definition.keys}
    found = [key for key in rotation.keys(sink.config) if key in known and key in sink.config.config]
    return {key: [f"Configuration {key} has no effect: {sentence}"] for key in found}


def parts_of_tasks(source: SourceEnd) -> Sequence[Sequence[str]]:
    """The source partitions that each task reads.

    :raises ConfigError: when a value is not valid.
    :raises WorldError: when the source cannot be reached.
    """
    tasks_max = common().read(source.config.config, "tasks.max", int)
    return source.plugin.split(source.plugin.parts(source.config), tasks_max)


def source_errors(source: SourceEnd, checkpointed: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """An error if the ``checkpointed`` tasks have read another source, or files of another format.

    Their checkpoints contain positions of that source, and Spark cannot resume at these positions in another source.
    """
    if not checkpointed:
        return {}
    try:
        before = source_end(checkpointed[0], source.config.worker, "task.class")
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


def sink_errors(source: SourceEnd, checkpointed: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """An error for each changed key of the sink if the source's positions cannot be moved to new checkpoints, and the
    ``checkpointed`` tasks may have checkpoints: another sink needs new checkpoints."""
    if not checkpointed or not isinstance(source.plugin.store, NoPositions):
        return {}
    config, worker = source.config.config, source.config.worker
    try:
        before, now = written_to(checkpointed[0], worker), written_to(config, worker)
    except ConfigError:
        return {}  # The check of the definitions reports the error.
    changed = {key for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    if "class" in changed:
        keys = {next(key for key in ("sink.class", "sink.format", "connector.class") if key in config)}
    else:
        end = sink_end(config, worker).config
        keys = {end.key(name) for name in changed}
    sentence = (
        f"the connector has checkpoints, and a connector of {source.plugin.__name__} keeps its sink. Set the former "
        f"value again; {_OTHERWISE}"
    )
    return {key: [f"The value of configuration {key} cannot be changed: {sentence}"] for key in sorted(keys)}


def _other_source(key: str, source: SourceEnd, before: str) -> dict[str, list[str]]:
    sentence = (
        f"Invalid value {source.config.config[key]} for configuration {key}: the connector has checkpoints, made with "
        f"{before}, and another source cannot resume from them. Keep {before}; {_OTHERWISE}"
    )
    return {key: [sentence]}


def split_errors(
    config: Mapping[str, str], tasks: int, checkpointed: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error if a ``config`` with ``tasks`` tasks has another number of tasks than the ``checkpointed`` tasks.

    A task's checkpoint records the read part of the task's own input. With another number of tasks each task has other
    input, and keeps its checkpoint or starts without one: some rows are then read by no task, others by two tasks.
    """
    if not checkpointed or (before := checkpointed[0].get("task.count")) in (None, str(tasks)):
        return {}
    old, new = (common().value(one, "tasks.max") for one in (checkpointed[0], config))
    return {
        "tasks.max": [
            f"Invalid value {new} for configuration tasks.max: the connector has checkpoints of {before} task(s), made "
            f"with tasks.max={old}; {tasks} task(s) with these checkpoints would lose rows and duplicate others. Keep "
            f"tasks.max={old}; {_OTHERWISE}"
        ]
    }


def _unfit_transforms(
    spark: SparkSession, source: SourceEnd, sink: SinkEnd | None, found: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Errors, by key, of the transforms with the source's columns, and of the sink with the resulting columns. Spark
    resolves both in the same way as for the task's query."""
    if any(key.startswith(("transforms", "predicates")) for key in found):
        return {}
    try:
        share = Share(index=0, count=1, parts=(), function=source.plugin.split_function)
        # A separate session, as for each task: transforms may create views in it.
        own = spark.newSession()
        schema = source.plugin.of(source.config, share).schema(own)
        parsed = transforms.parsed(source.config.config)
        to_sink = None if sink is None else sink.plugin.of(sink.config)
        tolerance = source.config.config.get(bad_records.TOLERANCE, "none").strip()
        if tolerance == "all" and source.plugin.sifts_bad_records:
            hidden = [StructField(ORIGINAL, RECORD), StructField(ERROR, FAULT)]
            guarded(own.createDataFrame([], StructType([*schema.fields, *hidden])), parsed, to_sink)
        else:
            rows = transforms.transform(own.createDataFrame([], schema), parsed)
            if to_sink is not None:
                to_sink.shape(rows)
    except ConfigError as error:
        return error.listed
    return {}
