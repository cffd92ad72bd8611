"""The config keys of a connector: those that every connector has, those of Connect that have no effect here, and all
keys of a connector with its source, its sink and its transforms.
"""

from collections.abc import Mapping
from functools import cache

from coterie.config.definition import (
    ConfigDef,
    ConfigKey,
    Importance,
    OneOfPluginClasses,
    Type,
    Validator,
    Width,
    at_least,
    between,
    blank_value_error,
    one_of,
)
from coterie.nouns.jobs import TASKS_PER_CONNECTOR_MAX
from coterie.spark import transforms
from coterie.spark.bad_records import keys as bad_records
from coterie.spark.converters import CONVERTER_NAMES
from coterie.spark.plugins import (
    SINK_BY_NAME,
    SINK_FORMAT_KEY,
    ConfiguredSink,
    ConfiguredSource,
    connector_type,
    definition_with_order_in_groups,
    sink_class_key,
    source_by_name,
    source_class_key,
)
from coterie.spark.task_timeouts import BATCH_TIMEOUT_KEY, METADATA_MAX_AGE_KEY

COMMON_GROUP = "Common"
"""The group, in a form, of the keys that every connector has."""
TASKS_MAX_ENFORCE_KEY = ConfigKey(
    name="tasks.max.enforce",
    type=Type.BOOLEAN,
    documentation=(
        "Whether the connector fails if its source returns more tasks than tasks.max. With false all these tasks run, "
        "and the worker logs a warning. Sources of Coterie never return more."
    ),
    default="true",
    importance=Importance.LOW,
    group=COMMON_GROUP,
    order=7,
    width=Width.SHORT,
    display_name="Enforce tasks max",
)
"""The key ``tasks.max.enforce`` of every connector (KIP-1004)."""
EXACTLY_ONCE_KEY = ConfigKey(
    name="exactly.once.support",
    type=Type.STRING,
    documentation="With required, a connector whose sink may write a row twice is rejected.",
    default="requested",
    validator=one_of(("requested", "required")),
    group=COMMON_GROUP,
    order=4,
    width=Width.SHORT,
    display_name="Exactly once support",
)
"""The key by which the user requires that the sink writes each row exactly once."""


@cache
def common_connector_definition() -> ConfigDef:
    """The keys that every connector has, with any source and sink."""
    return ConfigDef(
        (
            ConfigKey(
                name="name",
                type=Type.STRING,
                documentation="Name of the connector, unique among all connectors.",
                importance=Importance.HIGH,
                validator=blank_value_error,
                group=COMMON_GROUP,
                order=0,
                width=Width.MEDIUM,
                display_name="Connector name",
            ),
            ConfigKey(
                name="connector.class",
                type=Type.CLASS,
                documentation="The plug-in: its alias or its class.",
                importance=Importance.HIGH,
                validator=OneOfPluginClasses(
                    tuple(sorted((*source_by_name(), *SINK_BY_NAME))), interface_name="Connector"
                ),
                group=COMMON_GROUP,
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
                validator=between(1, TASKS_PER_CONNECTOR_MAX),
                group=COMMON_GROUP,
                order=2,
                width=Width.SHORT,
                display_name="Tasks max",
            ),
            transforms.TRANSFORM_ALIASES_KEY,
            transforms.PREDICATE_ALIASES_KEY,
            ConfigKey(
                name="trigger.interval.ms",
                type=Type.LONG,
                documentation="Interval at which a task checks for new input; 0 means without a pause.",
                default="1000",
                validator=at_least(0),
                group=COMMON_GROUP,
                order=3,
                width=Width.SHORT,
                display_name="Trigger interval (ms)",
            ),
            EXACTLY_ONCE_KEY,
            BATCH_TIMEOUT_KEY,
            METADATA_MAX_AGE_KEY,
            TASKS_MAX_ENFORCE_KEY,
            *bad_records.DEFINITION.keys,
        )
    )


# -- keys of Connect without effect -----------------------------------------------------------------------------------

IGNORED_GROUP = "Without effect"
"""The group, in a form, of the keys of Connect that have no effect in Coterie."""
HEADER_CONVERTER_NAMES = OneOfPluginClasses(
    ("org.apache.kafka.connect.storage.SimpleHeaderConverter", *CONVERTER_NAMES.values),
    interface_name="HeaderConverter",
    also_accepted_names=frozenset(("SimpleHeaderConverter", *CONVERTER_NAMES.also_accepted_names)),
)
"""The validator of ``header.converter``."""
VERSION_KEY_SUFFIX = "plugin.version"
"""The end of the keys for the version of a plug-in (KIP-891)."""
CLASS_KEY_BY_VERSION_KEY: Mapping[str, str] = {
    f"connector.{VERSION_KEY_SUFFIX}": "connector.class",
    **{
        f"{converter}.{VERSION_KEY_SUFFIX}": converter
        for converter in ("key.converter", "value.converter", "header.converter")
    },
}
"""By the key for the version of a plug-in: the key that names the plug-in."""


def _transaction_boundary_error(value: str) -> str | None:
    """A validator of ``transaction.boundary``: None for one of Connect's three values, in upper or lower case, else the
    error message."""
    if value.upper() in ("INTERVAL", "POLL", "CONNECTOR"):
        return None
    return "String must be one of (case insensitive): INTERVAL, POLL, CONNECTOR"


def ignored_keys(*, is_source_connector: bool) -> ConfigDef:
    """The keys of Connect that have no effect in Coterie: those of every connector and, if ``is_source_connector``,
    those of source connectors. Their values are checked all the same, so that a config that Connect refuses is not
    accepted."""
    common = (
        *(
            _make_ignored_key(version_key, Type.STRING, f"There is one version of the class that {class_key} names")
            for version_key, class_key in CLASS_KEY_BY_VERSION_KEY.items()
        ),
        *(
            _make_ignored_key(
                f"{side}.converter", Type.CLASS, f"The connector reads and writes no {side}s", validator=CONVERTER_NAMES
            )
            for side in ("key", "value")
        ),
        _make_ignored_key("header.converter", Type.CLASS, "Headers are bytes", validator=HEADER_CONVERTER_NAMES),
        _make_ignored_key(
            "config.action.reload",
            Type.STRING,
            "No config provider reports that a value has changed",
            default="restart",
            validator=one_of(("none", "restart")),
        ),
    )
    of_sources = (
        _make_ignored_key("topic.creation.groups", Type.LIST, "Use topic.creation.default.* instead", default=""),
        _make_ignored_key(
            "transaction.boundary",
            Type.STRING,
            "Each batch is one transaction",
            default="poll",
            validator=_transaction_boundary_error,
        ),
        _make_ignored_key(
            "transaction.boundary.interval.ms",
            Type.LONG,
            "Each batch is one transaction; trigger.interval.ms sets the interval",
            validator=at_least(0),
        ),
        _make_ignored_key("offsets.storage.topic", Type.STRING, "The positions are in the checkpoint"),
    )
    return definition_with_order_in_groups((*common, *(of_sources if is_source_connector else ())))


def _make_ignored_key(
    name: str, type_: Type, reason: str, *, default: str | None = None, validator: Validator | None = None
) -> ConfigKey:
    """A key without effect. ``reason``: why it has none, as the end of its documentation."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=f"Without effect. {reason}.",
        default=default,
        is_optional=default is None,
        importance=Importance.LOW,
        validator=validator,
        group=IGNORED_GROUP,
        width=Width.MEDIUM,
        display_name=name,
    )


# -- all keys of a connector ------------------------------------------------------------------------------------------


def connector_definition(
    config: Mapping[str, str], source: ConfiguredSource | None, sink: ConfiguredSink | None
) -> ConfigDef:
    """All keys of a connector with ``config``. ``source`` or ``sink`` is None when ``config`` names no known source or
    sink.

    Without ``source``, the result for a sink connector contains ``source.class`` instead of the keys of a source.
    Without ``sink``, the result for a source connector contains ``sink.class`` and ``sink.format`` instead of the keys
    of a sink."""
    type_ = connector_type(config)
    source_keys = source.definition.keys if source else (source_class_key(),) if type_ == "sink" else ()
    sink_keys = sink.definition.keys if sink else (sink_class_key(), SINK_FORMAT_KEY) if type_ == "source" else ()
    ends = definition_with_order_in_groups((*source_keys, *sink_keys))
    known = common_connector_definition() + transforms.transforms_and_predicates_definition(config) + ends
    known_names = {key.name for key in known.keys}
    ignored = ignored_keys(is_source_connector=type_ == "source")
    return known + definition_with_order_in_groups(key for key in ignored.keys if key.name not in known_names)
