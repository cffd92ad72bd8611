"""The plug-ins and the results of validations as JSON, with the fields of Kafka Connect's responses."""

from collections.abc import Iterable

from coterie.config.definition import ConfigKey
from coterie.config.infos import ConfigInfo, ConfigInfos
from coterie.config.plugins import Plugin
from coterie.rest.views import Json


def plugins_json(plugins: Iterable[Plugin]) -> list[Json]:
    """The JSON of ``GET /connector-plugins``."""
    return [
        {
            "class": plugin.class_name,
            "type": plugin.type.value,
            **({} if plugin.version is None else {"version": plugin.version}),
        }
        for plugin in plugins
    ]


def config_keys_json(keys: Iterable[ConfigKey]) -> list[Json]:
    """The JSON of ``GET /connector-plugins/{plugin}/config``."""
    return [_config_key_json(key) for key in keys]


def config_infos_json(infos: ConfigInfos) -> Json:
    """The JSON of ``PUT /connector-plugins/{plugin}/config/validate``."""
    return {
        "name": infos.connector_class,
        "error_count": infos.error_count,
        "groups": list(infos.groups),
        "configs": [
            {
                "definition": None if info.key is None else _config_key_json(info.key),
                "value": _config_value_json(info),
            }
            for info in infos.configs
        ],
    }


def _config_key_json(key: ConfigKey) -> Json:
    """``key``, the definition of a config key, as JSON. All fields, also ``order_in_group``, have their names in Kafka
    Connect 4.3."""
    return {
        "name": key.name,
        "type": key.type.value,
        "required": key.is_required,
        "default_value": key.shown_value(key.default),
        "importance": key.importance.value,
        "documentation": key.documentation,
        "group": key.group,
        "order_in_group": key.order,
        "width": key.width.value,
        "display_name": key.display_name or key.name,
        "dependents": list(key.dependents),
    }


def _config_value_json(info: ConfigInfo) -> Json:
    return {
        "name": info.name,
        "value": info.value,
        "recommended_values": [] if info.key is None else list(info.key.recommended_values),
        "errors": list(info.errors),
        "visible": info.is_visible,
    }
