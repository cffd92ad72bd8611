"""The config with which the batch in flight of a closed checkpoint generation is run.

The batch must be read from and written to the same places as in its own checkpoint generation: the same source
partitions, the same place in the sink. All other values are taken from the newest config, because they may be the
reason why the batch failed: a password, a time limit, a converter, a transform, ``errors.tolerance``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.config.definition import Definition
from coterie.spark.bad_records.keys import QUEUE, TOLERANCE, DeadLetters, Dropped, ToTable, ToTopic, tolerance_of
from coterie.spark.bad_records.queue import LEDGER, place_of, topic_keys
from coterie.spark.end_config import SINK, SOURCE
from coterie.spark.generations.manifest import Manifest
from coterie.spark.plugins import SinkEnd, SourceEnd, sink_end, source_end, written_to
from coterie.spark.sinks.kafka_target import OVERRIDE, SERVERS

_CLASSES = frozenset(("connector.class", "source.class", "sink.class"))


def config_in_flight(
    newest: Mapping[str, str], former: Manifest, parts: frozenset[str], worker: Mapping[str, str]
) -> dict[str, str]:
    """The config for a batch in flight of the checkpoint generation ``former``.

    ``parts``: the source partitions of the ``newest`` config. ``worker``: see :attr:`EndConfig.worker`.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    source = _Ends(newest=source_end(newest, worker), former=source_end(former.config, worker), prefix=SOURCE)
    sink = _Ends(newest=sink_end(newest, worker), former=sink_end(former.config, worker), prefix=SINK)
    is_read_there = parts.issuperset(part for task in former.split.tasks for part in task)
    is_written_there = written_to(newest, worker) == written_to(former.config, worker)
    has_newest_letters = _may_take_newest_letters(newest, former.config, sink)
    letters = newest if has_newest_letters else former.config
    made = {
        **{key: value for key, value in newest.items() if not (source.owns(key) or sink.owns(key) or _is_letters(key))},
        **{key: value for key, value in letters.items() if _is_letters(key)},
    }
    to = _letters(letters)
    if isinstance(to, ToTopic) and not isinstance(to, sink.former.plugin.holds):
        # The dead letter queue reads these keys from the complete config, whatever the class of the sink is.
        made = {key: value for key, value in made.items() if key != LEDGER and not key.startswith(OVERRIDE)}
        made |= topic_keys(newest) if has_newest_letters else _former_topic_keys(newest, former.config)
    return {
        **made,
        **source.keys(is_same_place=is_read_there),
        **sink.keys(is_same_place=is_written_there),
        "connector.class": source.former.plugin.__name__,
        "sink.class": sink.former.plugin.__name__,
    }


EndT = TypeVar("EndT", SourceEnd, SinkEnd)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends(Generic[EndT]):
    """One end of a connector, by its newest config and by the config of a former checkpoint generation."""

    newest: EndT
    former: EndT
    prefix: str

    @property
    def is_same_plugin(self) -> bool:
        return self.newest.plugin is self.former.plugin

    def owns(self, key: str) -> bool:
        """Whether a key of the newest config may belong to this end; :meth:`keys` returns the values of this end."""
        if key in _CLASSES or key.startswith(self.prefix):
            return True
        names = {known.name for end in (self.newest, self.former) for known in _definition(end).keys}
        starts = tuple(start for end in (self.newest, self.former) for start in end.plugin.free_prefixes if start)
        # In the config that this module returns, connector.class names the source.
        may_lack_prefix = self.prefix == SOURCE or self.newest.config.is_prefix_optional
        return may_lack_prefix and (key in names or key.startswith(starts))

    def keys(self, *, is_same_place: bool) -> dict[str, str]:
        """The keys of this end, with the prefix: the newest keys with the former values of the identity keys; or all
        former keys, if the newest keys name another place, because their password belongs to that place."""
        keys = _set(self.former)
        if self.is_same_plugin and (is_same_place or _access(self.former) == _access(self.newest)):
            before, now = _identity(self.former), _identity(self.newest)
            changed = {name for name in before if before[name] != now[name]}
            kept = {name: value for name, value in _set(self.newest).items() if name not in changed}
            keys = kept | {name: value for name, value in keys.items() if name in changed}
        return {self.prefix + name: value for name, value in keys.items()}


def _definition(end: SourceEnd | SinkEnd) -> Definition:
    """The definition of an end's keys, with names without the prefix."""
    return end.plugin.definition(end.config)


def _identity(end: SourceEnd | SinkEnd) -> dict[str, str | None]:
    return end.config.stated(_definition(end), end.plugin.identity)


def _access(end: SourceEnd | SinkEnd) -> dict[str, str | None]:
    return end.config.stated(_definition(end), end.plugin.access)


def _set(end: SourceEnd | SinkEnd) -> dict[str, str]:
    """The values that the config sets for an end, by name without the prefix."""
    config = end.config.config
    keys = {known.name: end.config.key(known.name) for known in _definition(end).keys}
    found = {name: config[key] for name, key in keys.items() if key in config}
    for start in end.plugin.free_prefixes:
        if start:  # PythonSource, which is never re-split, accepts any key.
            found |= {start + rest: value for rest, value in end.config.under(start).items()}
    return found


def _is_letters(key: str) -> bool:
    return key == TOLERANCE or key.startswith(QUEUE)


def _may_take_newest_letters(newest: Mapping[str, str], former: Mapping[str, str], sink: _Ends[SinkEnd]) -> bool:
    """Whether bad rows of the batch may be written to the destination of the newest config: only when none of them can
    have been written to another destination before."""
    there, wanted = _letters(former), _letters(newest)
    if isinstance(there, Dropped):
        return sink.is_same_plugin or not isinstance(wanted, ToTable)
    # A sink that writes the dead letters in the same transaction has written good and bad rows together, or neither.
    are_held = all(isinstance(one, sink.former.plugin.holds) for one in (there, wanted))
    return sink.is_same_plugin and (are_held or place_of(there, former) == place_of(wanted, newest))


def _former_topic_keys(newest: Mapping[str, str], former: Mapping[str, str]) -> dict[str, str]:
    """The keys with which the dead letter queue writes to the former topic: the newest ones, which may have a newer
    password, unless they are for another cluster or the newest destination is not a topic."""
    before, now = topic_keys(former), topic_keys(newest)
    is_same_cluster = before.get(OVERRIDE + SERVERS) == now.get(OVERRIDE + SERVERS)
    return {**now, LEDGER: before[LEDGER]} if is_same_cluster and isinstance(_letters(newest), ToTopic) else before


def _letters(config: Mapping[str, str]) -> DeadLetters:
    tolerance = tolerance_of(config)
    return Dropped() if tolerance is None else tolerance.letters
