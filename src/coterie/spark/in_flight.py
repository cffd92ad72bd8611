"""The config with which the batch in flight of a closed checkpoint generation is run.

A batch in flight was planned and not committed. It must be read from and written to the same places as in its own
checkpoint generation, the former one: the same source partitions, the same place in the sink. All other values are
taken from the connector's newest config, because they may be the reason why the batch failed: a password, a time limit,
a converter, a transform, ``errors.tolerance``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.config.definition import ConfigDef
from coterie.spark.bad_records.keys import (
    DEAD_LETTER_KEY_PREFIX,
    TOLERANCE_KEY,
    DeadLetterDestination,
    DeadLetterTable,
    DeadLetterTopic,
    NoDeadLetters,
    read_bad_record_settings,
)
from coterie.spark.bad_records.queue import (
    LEDGER_TOPIC_KEY,
    dead_letter_destination_identity,
    ledger_topic_and_producer_overrides,
)
from coterie.spark.generations.manifest import Manifest
from coterie.spark.plugins import ConfiguredSink, ConfiguredSource, configured_sink, configured_source, sink_identity
from coterie.spark.prefixed_config import SINK_PREFIX, SOURCE_PREFIX
from coterie.spark.sinks.kafka_target import BOOTSTRAP_SERVERS, PRODUCER_OVERRIDE_PREFIX

_CLASS_KEYS = frozenset(("connector.class", "source.class", "sink.class"))
"""The keys that name the classes of a connector's source and sink."""


def config_for_batch_in_flight(
    newest_config: Mapping[str, str],
    former_manifest: Manifest,
    existing_partitions: frozenset[str],
    worker_kafka_properties: Mapping[str, str],
) -> dict[str, str]:
    """The connector config with which a batch in flight of the checkpoint generation ``former_manifest`` is run.

    ``newest_config``: the connector's newest config. ``existing_partitions``: the source partitions that exist with
    that config. ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    source = _SourceOrSinkInBothConfigs(
        in_newest_config=configured_source(newest_config, worker_kafka_properties),
        in_former_config=configured_source(former_manifest.config, worker_kafka_properties),
        config_key_prefix=SOURCE_PREFIX,
    )
    sink = _SourceOrSinkInBothConfigs(
        in_newest_config=configured_sink(newest_config, worker_kafka_properties),
        in_former_config=configured_sink(former_manifest.config, worker_kafka_properties),
        config_key_prefix=SINK_PREFIX,
    )
    is_same_source_place = former_manifest.split.has_only_partitions_in(existing_partitions)
    is_same_sink_place = sink_identity(newest_config, worker_kafka_properties) == sink_identity(
        former_manifest.config, worker_kafka_properties
    )
    uses_newest_dead_letters = _may_use_newest_dead_letter_destination(newest_config, former_manifest.config, sink)
    dead_letter_config = newest_config if uses_newest_dead_letters else former_manifest.config
    batch_config = {
        **{
            key: value
            for key, value in newest_config.items()
            if not (source.may_own_key(key) or sink.may_own_key(key) or _is_tolerance_or_dead_letter_key(key))
        },
        **{key: value for key, value in dead_letter_config.items() if _is_tolerance_or_dead_letter_key(key)},
    }
    destination = _dead_letter_destination(dead_letter_config)
    if isinstance(destination, DeadLetterTopic) and not isinstance(
        destination, sink.in_former_config.plugin.atomic_dead_letter_destinations
    ):
        # The dead letter queue reads these keys from the complete config, whatever the class of the sink is.
        batch_config = {
            key: value
            for key, value in batch_config.items()
            if key != LEDGER_TOPIC_KEY and not key.startswith(PRODUCER_OVERRIDE_PREFIX)
        }
        batch_config |= (
            ledger_topic_and_producer_overrides(newest_config)
            if uses_newest_dead_letters
            else _settings_for_former_dead_letter_topic(newest_config, former_manifest.config)
        )
    return {
        **batch_config,
        **source.values_for_batch(is_same_place=is_same_source_place),
        **sink.values_for_batch(is_same_place=is_same_sink_place),
        "connector.class": source.in_former_config.plugin.__name__,
        "sink.class": sink.in_former_config.plugin.__name__,
    }


EndT = TypeVar("EndT", ConfiguredSource, ConfiguredSink)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SourceOrSinkInBothConfigs(Generic[EndT]):
    """One end of a connector (its source or its sink), as the connector's newest config defines it, and as the config
    of a former checkpoint generation defines it."""

    in_newest_config: EndT
    """The source or sink as the connector's newest config defines it."""
    in_former_config: EndT
    """The source or sink as the config of the former checkpoint generation defines it."""
    config_key_prefix: str
    """The prefix of the keys of this end: ``source.`` or ``sink.``."""

    @property
    def is_same_plugin(self) -> bool:
        """Whether both configs name the same class of source (or, for a sink, of sink)."""
        return self.in_newest_config.plugin is self.in_former_config.plugin

    def may_own_key(self, key: str) -> bool:
        """Whether ``key`` of the newest config may be a key of this end. The config for the batch takes such keys only
        from :meth:`values_for_batch`."""
        if key in _CLASS_KEYS or key.startswith(self.config_key_prefix):
            return True
        names = {
            defined_key.name
            for connector_end in (self.in_newest_config, self.in_former_config)
            for defined_key in _source_or_sink_definition(connector_end).keys
        }
        key_prefixes = tuple(
            key_prefix
            for connector_end in (self.in_newest_config, self.in_former_config)
            for key_prefix in connector_end.plugin.free_key_prefixes
            if key_prefix
        )
        # In the config that this module returns, connector.class names the source.
        may_lack_prefix = self.config_key_prefix == SOURCE_PREFIX or self.in_newest_config.config.is_prefix_optional
        return may_lack_prefix and (key in names or key.startswith(key_prefixes))

    def values_for_batch(self, *, is_same_place: bool) -> dict[str, str]:
        """The values of this source or sink with which the batch is run, by key with the prefix. ``is_same_place``:
        whether both configs name the same place to read from or to write to.

        If both configs name the same class, and the same place or the same values of the connection keys, these are the
        newest values, except that the identity keys have their former values. Otherwise all values are the former ones:
        the newest password belongs to another place.
        """
        values = _values_set_in_config(self.in_former_config)
        if self.is_same_plugin and (
            is_same_place or _connection_values(self.in_former_config) == _connection_values(self.in_newest_config)
        ):
            former_values, newest_values = (
                _identity_values(self.in_former_config),
                _identity_values(self.in_newest_config),
            )
            changed_names = {name for name in former_values if former_values[name] != newest_values[name]}
            unchanged_values = {
                name: value
                for name, value in _values_set_in_config(self.in_newest_config).items()
                if name not in changed_names
            }
            values = unchanged_values | {name: value for name, value in values.items() if name in changed_names}
        return {self.config_key_prefix + name: value for name, value in values.items()}


def _source_or_sink_definition(connector_end: ConfiguredSource | ConfiguredSink) -> ConfigDef:
    """The definition of the keys of ``connector_end``, with names without the prefix."""
    return connector_end.plugin.definition(connector_end.config)


def _identity_values(connector_end: ConfiguredSource | ConfiguredSink) -> dict[str, str | None]:
    """The values of the source's or sink's :attr:`Source.identity_keys`, by key without the prefix: those that the
    config sets, else the defaults."""
    return connector_end.config.effective_values(
        _source_or_sink_definition(connector_end), connector_end.plugin.identity_keys
    )


def _connection_values(connector_end: ConfiguredSource | ConfiguredSink) -> dict[str, str | None]:
    """The values of the source's or sink's :attr:`Source.connection_keys`, by key without the prefix: those that the
    config sets, else the defaults."""
    return connector_end.config.effective_values(
        _source_or_sink_definition(connector_end), connector_end.plugin.connection_keys
    )


def _values_set_in_config(connector_end: ConfiguredSource | ConfiguredSink) -> dict[str, str]:
    """The values that the config sets for the connector's source or sink, by key without the prefix."""
    config = connector_end.config.config
    keys = {
        defined_key.name: connector_end.config.user_key(defined_key.name)
        for defined_key in _source_or_sink_definition(connector_end).keys
    }
    values = {name: config[key] for name, key in keys.items() if key in config}
    for key_prefix in connector_end.plugin.free_key_prefixes:
        if key_prefix:  # PythonSource, which is never re-split, accepts any key.
            values |= {
                key_prefix + name_rest: value
                for name_rest, value in connector_end.config.values_under_prefix(key_prefix).items()
            }
    return values


def _is_tolerance_or_dead_letter_key(key: str) -> bool:
    return key == TOLERANCE_KEY or key.startswith(DEAD_LETTER_KEY_PREFIX)


def _may_use_newest_dead_letter_destination(
    newest_config: Mapping[str, str], former_config: Mapping[str, str], sink: _SourceOrSinkInBothConfigs[ConfiguredSink]
) -> bool:
    """Whether bad rows of the batch may be written to the dead letter destination of ``newest_config``: only if the
    sink of ``former_config`` can be used with it, and no bad row of the batch can have been written before to another
    destination, with ``former_config``."""
    former_destination, newest_destination = (
        _dead_letter_destination(former_config),
        _dead_letter_destination(newest_config),
    )
    if isinstance(former_destination, NoDeadLetters):
        return sink.is_same_plugin or not isinstance(newest_destination, DeadLetterTable)
    # A sink that writes the dead letters in the same transaction has written good and bad rows together, or neither.
    are_both_atomic = all(
        isinstance(destination, sink.in_former_config.plugin.atomic_dead_letter_destinations)
        for destination in (former_destination, newest_destination)
    )
    return sink.is_same_plugin and (
        are_both_atomic
        or dead_letter_destination_identity(former_destination, former_config)
        == dead_letter_destination_identity(newest_destination, newest_config)
    )


def _settings_for_former_dead_letter_topic(
    newest_config: Mapping[str, str], former_config: Mapping[str, str]
) -> dict[str, str]:
    """The values with which the dead letter queue writes to the topic of ``former_config``, by key. These are the
    newest values, which may have a newer password, with the former ledger topic; or all former values, if the newest
    ones are for another cluster or the newest destination is not a topic."""
    former_settings, newest_settings = (
        ledger_topic_and_producer_overrides(former_config),
        ledger_topic_and_producer_overrides(newest_config),
    )
    is_same_cluster = former_settings.get(PRODUCER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS) == newest_settings.get(
        PRODUCER_OVERRIDE_PREFIX + BOOTSTRAP_SERVERS
    )
    return (
        {**newest_settings, LEDGER_TOPIC_KEY: former_settings[LEDGER_TOPIC_KEY]}
        if is_same_cluster and isinstance(_dead_letter_destination(newest_config), DeadLetterTopic)
        else former_settings
    )


def _dead_letter_destination(config: Mapping[str, str]) -> DeadLetterDestination:
    """Where a connector with this config writes bad records; :class:`NoDeadLetters` also with
    ``errors.tolerance=none``."""
    tolerance = read_bad_record_settings(config)
    return NoDeadLetters() if tolerance is None else tolerance.dead_letter_destination
