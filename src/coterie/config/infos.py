"""The result of a validation, with the fields of Kafka Connect's ``ConfigInfos``: for each key its definition, its
value and its errors. User interfaces for Connect make their forms from it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.config.definition import ConfigDef, ConfigKey, OneOfPluginClasses, Type
from coterie.config.secrets import contains_reference

NULL_VALUE_ERROR = "Null value can not be supplied as the configuration value."
"""Connect's message about a key whose value is null in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfo:
    """One key of a validated config: its definition, its value and its errors."""

    name: str
    key: ConfigKey | None
    """The definition of the key; None for a key that has an error and is in no definition."""
    value: str | None = field(repr=False)
    """The parsed value as text, or the default; ``[hidden]`` for a password. None when there is none, and for a value
    that is not of the key's type."""
    errors: tuple[str, ...] = field(default=(), repr=False)
    """The error messages about the value; they may contain the value."""
    is_visible: bool = True
    """Whether a form shows the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfos:
    """The result of the validation of a connector's config. ``connector_class`` is the class as the config names it,
    also if there is no such class. ``error_count`` counts messages; ``errors`` has only the keys with messages. If a
    property of a Kafka client (such as ``producer.override.linger.ms``) has a value of another type, Connect refuses
    the whole request with ``client_property_type_error``."""

    connector_class: str
    """The class of the connector, as the config names it."""
    configs: tuple[ConfigInfo, ...]
    """All keys that the connector has with this config, and all other keys with an error, in the order of a form."""
    client_property_type_error: str | None = field(default=None, repr=False)
    """The message about a property of a Kafka client, such as ``producer.override.linger.ms``, whose value is not of
    the property's type. Connect refuses the request then, instead of reporting the error of the key. None: there is no
    such value."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The headings of the form, in the order of their first keys."""
        groups = (info.key.group for info in self.configs if info.key is not None)
        return tuple(dict.fromkeys(group for group in groups if group is not None))

    @property
    def error_count(self) -> int:
        """The number of error messages of all keys."""
        return sum(len(info.errors) for info in self.configs)

    @property
    def errors(self) -> dict[str, list[str]]:
        """The error messages by key. A key without errors is not in the result: for a valid config the result is
        empty."""
        return {info.name: list(info.errors) for info in self.configs if info.errors}

    @property
    def unknown_class_message(self) -> str | None:
        """Connect's message for a config whose ``connector.class`` is no source or sink. It lists the names of all
        sources and sinks, where Connect lists Java's objects. None if the class is a source or sink, if the definition
        of ``connector.class`` does not list the classes, and if the config contains a reference instead of a class:
        only the runtime knows the value of a reference."""
        class_key = next((info.key for info in self.configs if info.name == "connector.class"), None)
        if class_key is None or not isinstance(class_key.validator, OneOfPluginClasses):
            return None
        names = class_key.validator
        if names(self.connector_class.strip()) is None or contains_reference(self.connector_class):
            return None
        return (
            f"Failed to find any class that implements Connector and which name matches {self.connector_class}, "
            f"available connectors are: {', '.join(names.values)}"
        )

    def with_errors_replaced(self, errors_by_key: Mapping[str, Sequence[str]]) -> "ConfigInfos":
        """A copy in which the errors of each key in ``errors_by_key`` are replaced by these errors. A key that is not
        among :attr:`configs` is added, without a definition and a value."""
        known_keys = {info.name for info in self.configs}
        changed = (replace(info, errors=tuple(errors_by_key.get(info.name, info.errors))) for info in self.configs)
        return replace(self, configs=(*changed, *_infos_of_unknown_keys(errors_by_key, known_keys)))

    def with_nulls_as_errors(self, keys: Iterable[str]) -> "ConfigInfos":
        """A copy for a config in which each of ``keys`` has the value null in JSON. In the copy these keys have no
        value, and their errors are replaced by the errors of a null."""
        null_keys = list(keys)
        without_values = replace(
            self,
            configs=tuple(
                replace(info, value=None, errors=() if info.key is None else info.key.validator_errors_for_null)
                if info.name in null_keys
                else info
                for info in self.configs
            ),
        )
        own_errors = without_values.errors
        return without_values.with_errors_replaced(
            {key: [*own_errors.get(key, ()), NULL_VALUE_ERROR] for key in null_keys}
        )


def make_config_infos(
    name: str,
    definition: ConfigDef,
    config: Mapping[str, str],
    errors_by_key: Mapping[str, Sequence[str]],
    *,
    config_with_references: Mapping[str, str] | None = None,
) -> ConfigInfos:
    """The result of a validation of ``config`` with the keys of ``definition``. ``name`` is the connector's class, as
    the config names it. A key of ``errors_by_key`` that is not in ``definition`` is added, without a definition and a
    value.

    ``config_with_references`` is the config as the client sent it, with references where ``config`` has their secrets;
    None: the client sent ``config`` itself. The result contains the references, not the secrets.
    """
    configs = tuple(
        ConfigInfo(
            name=key.name,
            key=key,
            value=_shown_value(key, config, config if config_with_references is None else config_with_references),
            errors=tuple(errors_by_key.get(key.name, ())),
        )
        for key in definition.keys
    )
    known_keys = {key.name for key in definition.keys}
    return ConfigInfos(connector_class=name, configs=(*configs, *_infos_of_unknown_keys(errors_by_key, known_keys)))


def _shown_value(key: ConfigKey, config: Mapping[str, str], config_with_references: Mapping[str, str]) -> str | None:
    """The value of ``key`` for :attr:`ConfigInfo.value`: ``[hidden]`` for a password. For any other key whose value has
    a reference to a secret, it is the value as the client sent it; else the parsed value as text. None when the key has
    neither a value nor a default, or the value is not of the key's type or names an unknown class."""
    written_value = config_with_references.get(key.name, key.default)
    is_reference = written_value != config.get(key.name, key.default) and key.type is not Type.PASSWORD
    return written_value if is_reference else key.shown_value(written_value)


def _infos_of_unknown_keys(errors_by_key: Mapping[str, Sequence[str]], known_keys: Iterable[str]) -> list[ConfigInfo]:
    """An entry for each key of ``errors_by_key`` that is not among ``known_keys``. Their values are left out: without a
    definition it is unknown whether a value is a password."""
    names = [name for name in errors_by_key if name not in set(known_keys)]
    return [ConfigInfo(name=name, key=None, value=None, errors=tuple(errors_by_key[name])) for name in names]
