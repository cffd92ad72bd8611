"""References in configs, resolved by Kafka's three providers; and the secrets hidden in texts.

The process hides each resolved value from then on: the values are texts that no other test contains."""

import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest

from coterie.config.providers import FILE_LENGTH_MAX, ConfigProviders, DirectoryConfigProvider
from coterie.config.secrets import HIDDEN_SIZE_MIN, hide_secrets, masked_config, register_secret_to_hide
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import ConfigError

REQUIRED = {
    "group.id": "g",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
    "checkpoint.location": "/tmp",
}
CLASSES = "org.apache.kafka.common.config.provider."
THREE = {
    "config.providers": "env, file,directory",
    "config.providers.env.class": f"{CLASSES}EnvVarConfigProvider",
    "config.providers.file.class": f"{CLASSES}FileConfigProvider",
    "config.providers.directory.class": f"{CLASSES}DirectoryConfigProvider",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "pg.properties").write_text("password=a\\u00e9b \nuser: u\n")
    (secrets / "token").write_text("token-part-1\ntoken-part-2\n")
    (tmp_path / "outside").write_text("outside=1\n")
    return secrets


def resolve(properties: dict[str, str], value: str) -> str:
    return ConfigProviders.from_properties({**THREE, **properties}).resolve({"key": value})["key"]


def error(properties: dict[str, str], value: str) -> str:
    with pytest.raises(ConfigError) as refused:
        resolve(properties, value)
    assert refused.value.errors.keys() == {"key"}
    return str(refused.value)


def test_each_reference_is_replaced_and_all_other_text_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAME", "value-of-name")
    monkeypatch.setenv("NESTED", "${env:INNER}")
    assert resolve({}, "${env:NAME}") == "value-of-name"
    assert resolve({}, "a ${env:NAME}, ${env:NAME}$") == "a value-of-name, value-of-name$"
    assert resolve({}, f"${{file:{folder}/pg.properties:password}}") == "aéb "
    assert resolve({}, f"u=${{file:{folder}/pg.properties:user}}") == "u=u"
    assert resolve({}, f"${{directory:{folder}:token}}") == "token-part-1\ntoken-part-2\n"
    # As in Kafka: values are not resolved again; what is no reference to a provider of this worker stays.
    assert resolve({}, "${env:NESTED}") == "${env:INNER}"
    for text in ("$", "${", "${1}", "${NAME}", "$env:NAME", "${vault:x:y}", "{env:NAME}"):
        assert resolve({}, text) == text
    assert ConfigProviders().resolve({"a": "${env:NAME}"}) == {"a": "${env:NAME}"}


def test_one_warning_names_the_references_to_unknown_providers(caplog: pytest.LogCaptureFixture) -> None:
    config = {"a": "${vault:p:0}" * 2, "b": "".join(f"${{vault:p:{number}}}" for number in range(1_000))}
    providers = ConfigProviders.from_properties({})
    for resolve_config in (providers.resolve, providers.resolve_where_possible):
        caplog.clear()
        assert resolve_config(config) == config
        (text,) = caplog.messages
        assert text.endswith("${vault:p:0}, ${vault:p:1}, ${vault:p:2}, ${vault:p:3}, ${vault:p:4} and 995 more")
    caplog.clear()
    assert providers.resolve({"a": "text"}) == {"a": "text"}
    assert caplog.messages == []


def test_a_changed_value_counts_at_once(folder: Path) -> None:
    providers = ConfigProviders.from_properties(THREE)
    reference = {"a": f"${{directory:{folder}:token}}"}
    before = providers.resolve(reference)
    (folder / "token").write_text("token-rotated")
    assert (before["a"], providers.resolve(reference)["a"]) == ("token-part-1\ntoken-part-2\n", "token-rotated")


def test_each_failure_names_the_key_and_the_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ABSENT", raising=False)
    monkeypatch.setenv("PG_X", "value-of-pg-x")
    assert "no environment variable ABSENT" in error({}, "${env:ABSENT}")
    assert "has no path" in error({}, "${env:a:PG_X}")
    pattern = {"config.providers.env.param.allowlist.pattern": "PG_[A-Z]"}
    assert resolve(pattern, "${env:PG_X}") == "value-of-pg-x"
    assert "does not allow the environment variable PATH" in error(pattern, "${env:PATH}")
    assert "does not allow" in error(pattern, "${env:PG_XY}")
    assert "Could not read properties from file /nonexistent: No such file" in error({}, "${file:/nonexistent:pw}")
    assert "is not absolute" in error({}, "${file:pw}")
    assert "has no key none" in error({}, f"${{file:{folder}/pg.properties:none}}")
    (folder / "bytes").write_bytes(b"a=\xff")
    assert "not a properties file in UTF-8" in error({}, f"${{file:{folder}/bytes:a}}")
    assert "Could not read file none in" in error({}, f"${{directory:{folder}:none}}")
    for name in ("../outside", "..", ".", "", "a/b"):
        assert "is not the name of a file" in error({}, f"${{directory:{folder}:{name}}}")
    with pytest.raises(ConfigError) as both:
        ConfigProviders.from_properties(THREE).resolve({"a": "${env:ABSENT}", "b": "1", "c": "${file:/none:x}"})
    assert both.value.errors.keys() == {"a", "c"}


def test_a_path_with_nul_is_an_error_of_its_key(folder: Path) -> None:
    allowed = {f"config.providers.{name}.param.allowed.paths": f"{folder}" for name in ("file", "directory")}
    for properties in ({}, allowed):
        assert "contains the character NUL" in error(properties, f"${{file:{folder}/a\0b:user}}")
        assert "contains the character NUL" in error(properties, f"${{directory:{folder}/a\0b:token}}")


@pytest.mark.timeout(30)
def test_only_regular_files_up_to_a_limit_are_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "token")
    assert resolve({}, f"${{directory:{folder}:link}}") == "token-part-1\ntoken-part-2\n"
    for path in ("/dev/zero", f"{folder}/pipe", f"{folder}"):
        assert f"{path} is not a regular file" in error({}, f"${{file:{path}:x}}")
    assert f"{folder}/pipe is not a regular file" in error({}, f"${{directory:{folder}:pipe}}")
    (folder / "longest").write_text("é" * FILE_LENGTH_MAX)
    (folder / "too-long").write_text("é" * FILE_LENGTH_MAX + "=")
    provider = DirectoryConfigProvider.from_parameters({})
    assert len(provider.value_of(f"{folder}", "longest")) == FILE_LENGTH_MAX
    assert "more than 1048576 characters" in error({}, f"${{directory:{folder}:too-long}}")
    assert "more than 1048576 characters" in error({}, f"${{file:{folder}/too-long:x}}")


def test_only_allowed_paths_are_read_and_dots_lead_nowhere(folder: Path) -> None:
    allowed = {"config.providers.file.param.allowed.paths": f"{folder}/pg.properties, {folder}"}
    assert resolve(allowed, f"${{file:{folder}/pg.properties:user}}") == "u"
    assert resolve(allowed, f"${{file:{folder}/../{folder.name}/pg.properties:user}}") == "u"
    outside = folder.parent / "outside"
    for path in (outside, f"{folder}/../outside", f"{folder}-2/pg.properties", "/etc/hostname"):
        assert "do not allow the path" in error(allowed, f"${{file:{path}:outside}}")
    # A link to another folder: `..` after it is removed before the file is opened, as in Kafka.
    (folder / "link").symlink_to("/etc")
    assert "has no key" in error(allowed, f"${{file:{folder}/link/../pg.properties:none}}")
    directory = {"config.providers.directory.param.allowed.paths": str(folder)}
    assert "do not allow the path" in error(directory, f"${{directory:{folder.parent}:outside}}")


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"config.providers.env.class": "a.B"}, "config.providers.env.class", "must be one of org.apache"),
        ({"config.providers": "env,x"}, "config.providers.x.class", "Invalid value ''"),
        ({"config.providers.env.param.allowlist.pattern": "("}, "config.providers.env.param", "regular expression"),
        ({"config.providers.file.param.allowed.paths": "a"}, "config.providers.file.param", "not absolute"),
        ({"config.providers.file.param.allowed.paths": "/none/x"}, "config.providers.file.param", "does not exist"),
    ],
)
def test_wrong_settings_of_a_provider_are_errors_of_their_keys(changes: dict[str, str], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        WorkerSettings.from_properties({**REQUIRED, **THREE, **changes})
    assert refused.value.errors.keys() == {key}
    assert words in str(refused.value)


def test_a_worker_file_refers_to_its_own_providers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_USER", "value-of-worker-user")
    properties = {
        **REQUIRED,
        **THREE,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "${env:WORKER_USER}",
        "sasl.password": f"${{file:{folder}/pg.properties:password}}",
        "spark.hadoop.fs.s3a.secret.key": "${env:WORKER_USER}",
    }
    settings = WorkerSettings.from_properties(properties)
    assert settings.security.username == "value-of-worker-user"
    assert settings.spark == {"spark.hadoop.fs.s3a.secret.key": "value-of-worker-user"}
    assert settings.providers.by_name.keys() == {"env", "file", "directory"}
    assert WorkerSettings.unknown_keys(properties) == []
    with pytest.raises(ConfigError) as refused:
        WorkerSettings.from_properties({**properties, "sasl.password": "${env:NONE_SUCH}"})
    assert refused.value.errors.keys() == {"sasl.password"}


def test_a_resolved_value_is_hidden_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORMS", ' p&"w\\ä\n-second line ')
    assert hide_secrets("-second line") == "-second line"
    value = resolve({}, "${env:FORMS}")
    for text in (value, value.strip(), json.dumps({"a": value}), repr(value), quote(value), quote(value, safe="")):
        hidden = hide_secrets(f"before {text} after")
        assert not [part for part in ("second", "p&", "w\\") if part in hidden], text
        assert [part for part in ("before", "after") if part in hidden] == ["before", "after"]
    assert hide_secrets("the second: -second line.") == "the second: [hidden]."


def test_a_short_value_is_not_hidden_because_it_is_in_many_words() -> None:
    register_secret_to_hide("q" * (HIDDEN_SIZE_MIN - 1))
    assert hide_secrets("qqq") == "qqq"
    register_secret_to_hide("q" * HIDDEN_SIZE_MIN)
    assert hide_secrets("qqqqq") == "[hidden]q"


def test_a_reference_is_shown_where_secrets_are_masked() -> None:
    assert masked_config({"db.password": "${env:A}", "password": "x"}) == {
        "db.password": "${env:A}",
        "password": "[hidden]",
    }
