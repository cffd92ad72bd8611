"""The config with which the batch in flight of a closed generation of checkpoints is run.

The batch has to be read and written as its own generation did it: from the same parts, to the same place. All else is
taken from the newest config, because the batch may have failed of it: a password, a time limit, a converter, a
transform, ``errors.tolerance``.
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
    """The config for a batch in flight of the generation ``former``; ``parts`` are those of the ``newest`` config.

    ``worker``: see :attr:`EndConfig.worker`.

    :raises ConfigError: when a value is not valid; names its key.
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
        # The queue has these keys from the whole config, whatever the sink is.
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
    """One end of a connector, as its newest config says it and as a former generation had it."""

    newest: EndT
    former: EndT
    prefix: str

    @property
    def is_same_plugin(self) -> bool:
        return self.newest.plugin is self.former.plugin

    def owns(self, key: str) -> bool:
        """Whether a key of the newest config may say something of this end; :meth:`keys` has what it says."""
        if key in _CLASSES or key.startswith(self.prefix):
            return True
        names = {known.name for end in (self.newest, self.former) for known in _definition(end).keys}
        starts = tuple(start for end in (self.newest, self.former) for start in end.plugin.free_prefixes if start)
        # The source is the end that connector.class names in the config that is made here.
        may_lack_prefix = self.prefix == SOURCE or self.newest.config.is_prefix_optional
        return may_lack_prefix and (key in names or key.startswith(starts))

    def keys(self, *, is_same_place: bool) -> dict[str, str]:
        """The newest keys, and over them the former identity; or all former keys, where the newest ones lead to another
        place, with a password of that place. All with the prefix."""
        keys = _set(self.former)
        if self.is_same_plugin and (is_same_place or _access(self.former) == _access(self.newest)):
            before, now = _identity(self.former), _identity(self.newest)
            changed = {name for name in before if before[name] != now[name]}
            kept = {name: value for name, value in _set(self.newest).items() if name not in changed}
            keys = kept | {name: value for name, value in keys.items() if name in changed}
        return {self.prefix + name: value for name, value in keys.items()}


def _definition(end: SourceEnd | SinkEnd) -> Definition:
    """The keys of an end without a prefix."""
    return end.plugin.definition(end.config)


def _identity(end: SourceEnd | SinkEnd) -> dict[str, str | None]:
    return end.config.stated(_definition(end), end.plugin.identity)


def _access(end: SourceEnd | SinkEnd) -> dict[str, str | None]:
    return end.config.stated(_definition(end), end.plugin.access)


def _set(end: SourceEnd | SinkEnd) -> dict[str, str]:
    """The keys of an end that its config sets, without a prefix."""
    config = end.config.config
    keys = {known.name: end.config.key(known.name) for known in _definition(end).keys}
    found = {name: config[key] for name, key in keys.items() if key in config}
    for start in end.plugin.free_prefixes:
        if start:  # PythonSource, which no re-split concerns, takes any key.
            found |= {start + rest: value for rest, value in end.config.under(start).items()}
    return found


def _is_letters(key: str) -> bool:
    return key == TOLERANCE or key.startswith(QUEUE)


def _may_take_newest_letters(newest: Mapping[str, str], former: Mapping[str, str], sink: _Ends[SinkEnd]) -> bool:
    """Whether bad rows of the batch may go where the newest config says: none of them can stand elsewhere."""
    there, wanted = _letters(former), _letters(newest)
    if isinstance(there, Dropped):
        return sink.is_same_plugin or not isinstance(wanted, ToTable)
    # What the sink holds is where the good rows are, or not at all.
    are_held = all(isinstance(one, sink.former.plugin.holds) for one in (there, wanted))
    return sink.is_same_plugin and (are_held or place_of(there, former) == place_of(wanted, newest))


def _former_topic_keys(newest: Mapping[str, str], former: Mapping[str, str]) -> dict[str, str]:
    """How the queue writes to the former topic: with a newer password, unless that is for another cluster or place."""
    before, now = topic_keys(former), topic_keys(newest)
    is_same_cluster = before.get(OVERRIDE + SERVERS) == now.get(OVERRIDE + SERVERS)
    return {**now, LEDGER: before[LEDGER]} if is_same_cluster and isinstance(_letters(newest), ToTopic) else before


def _letters(config: Mapping[str, str]) -> DeadLetters:
    tolerance = tolerance_of(config)
    return Dropped() if tolerance is None else tolerance.letters
