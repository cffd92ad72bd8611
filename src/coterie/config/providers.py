"""Config providers, with Kafka's keys: they replace the references ``${provider:path:key}`` in values of configs.

    config.providers=env,file,directory
    config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider
    config.providers.env.param.allowlist.pattern=PG_.*                       (KIP-887)
    config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider
    config.providers.file.param.allowed.paths=/run/secrets,/etc/coterie      (KIP-993)
    config.providers.directory.class=org.apache.kafka.common.config.provider.DirectoryConfigProvider

A reference is ``${env:PG_PASSWORD}``, ``${file:/run/secrets/pg.properties:password}`` or
``${directory:/run/secrets:password}`` (KIP-297, KIP-421). As in Kafka, a reference to a provider that the worker does
not have stays as it is. Every value that replaces a reference is hidden in texts (:func:`register_secret_to_hide`).
"""

import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from coterie.config.definition import split_list
from coterie.config.properties import parse_properties
from coterie.config.secrets import SecretNotHiddenError, register_secret_to_hide, replace_references
from coterie.nouns.errors import ConfigError, WorldError, invalid_value_message

log = logging.getLogger(__name__)

PROVIDERS_KEY = "config.providers"
"""The key with the names of the providers; the other keys of the providers begin with it and a dot."""
LOGGED_UNKNOWN_REFERENCES_MAX = 5
"""How many references to unknown providers the warning about a config names."""
FILE_LENGTH_MAX = 1 << 20
"""The length of the longest file that references may read, in characters, so that a reference to a file without an end
cannot fill the memory."""
_CLASS_PREFIX = "org.apache.kafka.common.config.provider."


class ConfigProvider(Protocol):
    """Looks up the values of references. Its methods may be called on any thread."""

    def value_of(self, path: str, key: str) -> str:
        """The value of the reference with ``path`` and ``key``; ``path`` is empty if the reference has none. Each call
        reads the value again.

        :raises WorldError: when there is no such value, or the provider may not read it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVarConfigProvider:
    """Kafka's provider of environment variables: ``${env:NAME}``."""

    allowed_name_pattern: re.Pattern[str]
    """The names of the variables that references may read."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """The provider with Kafka's parameter ``allowlist.pattern``, by default all names.

        :raises ValueError: when the pattern is no regular expression.
        """
        pattern = parameters.get("allowlist.pattern", "").strip() or ".*"
        try:
            return cls(allowed_name_pattern=re.compile(pattern))
        except re.error as error:
            raise ValueError(f"allowlist.pattern {pattern} is not a regular expression: {error}") from None

    def value_of(self, path: str, key: str) -> str:
        if path:
            raise WorldError(f"A reference to an environment variable has no path, but this one has the path {path}")
        if not self.allowed_name_pattern.fullmatch(key):
            raise WorldError(f"The worker's allowlist.pattern does not allow the environment variable {key}")
        if (value := os.environ.get(key)) is None:
            raise WorldError(f"The worker has no environment variable {key}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedPaths:
    """The files and folders that references may read."""

    paths: tuple[Path, ...] | None
    """Absolute paths, each with everything below it; None: every path is allowed."""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """The paths of Kafka's parameter ``allowed.paths``, by default all.

        :raises ValueError: when a path is not absolute or does not exist.
        """
        if not (texts := [text for text in split_list(parameters.get("allowed.paths", "")) if text]):
            return cls(paths=None)
        for text in texts:
            if not os.path.isabs(text):
                raise ValueError(f"the path {text} of allowed.paths is not absolute")
            if not os.path.exists(text):
                raise ValueError(f"the path {text} of allowed.paths does not exist")
        return cls(paths=tuple(Path(os.path.normpath(text)) for text in texts))

    def check_and_normalize(self, path: str) -> Path:
        """``path`` as an absolute path without ``..``, after a check that references may read it.

        :raises WorldError: when ``path`` is not absolute or not allowed, or contains NUL, which no path of a file does.
        """
        if "\0" in path:
            raise WorldError(f"The path {path!r} contains the character NUL")
        if not os.path.isabs(path):
            raise WorldError(f"The path {path or '(empty)'} is not absolute")
        # As in Kafka, the same normalized path is checked and read, so that `..` after a link leads nowhere else.
        normalized = Path(os.path.normpath(path))
        if self.paths is not None and not any(normalized.is_relative_to(allowed) for allowed in self.paths):
            raise WorldError(f"The worker's allowed.paths do not allow the path {path}")
        return normalized


@dataclass(frozen=True, slots=True, kw_only=True)
class _PathConfigProvider:
    """The common part of the providers that read files below allowed paths."""

    allowed_paths: AllowedPaths

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Self:
        """The provider with Kafka's parameter ``allowed.paths``, by default all paths.

        :raises ValueError: when a path is not absolute or does not exist.
        """
        return cls(allowed_paths=AllowedPaths.from_parameters(parameters))


def _read_file(path: Path) -> str:
    """The text of the file ``path``.

    :raises WorldError: when ``path`` is no regular file, but for example a device or a folder, or has more than
        :data:`FILE_LENGTH_MAX` characters.
    :raises OSError: when the file cannot be read.
    :raises UnicodeDecodeError: when the file is not UTF-8.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise WorldError(f"{path} is not a regular file")
    with path.open(encoding="utf-8") as file:
        text = file.read(FILE_LENGTH_MAX + 1)
    if len(text) > FILE_LENGTH_MAX:
        raise WorldError(f"The file {path} has more than {FILE_LENGTH_MAX} characters, the limit for config providers")
    return text


class FileConfigProvider(_PathConfigProvider):
    """Kafka's provider of values in properties files: ``${file:/path/to/file.properties:key}``."""

    def value_of(self, path: str, key: str) -> str:
        file = self.allowed_paths.check_and_normalize(path)
        try:
            values = parse_properties(_read_file(file))
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            # The system's reason only: a message about the text could quote a secret.
            reason = f": {error.strerror}" if isinstance(error, OSError) else ": it is not a properties file in UTF-8"
            raise WorldError(f"Could not read properties from file {path}{reason}") from None
        if key not in values:
            raise WorldError(f"The file {path} has no key {key}")
        return values[key]


class DirectoryConfigProvider(_PathConfigProvider):
    """Kafka's provider of values that are each the content of one file, as Kubernetes mounts secrets:
    ``${directory:/path/to/folder:file}``."""

    def value_of(self, path: str, key: str) -> str:
        folder = self.allowed_paths.check_and_normalize(path)
        if not key or key in (".", "..") or "/" in key or "\0" in key:
            raise WorldError(f"{key or '(empty)'} is not the name of a file")
        try:
            return _read_file(folder / key)
        except OSError as error:
            raise WorldError(f"Could not read file {key} in {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise WorldError(f"Could not read file {key} in {path}: it is not UTF-8") from None


_PROVIDER_CLASS_BY_NAME: Mapping[str, type[EnvVarConfigProvider | FileConfigProvider | DirectoryConfigProvider]] = {
    _CLASS_PREFIX + provider.__name__: provider
    for provider in (EnvVarConfigProvider, FileConfigProvider, DirectoryConfigProvider)
}
"""The classes of providers, by the names that they have in Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProviders:
    """The config providers of a worker, by the names with which references name them. Replaces the references in
    configs. A reference to a provider that the worker does not have stays as it is, without an error. Each value that
    replaces a reference is hidden in texts from then on."""

    by_name: Mapping[str, ConfigProvider] = field(default_factory=dict)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The providers that the keys of a worker file define; other keys are ignored.

        :raises ConfigError: lists each invalid or missing key, with the reason.
        """
        providers: dict[str, ConfigProvider] = {}
        errors: dict[str, list[str]] = {}
        for name in split_list(properties.get(PROVIDERS_KEY, "")):
            class_key = f"{PROVIDERS_KEY}.{name}.class"
            class_name = properties.get(class_key, "").strip()
            if (provider_class := _PROVIDER_CLASS_BY_NAME.get(class_name)) is None:
                reason = f"must be one of {', '.join(_PROVIDER_CLASS_BY_NAME)}"
                errors[class_key] = [invalid_value_message(class_key, class_name or "''", reason)]
                continue
            prefix = f"{PROVIDERS_KEY}.{name}.param."
            parameters = {
                key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)
            }
            try:
                providers[name] = provider_class.from_parameters(parameters)
            except ValueError as error:
                errors[prefix.removesuffix(".")] = [f"Invalid parameter of the config provider {name}: {error}"]
        if errors:
            raise ConfigError(errors)
        return cls(by_name=providers)

    def resolve(self, config: Mapping[str, str]) -> dict[str, str]:
        """``config`` with the values of its references in their places. The values are hidden in texts from now on
        (:func:`coterie.config.secrets.hide_secrets`). May block, because it reads files. A reference to a provider that
        the worker does not have stays as it is; one warning names such references.

        :raises ConfigError: when a provider of this worker has no value for a reference, or may not read it; names each
            key whose value has such a reference.
        :raises SecretNotHiddenError: when a value cannot be hidden everywhere.
        """
        resolved, errors = self._resolve(config)
        if errors:
            raise ConfigError(errors)
        return resolved

    def resolve_where_possible(self, config: Mapping[str, str]) -> dict[str, str]:
        """``config`` like :meth:`resolve`, but a value whose reference cannot be resolved any more stays as it is. For
        former configs, which are only compared.

        :raises SecretNotHiddenError: when a value cannot be hidden everywhere.
        """
        resolved, errors = self._resolve(config)
        return resolved | {key: config[key] for key in errors}

    def _resolve(self, config: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]]]:
        """The values of ``config`` whose references could be resolved, and the error of each other key.

        :raises SecretNotHiddenError: when a value cannot be hidden everywhere.
        """
        resolved: dict[str, str] = {}
        errors: dict[str, list[str]] = {}
        # Ordered and without repetitions.
        unknown_references: dict[str, None] = {}

        def replacement(reference: re.Match[str]) -> str:
            name, path, key = reference[1], reference[2] or "", reference[3]
            if (provider := self.by_name.get(name)) is None:
                unknown_references[reference[0]] = None
                return reference[0]
            value = provider.value_of(path, key)
            register_secret_to_hide(value)
            return value

        for key, value in config.items():
            try:
                resolved[key] = replace_references(value, replacement)
            except SecretNotHiddenError:
                raise
            except WorldError as error:
                errors[key] = [f"The value of {key} refers to a value that cannot be read: {error}"]
        if unknown_references:
            _log_unknown_references(list(unknown_references))
        return resolved, errors


def _log_unknown_references(references: Sequence[str]) -> None:
    """Log one warning about ``references`` to providers that the worker does not have."""
    named = ", ".join(references[:LOGGED_UNKNOWN_REFERENCES_MAX])
    if (others := len(references) - LOGGED_UNKNOWN_REFERENCES_MAX) > 0:
        named += f" and {others} more"
    log.warning(
        "References of a config are not replaced by values, because the worker's %s lacks their providers: %s",
        PROVIDERS_KEY,
        named,
    )
