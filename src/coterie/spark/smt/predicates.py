"""Connect's predicates, which select the rows that a transform is applied to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import Definition, Key, not_blank
from coterie.spark.end_config import EndConfig
from coterie.spark.record import Part, has, part_of
from coterie.spark.smt.kind import key
from coterie.spark.smt.patterns import whole_match

PACKAGE = "org.apache.kafka.connect.transforms.predicates"


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateKind:
    """One type of predicate."""

    name: str
    keys: tuple[Key, ...]
    """The config keys, without the prefix ``predicates.<alias>.``."""
    matches: Callable[[DataFrame, EndConfig], Column]
    """Raises PySparkException or ValueError when the rows do not fit; the error is reported for the first key, or the
    type."""
    uses_headers: bool = False

    @property
    def definition(self) -> Definition:
        return Definition(self.keys)


def _topic_matches(rows: DataFrame, settings: EndConfig) -> Column:
    pattern = settings.read(TOPIC_NAME_MATCHES.definition, "pattern", str)
    return part_of(rows, Part.TOPIC).rlike(whole_match(rows.sparkSession, pattern))


TOPIC_NAME_MATCHES = PredicateKind(
    name="TopicNameMatches",
    keys=(key("pattern", "Java regular expression for the whole topic.", "Topic", check=not_blank),),
    matches=_topic_matches,
)


def _has_header(rows: DataFrame, settings: EndConfig) -> Column:
    name = settings.read(HAS_HEADER_KEY.definition, "name", str)
    return F.exists(part_of(rows, Part.HEADERS), lambda one: one["key"] == F.lit(name))


HAS_HEADER_KEY = PredicateKind(
    name="HasHeaderKey",
    keys=(key("name", "The header's name.", "Header", check=not_blank),),
    matches=_has_header,
    uses_headers=True,
)


def _is_tombstone(rows: DataFrame, settings: EndConfig) -> Column:
    return part_of(rows, Part.TOMBSTONE) if has(rows, Part.TOMBSTONE) else F.lit(False)


RECORD_IS_TOMBSTONE = PredicateKind(name="RecordIsTombstone", keys=(), matches=_is_tombstone)

PREDICATES: Mapping[str, PredicateKind] = {
    name: kind
    for kind in (TOPIC_NAME_MATCHES, HAS_HEADER_KEY, RECORD_IS_TOMBSTONE)
    for name in (kind.name, f"{PACKAGE}.{kind.name}")
}
"""Every predicate, by Connect's class name with and without its package."""
