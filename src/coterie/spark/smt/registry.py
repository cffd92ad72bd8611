"""All types of transforms by the names that configs use, and replacements for transforms of other projects."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.config.definition import OneOfPluginClasses
from coterie.spark.smt import debezium, fields, function, records, sql
from coterie.spark.smt.transform_type import KeyOrValue, TransformType

ALL_TRANSFORM_TYPES = (
    *fields.TRANSFORM_TYPES,
    *records.TRANSFORM_TYPES,
    debezium.EXTRACT_NEW_RECORD_STATE,
    sql.SQL,
    function.FUNCTION,
)
"""All types of transforms that Coterie has."""
TYPE_AND_SIDE_BY_NAME: Mapping[str, tuple[TransformType, KeyOrValue]] = {
    name: (kind, side) for kind in ALL_TRANSFORM_TYPES for name, side in kind.side_by_accepted_name().items()
}
"""By each name that a config can give in ``transforms.<alias>.type``: the type of transform, and the side that the name
means."""

ADVICE_BY_UNSUPPORTED_CLASS: Mapping[str, str] = {
    "io.debezium.transforms.ByLogicalTableRouter": "use RegexRouter",
    "io.debezium.transforms.ContentBasedRouter": "use one connector with a Filter for each topic",
    "io.debezium.transforms.Filter": "use Filter with a SQL condition",
    "io.debezium.transforms.HeaderToValue": "use Sql, with headers among the source's columns",
    "io.debezium.transforms.ExtractChangedRecordState": "use ExtractNewRecordState, or Sql over before and after",
    "io.debezium.transforms.TimezoneConverter": "use Sql with from_utc_timestamp",
    "io.debezium.transforms.SchemaChangeEventFilter": "use Filter with a SQL condition",
    "io.debezium.transforms.partitions.PartitionRouting": "partitions of a topic are chosen by the key: use ValueToKey",
    "io.debezium.transforms.outbox.EventRouter": "use Sql over the columns of after",
    "io.confluent.connect.transforms.Drop": "use ReplaceField, or Sql",
    "io.confluent.connect.transforms.ExtractTopic": "use Sql, with topic among the source's columns",
    "io.confluent.connect.transforms.Filter": "use Filter with a SQL condition",
    "io.confluent.connect.transforms.MessageTimestampRouter": "use TimestampRouter",
    "io.confluent.connect.transforms.ReplaceField": "use ReplaceField",
    "io.confluent.connect.transforms.TombstoneHandler": "use Filter with the predicate RecordIsTombstone",
    "io.confluent.connect.transforms.GzipDecompress": "use Function",
}
"""What to use instead of well-known transforms that Coterie does not have, by Java class without ``$Key`` and
``$Value``."""


@dataclass(frozen=True, slots=True)
class TransformTypeValidator(OneOfPluginClasses):
    """A validator that accepts every name of a type of transform that Coterie has."""

    def __call__(self, value: str) -> str | None:
        """None if Coterie has this type, else the error message, with a replacement if there is one."""
        class_name = value.partition("$")[0]
        if (advice := ADVICE_BY_UNSUPPORTED_CLASS.get(class_name)) is not None:
            return f"Coterie does not run this transform; {advice} (docs/transforms.md)"
        return OneOfPluginClasses.__call__(self, value)


TRANSFORM_TYPE_VALIDATOR = TransformTypeValidator(
    tuple(sorted(kind.short_class_name for kind in ALL_TRANSFORM_TYPES)),
    interface_name="Transformation",
    also_accepted_names=frozenset(TYPE_AND_SIDE_BY_NAME),
)
