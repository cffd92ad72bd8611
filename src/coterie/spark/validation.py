"""Validates a connector's config, with errors by key."""

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from coterie.config.definition import (
    split_list,
)
from coterie.config.infos import ConfigInfos, make_config_infos
from coterie.config.secrets import hide_secrets
from coterie.nouns.errors import ConfigError, WorldError, invalid_value_message
from coterie.spark import rotation, transforms, unsupported_connect_keys
from coterie.spark.bad_records import keys as bad_records
from coterie.spark.bad_records import queue
from coterie.spark.bad_records.error_columns import ERROR_COLUMN, ERROR_TYPE, ORIGINAL_COLUMN, ORIGINAL_RECORD_TYPE
from coterie.spark.bad_records.tolerant_transforms import apply_transforms_tolerantly
from coterie.spark.columns import column_id_by_name
from coterie.spark.connector_keys import EXACTLY_ONCE_KEY, common_connector_definition, connector_definition
from coterie.spark.failures import error_message
from coterie.spark.folder_overlap import overlaps_sink_folder, overlaps_source_folder, own_input_errors
from coterie.spark.generations.split import Split
from coterie.spark.generations.stores import UnmovablePositionStore
from coterie.spark.jars import missing_jars_message
from coterie.spark.plugin_list import plugin_version_errors, wrong_plugin_type_errors
from coterie.spark.plugins import (
    ConfiguredSink,
    ConfiguredSource,
    configured_sink,
    configured_source,
    sink_identity,
)
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn
from coterie.spark.redaction import new_redacting_session
from coterie.spark.seams import HasStartPositions, TaskInput
from coterie.spark.sessions import new_session_without_java_functions
from coterie.spark.sinks import kafka_target
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sources import kafka
from coterie.spark.sources.kafka import KafkaSource
from coterie.spark.sources.kafka_client import kafka_jvm, mistyped_property_errors

logger = logging.getLogger(__name__)

GENERATION_KEY = "generation"
"""Key of a task's config: the number and id of the only checkpoint generation in which the task may start
(:class:`coterie.spark.generations.layout.GenerationId`)."""
INFERRED_VALUES_KEY = "task.inferred"
"""Key of a task's config: the values that its checkpoint generation inferred for source keys that the connector's
config does not set, as a JSON object by name without the prefix."""
_FIRST_WORDS = ("source", "sink", "transforms", "predicates")
"""The first words of a connector's keys that have a prefix: ``source.path``."""
_OTHER_WAYS = (
    "or create a connector under another name; or delete this one and create it again. A new connector reads "
    "everything from the beginning, into other folders"
)
"""End of a message about a config that does not fit the connector's checkpoints, after "keep the old value": what else
the user can do."""


def validate_config(
    spark: SparkSession,
    config_with_references: Mapping[str, str],
    resolve: Callable[[Mapping[str, str]], Mapping[str, str]],
    worker_kafka_properties: Mapping[str, str],
    configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
) -> ConfigInfos:
    """The definitions, values and errors of all keys of a connector with ``config_with_references``.

    ``resolve`` returns a config with its references to secrets resolved. The result has the references, not the
    secrets. If a reference cannot be resolved, only that is an error. If properties of a Kafka client have values of
    another type, only these are errors. The other parameters, and the exceptions, are those of :func:`config_errors`.
    """
    name = config_with_references.get("connector.class", "")
    try:
        config = resolve(config_with_references)
    except ConfigError as error:
        definition = connector_definition(
            config_with_references, *_source_sink_and_config_errors(config_with_references, worker_kafka_properties)[:2]
        )
        return make_config_infos(name, definition, config_with_references, error.errors_as_new_lists)
    spark = new_redacting_session(spark, config_with_references, config)
    source, sink, _ = _source_sink_and_config_errors(config, worker_kafka_properties)
    if mistyped := _mistyped_client_property_errors(spark, source, sink):
        shown = _errors_with_secrets_hidden(mistyped, config_with_references, config)
        infos = make_config_infos(
            name,
            connector_definition(config, source, sink),
            config,
            shown,
            config_with_references=config_with_references,
        )
        return replace(infos, client_property_type_error=next(iter(shown.values()))[0])
    try:
        errors = config_errors(spark, config, worker_kafka_properties, configs_of_checkpointed_tasks)
    except ConfigError as error:
        errors = error.errors_as_new_lists
    definition = connector_definition(config, source, sink)
    errors |= plugin_version_errors(config) | wrong_plugin_type_errors(definition, config)
    for key, messages in definition.errors(config).items():
        errors.setdefault(key, messages)
    shown_errors = _errors_with_secrets_hidden(errors, config_with_references, config)
    return make_config_infos(name, definition, config, shown_errors, config_with_references=config_with_references)


def _mistyped_client_property_errors(
    spark: SparkSession, source: ConfiguredSource | None, sink: ConfiguredSink | None
) -> dict[str, list[str]]:
    """An error, by the user's key, for each property of the clients of a Kafka source and a Kafka sink whose value is
    not of the property's type. Empty if the JVM lacks a jar for Kafka."""
    ends: list[tuple[PrefixedConfig, str, str]] = []
    if source is not None and issubclass(source.plugin, KafkaSource):
        ends.append((source.config, kafka.CONSUMER_OVERRIDE_PREFIX, "consumer.ConsumerConfig"))
    if sink is not None and issubclass(sink.plugin, KafkaSink):
        ends.append((sink.config, kafka_target.PRODUCER_OVERRIDE_PREFIX, "producer.ProducerConfig"))
    errors: dict[str, list[str]] = {}
    if not ends or missing_jars_message(spark, "kafka") is not None:
        return errors
    for config, prefix, class_name in ends:
        client_config = attrgetter(f"org.apache.kafka.clients.{class_name}")(kafka_jvm())
        messages = mistyped_property_errors(client_config, config.values_under_prefix(prefix))
        errors |= {config.user_key(prefix + property_): [message] for property_, message in messages.items()}
    return errors


def _errors_with_secrets_hidden(
    errors: Mapping[str, Sequence[str]], config_with_references: Mapping[str, str], config: Mapping[str, str]
) -> dict[str, list[str]]:
    """``errors`` with the references of ``config_with_references`` in place of the secrets of ``config``."""
    return {
        key: [hide_secrets(message) for message in _messages_with_references(messages, config_with_references, config)]
        for key, messages in errors.items()
    }


def _messages_with_references(
    messages: Sequence[str], config_with_references: Mapping[str, str], config: Mapping[str, str]
) -> Sequence[str]:
    """``messages`` with the values of ``config_with_references`` in place of those of ``config``, where these differ
    because ``config`` has secrets."""
    for key, written_value in config_with_references.items():
        if (value := config[key]) != written_value and value.strip():
            messages = [message.replace(value.strip(), written_value) for message in messages]
    return messages


def config_errors(
    spark: SparkSession,
    config: Mapping[str, str],
    worker_kafka_properties: Mapping[str, str],
    configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
) -> dict[str, list[str]]:
    """All errors in a connector's config, by key; empty when the config is valid. Keys that are probably typos are
    logged.

    A plug-in validates its keys only if their definition has no error. ``worker_kafka_properties``: see
    :attr:`PrefixedConfig.worker_kafka_properties`. ``configs_of_checkpointed_tasks``: the configs of the connector's
    tasks that may have checkpoints; empty for a new connector.

    :raises WorldError: when a source whose number of tasks is fixed cannot be reached, so that its partitions cannot be
        listed.
    """
    for key, intended_key in likely_typos(config).items():
        logger.warning("The key %s of connector %s is ignored; is %s meant?", key, config.get("name", ""), intended_key)
    errors = common_connector_definition().errors(config) | transforms.config_errors(config)
    if "connector.class" in errors:
        return errors
    source, sink, missing_errors = _source_sink_and_config_errors(config, worker_kafka_properties)
    errors |= missing_errors
    if source is not None:
        errors |= source_class_or_format_change_errors(source, configs_of_checkpointed_tasks)
    if source is not None and sink is not None:
        errors |= sink_change_errors_if_source_unmovable(
            source, configs_of_checkpointed_tasks
        ) | unsupported_connect_keys.unsupported_key_errors(source, sink)
    end_errors: dict[str, list[str]] = {}
    if source is not None:
        source, end_errors = _validate_and_complete_source(spark, source, configs_of_checkpointed_tasks)
        if not end_errors:
            if "tasks.max" not in errors and source.plugin.has_fixed_split:
                errors |= _fixed_split_errors(config, source, configs_of_checkpointed_tasks)
            errors |= _transform_and_sink_column_errors(spark, source, sink, errors)
        errors |= end_errors
    if sink is not None:
        end_errors = sink.definition.errors(config) | sink.config.unknown_key_errors(
            sink.definition, sink.plugin.free_key_prefixes
        )
        errors |= end_errors or sink.plugin.validate(spark, sink.config) | _exactly_once_errors(sink)
        if source is not None and not source.plugin.can_wait_for_rows:
            errors |= _ineffective_rotation_key_errors(source, sink)
    if source is not None and sink is not None:
        errors |= _source_sink_combination_errors(spark, config, source, sink, errors)
    return errors


def _source_sink_combination_errors(
    spark: SparkSession,
    config: Mapping[str, str],
    source: ConfiguredSource,
    sink: ConfiguredSink,
    earlier_errors: Mapping[str, list[str]],
) -> dict[str, list[str]]:
    """Errors, by key, in the combination of the source and the sink. ``earlier_errors``: the errors that were found
    before; some checks need a config without errors."""
    errors = {} if earlier_errors else _endless_loop_errors(spark, source, sink) | own_input_errors(source, sink)
    if not any(key.startswith("errors.") for key in earlier_errors):
        errors |= _bad_record_key_errors(spark, config, source, sink)
    return errors


def _validate_and_complete_source(
    spark: SparkSession, source: ConfiguredSource, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> tuple[ConfiguredSource, dict[str, list[str]]]:
    """Check the source's keys. Returns the source, with the inferred values of keys that the config does not set, and
    the errors by key. The values are missing if an error prevents the inference."""
    errors = source.definition.errors(source.config.config)
    errors |= source.config.unknown_key_errors(source.definition, source.plugin.free_key_prefixes)
    # Check jars, other keys and the server first: without them Spark would only report that it finds no columns.
    errors = errors or source.plugin.validate(spark, source.config)
    has_begun = any(GENERATION_KEY in task for task in configs_of_checkpointed_tasks)
    if not errors and not has_begun and isinstance(source.plugin, HasStartPositions):
        errors = source.plugin.start_position_errors(source.config)
    if errors or not source.plugin.keys_to_infer(source.config):
        return source, errors
    source, errors = _infer_missing_values(spark, source, configs_of_checkpointed_tasks)
    return source, errors or source.plugin.validate(spark, source.config)


def _infer_missing_values(
    spark: SparkSession, source: ConfiguredSource, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> tuple[ConfiguredSource, dict[str, list[str]]]:
    """Infer the values of the keys that the config does not set (:meth:`Source.keys_to_infer`). Returns the source with
    these values and no error; or ``source`` unchanged and the errors, by key, if the values cannot be inferred."""
    try:
        config_with_kept_values = source.config.with_defaults(
            _inferred_values_to_keep(source, configs_of_checkpointed_tasks)
        )
        return replace(
            source,
            config=config_with_kept_values.with_defaults(source.plugin.infer_values(spark, config_with_kept_values)),
        ), {}
    except ConfigError as error:
        return source, error.errors_as_new_lists
    except (WorldError, PySparkException, Py4JError, OSError) as error:
        key = source.config.user_key(source.plugin.keys_to_infer(source.config)[0])
        return source, {key: [f"No columns can be inferred: {error_message(error)}. Set {key}, or try again"]}


def _inferred_values_to_keep(
    source: ConfiguredSource, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> Mapping[str, str]:
    """The inferred values of the present checkpoint generation that the next generation keeps, by key: all of them if
    the source still has one of the partitions that the tasks read, else none. This is the rule of
    :meth:`coterie.spark.generations.updater.GenerationRequest.keep_or_infer_values`. Columns that a former config
    set are not kept.

    :raises ConfigError, WorldError: see :meth:`Source.list_source_partitions`.
    """
    inferred: Mapping[str, str] = (
        json.loads(configs_of_checkpointed_tasks[0].get(INFERRED_VALUES_KEY, "{}"))
        if configs_of_checkpointed_tasks
        else {}
    )
    former_split = Split(
        function=source.plugin.split_function,
        partitions_by_task=tuple(
            tuple(json.loads(task.get("task.parts", "[]"))) for task in configs_of_checkpointed_tasks
        ),
    )
    if not inferred or not former_split.common_partitions(source.plugin.list_source_partitions(source.config)):
        return {}
    return {name: inferred[name] for name in source.plugin.keys_to_infer(source.config) if name in inferred}


def _bad_record_key_errors(
    spark: SparkSession, config: Mapping[str, str], source: ConfiguredSource, sink: ConfiguredSink
) -> dict[str, list[str]]:
    """Errors, by key, in the keys for bad records (``errors.*``) that depend on the source and the sink."""
    try:
        tolerance = bad_records.read_bad_record_settings(config)
    except ConfigError as error:
        return error.errors_as_new_lists
    if tolerance is None:
        return {}
    key = bad_records.TOLERANCE_KEY
    if not source.plugin.reports_bad_records:
        name = source.plugin.__name__
        return {key: [f"{key}=all: {name} does not report bad records; KafkaSource and FileSource do. Set none"]}
    is_atomic = isinstance(tolerance.dead_letter_destination, sink.plugin.atomic_dead_letter_destinations)
    # The dead letter queue reads producer.override.* with the prefix `sink.` and without it.
    writer_config = sink.config if is_atomic else replace(sink.config, is_prefix_optional=True)
    if (
        isinstance(tolerance.dead_letter_destination, bad_records.DeadLetterTopic)
        and _may_share_cluster(source.config, writer_config)
        and (topics_key := _key_that_names_topic(source, tolerance.dead_letter_destination.topic)) is not None
    ):
        return _make_dead_letter_topic_conflict_errors(source, tolerance.dead_letter_destination.topic, topics_key)
    if isinstance(tolerance.dead_letter_destination, bad_records.DeadLetterFolder):
        path, path_key = tolerance.dead_letter_destination.path, bad_records.DEAD_LETTER_PATH_KEY
        if overlaps_source_folder(source, path):
            source_key = source.config.user_key("path")
            message = f"The connector would read the bad records in {path}, which overlaps {source_key}"
            return {path_key: [f"{message}; name another folder"]}
        if overlaps_sink_folder(sink, path):
            return {path_key: [f"Readers of the sink's folder would read the bad records in {path}; name another one"]}
    if not is_atomic:
        try:
            errors = queue.find_dead_letter_destination_errors(
                spark, tolerance.dead_letter_destination, config, source.config.worker_kafka_properties
            )
        except ConfigError as error:
            errors = error.errors_as_new_lists
        if errors:
            return errors
    if not is_atomic and common_connector_definition().required_value(config, EXACTLY_ONCE_KEY.name, str) == "required":
        message = (
            f"{sink.plugin.__name__} does not commit bad records together with good ones, so a record may be lost or "
            f"duplicated if an expression is not deterministic; set {EXACTLY_ONCE_KEY.name}=requested to accept that "
            "(docs/guarantees.md)"
        )
        return {EXACTLY_ONCE_KEY.name: [invalid_value_message(EXACTLY_ONCE_KEY.name, "required", message)]}
    return {}


def _make_dead_letter_topic_conflict_errors(
    source: ConfiguredSource, topic: str, topics_key: str
) -> dict[str, list[str]]:
    """Connect's error about the dead letter topic ``topic``, by ``topics_key``: the user's key of ``topics`` or
    ``topics.regex``, which names this topic, so that the source would read it."""
    value = source.config.config[topics_key]
    if topics_key == source.config.user_key("topics"):
        named = f"the list of topics ('{topics_key}=[{', '.join(split_list(value))}]')"
    else:
        named = f"the regex matching topics ('{topics_key}={value}')"
    return {topics_key: [f"The DLQ topic '{topic}' may not be included in {named} consumed by the connector"]}


def _key_that_names_topic(source: ConfiguredSource, topic: str) -> str | None:
    """The user's key of the source that names ``topic``: that of ``topics`` or ``topics.regex``. None when neither
    names it. An expression in ``topics.regex`` that Java accepts and Python does not is taken as not naming it."""
    topics_key, pattern_key = source.config.user_key("topics"), source.config.user_key("topics.regex")
    if topic in split_list(source.config.config.get(topics_key, "")):
        return topics_key
    pattern = source.config.config.get(pattern_key, "")
    try:
        return pattern_key if pattern and re.fullmatch(pattern, topic) else None
    except re.error:  # Java accepts expressions that Python does not.
        return None


def _endless_loop_errors(spark: SparkSession, source: ConfiguredSource, sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, if a connector from Kafka to Kafka would write to a topic that it reads, and so read its own
    records without end. Empty when it would not, and when that cannot be decided from the config."""
    if source.plugin is not KafkaSource or sink.plugin is not KafkaSink:
        return {}
    if not _may_share_cluster(source.config, sink.config):
        return {}
    key, topic = sink.config.user_key("topic"), sink.config.config.get(sink.config.user_key("topic"))
    topic_keys = " or ".join(
        name for name in map(source.config.user_key, ("topics", "topics.regex")) if name in sink.config.config
    )
    if topic is not None:
        if _key_that_names_topic(source, topic.strip()) is None:
            return {}
        message = (
            f"{topic_keys} names this topic, on the same cluster. Name another one, or leave it out of {topic_keys}"
        )
        return {key: [f"Invalid value {topic} for configuration {key}: {_ENDLESS_LOOP_REASON}: {message}"]}
    if not _keeps_topic_column(spark, source):
        return {}
    return {
        key: [
            f"Missing configuration {key}: {_ENDLESS_LOOP_REASON}: without {key} each record is written to the topic "
            f"from which it was read by {topic_keys}, on the same cluster. Set {key}, or route the records by a "
            "transform such as RegexRouter"
        ]
    }


_ENDLESS_LOOP_REASON = "the connector would read its own records again, without end"
"""The reason in the messages of :func:`_endless_loop_errors`."""


def _may_share_cluster(source: PrefixedConfig, sink: PrefixedConfig) -> bool:
    """Whether a Kafka source and a Kafka sink have a common bootstrap address."""
    return not _bootstrap_addresses(source, kafka.CONSUMER_OVERRIDE_PREFIX).isdisjoint(
        _bootstrap_addresses(sink, kafka_target.PRODUCER_OVERRIDE_PREFIX)
    )


def _bootstrap_addresses(config: PrefixedConfig, override_prefix: str) -> set[str]:
    """The bootstrap addresses of a Kafka source or sink with this config: those of its key with the prefix
    ``override_prefix``, else those of the worker."""
    overrides = config.values_under_prefix(override_prefix)
    return set(
        split_list(
            overrides.get(kafka.BOOTSTRAP_SERVERS, config.worker_kafka_properties.get(kafka.BOOTSTRAP_SERVERS, ""))
        )
    )


def _keeps_topic_column(spark: SparkSession, source: ConfiguredSource) -> bool:
    """Whether a Kafka sink without a key for the topic writes each record to the topic from which the Kafka source read
    the record: no transform changes the column from which the sink takes the topic."""
    task_input = TaskInput(
        task_number=0, task_count=1, source_partitions=(), split_function=source.plugin.split_function
    )
    session = new_session_without_java_functions(spark)
    reader = source.plugin.of(source.config, task_input)
    assert isinstance(reader, KafkaSource)
    rows = session.createDataFrame([], reader.schema(session))
    transformed_rows = transforms.apply_transforms(rows, transforms.parse_transforms(source.config.config))
    name = "topic" if "topic" in transformed_rows.columns else MetadataColumn.TOPIC.value
    if name == "topic" and name not in reader.configured_column_names:
        return False  # The topic is a column of the record's value.
    return column_id_by_name(rows)[name] == column_id_by_name(transformed_rows)[name]


def _source_sink_and_config_errors(
    config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]
) -> tuple[ConfiguredSource | None, ConfiguredSink | None, dict[str, list[str]]]:
    """The source and the sink of ``config``, and the errors by key. The source or the sink is None if ``config`` does
    not name it correctly; the errors then contain the reason."""
    errors: dict[str, list[str]] = {}
    source, sink = None, None
    try:
        source = configured_source(config, worker_kafka_properties)
    except ConfigError as error:
        errors |= error.errors_as_new_lists
    try:
        sink = configured_sink(config, worker_kafka_properties)
    except ConfigError as error:
        errors |= error.errors_as_new_lists
    return source, sink, errors


def likely_typos(config: Mapping[str, str]) -> Mapping[str, str]:
    """The keys of ``config`` that are probably typos, each with the key that is probably meant: ``sorce.path`` with
    ``source.path``.

    Coterie ignores keys without a known prefix. Such a key is probably a typo if its first word is one edit away from a
    known prefix.
    """
    first_word_by_key = {key: key.partition(".")[0] for key in config if "." in key}
    return {
        key: prefix + key.removeprefix(first_word)
        for key, first_word in first_word_by_key.items()
        for prefix in _FIRST_WORDS
        if first_word not in _FIRST_WORDS and _is_one_edit_away(first_word, prefix)
    }


def _is_one_edit_away(word: str, other_word: str) -> bool:
    """Whether ``word`` becomes ``other_word`` by changing, removing or adding one letter, or by swapping two
    neighbours."""
    first_difference = next(
        (index for index, pair in enumerate(zip(word, other_word, strict=False)) if pair[0] != pair[1]), None
    )
    if first_difference is None:  # One word is a prefix of the other.
        return abs(len(word) - len(other_word)) == 1
    rest_of_word, rest_of_other = word[first_difference:], other_word[first_difference:]
    return (
        rest_of_word[1:] == rest_of_other[1:]
        or rest_of_word == rest_of_other[1:]
        or rest_of_word[1:] == rest_of_other
        or (rest_of_word[:2] == rest_of_other[1::-1] and rest_of_word[2:] == rest_of_other[2:])
    )


def _exactly_once_errors(sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, if ``exactly.once.support`` is ``required`` and the sink with its config does not write rows
    exactly once."""
    is_required = (
        common_connector_definition().required_value(sink.config.config, EXACTLY_ONCE_KEY.name, str) == "required"
    )
    if not is_required or sink.plugin.is_exactly_once(sink.config):
        return {}
    message = (
        f"{sink.plugin.__name__} with these settings writes each row at least once; "
        f"set {EXACTLY_ONCE_KEY.name}=requested to accept that, or choose another sink (docs/guarantees.md)"
    )
    return {EXACTLY_ONCE_KEY.name: [f"Invalid value required for configuration {EXACTLY_ONCE_KEY.name}: {message}"]}


def _ineffective_rotation_key_errors(source: ConfiguredSource, sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, for each set rotation key of the sink. ``source`` is one that cannot wait for rows, so that
    these keys have no effect."""
    message = (
        f"{source.plugin.__name__} does not report how many rows are waiting, so a batch cannot wait for more rows. "
        "Remove the key, and set trigger.interval.ms to have fewer and larger files"
    )
    known_keys = {key.name for key in sink.definition.keys}
    keys_without_effect = [
        key for key in rotation.rotation_user_keys(sink.config) if key in known_keys and key in sink.config.config
    ]
    return {key: [f"Configuration {key} has no effect: {message}"] for key in keys_without_effect}


def list_source_partitions_by_task(source: ConfiguredSource) -> Sequence[Sequence[str]]:
    """The source partitions that each task would read after a split now, by task number.

    :raises ConfigError: when a value is not valid; the error names the key.
    :raises WorldError: when the source cannot be reached.
    """
    tasks_max = common_connector_definition().required_value(source.config.config, "tasks.max", int)
    return source.plugin.divide_partitions(source.plugin.list_source_partitions(source.config), tasks_max)


def source_class_or_format_change_errors(
    source: ConfiguredSource, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error, by key, if the tasks with the configs ``configs_of_checkpointed_tasks`` have another class of source
    than ``source``, or another value of its key ``format``. Empty if there is no such task, and if these configs name
    no source: then the tasks have never run on Spark.

    Their checkpoints contain positions of the former source, and Spark cannot resume at these positions in another
    source. ``configs_of_checkpointed_tasks`` are the configs of the connector's tasks that may have checkpoints.
    """
    if not configs_of_checkpointed_tasks:
        return {}
    try:
        former_source = configured_source(
            configs_of_checkpointed_tasks[0], source.config.worker_kafka_properties, "task.class"
        )
    except ConfigError:
        return {}  # Another runtime has created these task configs: the tasks have never run on Spark.
    if former_source.plugin is not source.plugin:
        is_class_key_of_source = any(key.name == "source.class" for key in source.definition.keys)
        class_key = "source.class" if is_class_key_of_source else "connector.class"
        new_name = source.config.config.get(class_key, source.plugin.__name__)
        return _make_source_change_errors(class_key, new_name, former_source.plugin.__name__)
    definitions = [end.plugin.definition(end.config) for end in (former_source, source)]
    if not all(any(key.name == "format" for key in definition.keys) for definition in definitions):
        return {}
    former_format, new_format = (
        end.config.effective_values(definition, ("format",))["format"]
        for end, definition in zip((former_source, source), definitions, strict=True)
    )
    if former_format is None or new_format is None or former_format == new_format:
        return {}  # The check of the definitions reports a missing format.
    return _make_source_change_errors(source.config.user_key("format"), new_format, former_format)


def sink_change_errors_if_source_unmovable(
    source: ConfiguredSource, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error, by key, for each key of the sink whose value identifies another place than in
    ``configs_of_checkpointed_tasks``, the configs of the connector's tasks that may have checkpoints. Empty if the
    source's positions can be moved to new checkpoints: only then the sink may change. ``source``: the connector's
    source; its config is the whole config of the connector, with the keys of the sink."""
    if not configs_of_checkpointed_tasks or not isinstance(source.plugin.position_store, UnmovablePositionStore):
        return {}
    config, worker_kafka_properties = source.config.config, source.config.worker_kafka_properties
    try:
        former_identity, new_identity = (
            sink_identity(configs_of_checkpointed_tasks[0], worker_kafka_properties),
            sink_identity(config, worker_kafka_properties),
        )
    except ConfigError:
        return {}  # The check of the definitions reports the error.
    changed_names = {
        key for key in former_identity.keys() | new_identity.keys() if former_identity.get(key) != new_identity.get(key)
    }
    if "class" in changed_names:
        keys = {next(key for key in ("sink.class", "sink.format", "connector.class") if key in config)}
    else:
        sink_config = configured_sink(config, worker_kafka_properties).config
        keys = {name if name.startswith("errors.") else sink_config.user_key(name) for name in changed_names}
    message = (
        f"the connector has checkpoints, and a connector of {source.plugin.__name__} keeps its sink. Set the former "
        f"value again; {_OTHER_WAYS}"
    )
    return {key: [f"The value of configuration {key} cannot be changed: {message}"] for key in sorted(keys)}


def _make_source_change_errors(key: str, new_class_or_format: str, former_class_or_format: str) -> dict[str, list[str]]:
    """The error, by ``key``, that the connector's checkpoints were made with another class or format of the source,
    ``former_class_or_format``. ``new_class_or_format``: the value of ``key``, or its default if the config does not set
    it."""
    message = (
        f"the connector has checkpoints, made with {former_class_or_format}, and another source cannot resume from "
        f"them. Keep {former_class_or_format}; {_OTHER_WAYS}"
    )
    return {key: [invalid_value_message(key, new_class_or_format, message)]}


def _fixed_split_errors(
    config: Mapping[str, str], source: ConfiguredSource, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """The errors, by key, of :func:`task_count_change_errors`, or of a value with which the source's partitions cannot
    be listed.

    :raises WorldError: when the source cannot be reached.
    """
    try:
        partitions_by_task_number = list_source_partitions_by_task(source)
    except ConfigError as error:
        return error.errors_as_new_lists
    return task_count_change_errors(config, len(partitions_by_task_number), configs_of_checkpointed_tasks)


def task_count_change_errors(
    config: Mapping[str, str], task_count: int, configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """An error, by key, if the number of tasks changes. ``task_count`` is the number with the new ``config``; the
    former number is in ``configs_of_checkpointed_tasks``, the configs of the connector's tasks that may have
    checkpoints. For a source whose split is fixed (:attr:`Source.has_fixed_split`).

    A task's checkpoint records which part of the task's own input was read. With another number of tasks each task has
    other input, and keeps its checkpoint or starts without one: some rows are then read by no task, others by two
    tasks.
    """
    if not configs_of_checkpointed_tasks or (
        former_task_count := configs_of_checkpointed_tasks[0].get("task.count")
    ) in (
        None,
        str(task_count),
    ):
        return {}
    old_tasks_max, new_tasks_max = (
        common_connector_definition().value_text_or_default(config_, "tasks.max")
        for config_ in (configs_of_checkpointed_tasks[0], config)
    )
    return {
        "tasks.max": [
            f"Invalid value {new_tasks_max} for configuration tasks.max: the connector has checkpoints of "
            f"{former_task_count} task(s), made with tasks.max={old_tasks_max}; {task_count} task(s) with these "
            f"checkpoints would lose rows and duplicate others. Keep tasks.max={old_tasks_max}; {_OTHER_WAYS}"
        ]
    }


def _transform_and_sink_column_errors(
    spark: SparkSession, source: ConfiguredSource, sink: ConfiguredSink | None, earlier_errors: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Errors, by key, of the transforms with the source's columns, and of the sink with the resulting columns. Spark
    resolves both in the same way as for a task's query. Empty if ``earlier_errors`` contain an error in the transforms'
    or predicates' keys."""
    if any(key.startswith(("transforms", "predicates")) for key in earlier_errors):
        return {}
    try:
        task_input = TaskInput(
            task_number=0, task_count=1, source_partitions=(), split_function=source.plugin.split_function
        )
        # A separate session, as for each task: transforms may create views in it.
        session = new_session_without_java_functions(spark)
        schema = source.plugin.of(source.config, task_input).schema(session)
        parsed_transforms = transforms.parse_transforms(source.config.config)
        sink_object = None if sink is None else sink.plugin.of(sink.config)
        tolerance = source.config.config.get(bad_records.TOLERANCE_KEY, "none").strip()
        if tolerance == "all" and source.plugin.reports_bad_records:
            error_fields = [StructField(ORIGINAL_COLUMN, ORIGINAL_RECORD_TYPE), StructField(ERROR_COLUMN, ERROR_TYPE)]
            apply_transforms_tolerantly(
                session.createDataFrame([], StructType([*schema.fields, *error_fields])), parsed_transforms, sink_object
            )
        else:
            rows = transforms.apply_transforms(session.createDataFrame([], schema), parsed_transforms)
            if sink_object is not None:
                sink_object.to_sink_columns(rows)
    except ConfigError as error:
        return error.errors_as_new_lists
    return {}
