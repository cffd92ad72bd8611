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
    QUEUE,
    TOLERANCE,
    DeadLetterDestination,
    DeadLetterTable,
    DeadLetterTopic,
    NoDeadLetters,
    error_tolerance_of,
)
from coterie.spark.bad_records.queue import LEDGER, dead_letter_identity, dead_letter_topic_settings
from coterie.spark.generations.manifest import Manifest
from coterie.spark.plugins import ConfiguredSink, ConfiguredSource, configured_sink, configured_source, sink_identity
from coterie.spark.prefixed_config import SINK, SOURCE
from coterie.spark.sinks.kafka_target import OVERRIDE, SERVERS

_CLASSES = frozenset(("connector.class", "source.class", "sink.class"))
"""The keys that name the classes of a connector's source and sink."""


def config_for_batch_in_flight(
    newest: Mapping[str, str], former: Manifest, parts: frozenset[str], worker_kafka_properties: Mapping[str, str]
) -> dict[str, str]:
    """The connector config with which a batch in flight of the checkpoint generation ``former`` is run.

    ``newest``: the connector's newest config. ``parts``: the source partitions that exist with the ``newest`` config.
    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    source = _NewestAndFormer(
        newest=configured_source(newest, worker_kafka_properties),
        former=configured_source(former.config, worker_kafka_properties),
        prefix=SOURCE,
    )
    sink = _NewestAndFormer(
        newest=configured_sink(newest, worker_kafka_properties),
        former=configured_sink(former.config, worker_kafka_properties),
        prefix=SINK,
    )
    is_read_there = parts.issuperset(part for task in former.split.tasks for part in task)
    is_written_there = sink_identity(newest, worker_kafka_properties) == sink_identity(
        former.config, worker_kafka_properties
    )
    has_newest_letters = _may_use_newest_dead_letters(newest, former.config, sink)
    letters = newest if has_newest_letters else former.config
    made = {
        **{
            key: value
            for key, value in newest.items()
            if not (source.may_belong(key) or sink.may_belong(key) or _is_dead_letter_key(key))
        },
        **{key: value for key, value in letters.items() if _is_dead_letter_key(key)},
    }
    to = _dead_letter_destination(letters)
    if isinstance(to, DeadLetterTopic) and not isinstance(to, sink.former.plugin.atomic_dead_letters):
        # The dead letter queue reads these keys from the complete config, whatever the class of the sink is.
        made = {key: value for key, value in made.items() if key != LEDGER and not key.startswith(OVERRIDE)}
        made |= dead_letter_topic_settings(newest) if has_newest_letters else _former_topic_keys(newest, former.config)
    return {
        **made,
        **source.keys(is_same_place=is_read_there),
        **sink.keys(is_same_place=is_written_there),
        "connector.class": source.former.plugin.__name__,
        "sink.class": sink.former.plugin.__name__,
    }


EndT = TypeVar("EndT", ConfiguredSource, ConfiguredSink)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewestAndFormer(Generic[EndT]):
    """One end of a connector (its source or its sink), by the connector's newest config and by the config of a former
    checkpoint generation."""

    newest: EndT
    former: EndT
    prefix: str
    """``source.`` or ``sink.``."""

    @property
    def is_same_plugin(self) -> bool:
        """Whether both configs name the same class for this end."""
        return self.newest.plugin is self.former.plugin

    def may_belong(self, key: str) -> bool:
        """Whether ``key`` of the newest config may belong to this end. The config for the batch takes such keys only
        from :meth:`keys`."""
        if key in _CLASSES or key.startswith(self.prefix):
            return True
        names = {known.name for end in (self.newest, self.former) for known in _definition(end).keys}
        starts = tuple(start for end in (self.newest, self.former) for start in end.plugin.free_key_prefixes if start)
        # In the config that this module returns, connector.class names the source.
        may_lack_prefix = self.prefix == SOURCE or self.newest.config.is_prefix_optional
        return may_lack_prefix and (key in names or key.startswith(starts))

    def keys(self, *, is_same_place: bool) -> dict[str, str]:
        """The values of this end for the batch, by key with the prefix.

        If the class is the same, and also the place (``is_same_place``) or the values of the connection keys, these are
        the newest values, but the former values of the identity keys. Otherwise they are all former values: the newest
        password belongs to another place.
        """
        keys = _set_values(self.former)
        if self.is_same_plugin and (
            is_same_place or _connection_values(self.former) == _connection_values(self.newest)
        ):
            before, now = _identity_values(self.former), _identity_values(self.newest)
            changed = {name for name in before if before[name] != now[name]}
            kept = {name: value for name, value in _set_values(self.newest).items() if name not in changed}
            keys = kept | {name: value for name, value in keys.items() if name in changed}
        return {self.prefix + name: value for name, value in keys.items()}


def _definition(end: ConfiguredSource | ConfiguredSink) -> ConfigDef:
    """The definition of an end's keys, with names without the prefix."""
    return end.plugin.definition(end.config)


def _identity_values(end: ConfiguredSource | ConfiguredSink) -> dict[str, str | None]:
    """The set or default values of the end's :attr:`Source.identity_keys`, by name without the prefix."""
    return end.config.effective_values(_definition(end), end.plugin.identity_keys)


def _connection_values(end: ConfiguredSource | ConfiguredSink) -> dict[str, str | None]:
    """The set or default values of the end's :attr:`Source.connection_keys`, by name without the prefix."""
    return end.config.effective_values(_definition(end), end.plugin.connection_keys)


def _set_values(end: ConfiguredSource | ConfiguredSink) -> dict[str, str]:
    """The values that the config sets for an end, by name without the prefix."""
    config = end.config.config
    keys = {known.name: end.config.key(known.name) for known in _definition(end).keys}
    found = {name: config[key] for name, key in keys.items() if key in config}
    for start in end.plugin.free_key_prefixes:
        if start:  # PythonSource, which is never re-split, accepts any key.
            found |= {start + rest: value for rest, value in end.config.values_under(start).items()}
    return found


def _is_dead_letter_key(key: str) -> bool:
    return key == TOLERANCE or key.startswith(QUEUE)


def _may_use_newest_dead_letters(
    newest: Mapping[str, str], former: Mapping[str, str], sink: _NewestAndFormer[ConfiguredSink]
) -> bool:
    """Whether bad rows of the batch may be written to the dead letter destination of the ``newest`` config: only when
    no bad row of the batch can have been written to another destination before, with the ``former`` config."""
    there, wanted = _dead_letter_destination(former), _dead_letter_destination(newest)
    if isinstance(there, NoDeadLetters):
        return sink.is_same_plugin or not isinstance(wanted, DeadLetterTable)
    # A sink that writes the dead letters in the same transaction has written good and bad rows together, or neither.
    are_held = all(isinstance(one, sink.former.plugin.atomic_dead_letters) for one in (there, wanted))
    return sink.is_same_plugin and (
        are_held or dead_letter_identity(there, former) == dead_letter_identity(wanted, newest)
    )


def _former_topic_keys(newest: Mapping[str, str], former: Mapping[str, str]) -> dict[str, str]:
    """The values with which the dead letter queue writes to the topic of the ``former`` config, by key. These are the
    newest values, which may have a newer password, with the former ledger topic; or all former values, if the newest
    ones are for another cluster or the newest destination is not a topic."""
    before, now = dead_letter_topic_settings(former), dead_letter_topic_settings(newest)
    is_same_cluster = before.get(OVERRIDE + SERVERS) == now.get(OVERRIDE + SERVERS)
    return (
        {**now, LEDGER: before[LEDGER]}
        if is_same_cluster and isinstance(_dead_letter_destination(newest), DeadLetterTopic)
        else before
    )


def _dead_letter_destination(config: Mapping[str, str]) -> DeadLetterDestination:
    """Where a connector with this config writes bad records; :class:`NoDeadLetters` also when it tolerates none."""
    tolerance = error_tolerance_of(config)
    return NoDeadLetters() if tolerance is None else tolerance.dead_letter_destination
