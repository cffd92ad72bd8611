"""Connect's predicates, which select the rows that a transform is applied to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import ConfigDef, ConfigKey, OneOfPluginClasses, blank_value_error
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, has_metadata_column, required_metadata_column
from coterie.spark.smt.patterns import checked_whole_match_pattern
from coterie.spark.smt.transform_type import make_transform_config_key

CONNECT_PREDICATES_PACKAGE = "org.apache.kafka.connect.transforms.predicates"
"""The Java package of Connect's predicates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredicateType:
    """One type of predicate: what ``predicates.<alias>.type`` names. ``name`` is the name of Connect's class without
    the package."""

    name: str
    """The name of Connect's class, without the package."""
    keys: tuple[ConfigKey, ...]
    """The config keys, without the prefix ``predicates.<alias>.``."""
    make_match_column: Callable[[DataFrame, PrefixedConfig], Column]
    """Returns, for the rows and the predicate's config, a boolean column: whether a row matches; null means no match.
    Raises PySparkException or ValueError when the columns of the rows do not fit; the error is reported for the first
    of ``keys``, or for ``type`` if there are no keys."""
    uses_headers: bool = False
    """Whether the predicate uses the headers of records."""

    @property
    def definition(self) -> ConfigDef:
        return ConfigDef(self.keys)

    @property
    def class_name(self) -> str:
        """The name of Connect's class, with the package."""
        return f"{CONNECT_PREDICATES_PACKAGE}.{self.name}"


def _topic_match_column(rows: DataFrame, settings: PrefixedConfig) -> Column:
    pattern = settings.required_value(TOPIC_NAME_MATCHES.definition, "pattern", str)
    return required_metadata_column(rows, MetadataColumn.TOPIC).rlike(
        checked_whole_match_pattern(rows.sparkSession, pattern)
    )


TOPIC_NAME_MATCHES = PredicateType(
    name="TopicNameMatches",
    keys=(
        make_transform_config_key(
            "pattern", "Java regular expression for the whole topic.", "Topic", validator=blank_value_error
        ),
    ),
    make_match_column=_topic_match_column,
)


def _header_match_column(rows: DataFrame, settings: PrefixedConfig) -> Column:
    name = settings.required_value(HAS_HEADER_KEY.definition, "name", str)
    return F.exists(required_metadata_column(rows, MetadataColumn.HEADERS), lambda header: header["key"] == F.lit(name))


HAS_HEADER_KEY = PredicateType(
    name="HasHeaderKey",
    keys=(make_transform_config_key("name", "The header's name.", "Header", validator=blank_value_error),),
    make_match_column=_header_match_column,
    uses_headers=True,
)


def _tombstone_match_column(rows: DataFrame, settings: PrefixedConfig) -> Column:
    return (
        required_metadata_column(rows, MetadataColumn.TOMBSTONE)
        if has_metadata_column(rows, MetadataColumn.TOMBSTONE)
        else F.lit(False)
    )


RECORD_IS_TOMBSTONE = PredicateType(name="RecordIsTombstone", keys=(), make_match_column=_tombstone_match_column)

PREDICATE_TYPES = (HAS_HEADER_KEY, RECORD_IS_TOMBSTONE, TOPIC_NAME_MATCHES)
"""All types of predicates."""
PREDICATE_TYPE_BY_NAME: Mapping[str, PredicateType] = {
    name: kind for kind in PREDICATE_TYPES for name in (kind.name, kind.class_name)
}
"""Every type of predicate, by Connect's class name with and without its package."""
PREDICATE_TYPE_VALIDATOR = OneOfPluginClasses(
    tuple(kind.name for kind in PREDICATE_TYPES),
    interface_name="Predicate",
    also_accepted_names=frozenset(PREDICATE_TYPE_BY_NAME),
)
"""The validator of a predicate's key ``type``."""
