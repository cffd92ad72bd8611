"""Secret values in configs."""

import threading
from collections.abc import Sequence

import pytest

from coterie.config.providers import ConfigProviders
from coterie.config.secrets import (
    MASK,
    SecretNotHiddenError,
    add_secrets_follower_and_call_it,
    contains_reference,
    hide_secrets,
    masked_config,
    register_secret_to_hide,
    remove_secrets_follower,
)


@pytest.mark.parametrize(
    "key",
    [
        "sink.connection.password",
        "consumer.override.sasl.jaas.config",
        "sink.option.fs.s3a.secret.key",
        "source.option.accessKey",
        "ssl.key.password",
        "token",
        "ssl.key.pem",
        "db.pwd",
        "dbPwd",
        "sink.connection.pass",
        "passcode",
        "fs.s3a.encryption.key",
    ],
)
def test_the_values_of_keys_named_like_secrets_are_hidden(key: str) -> None:
    assert masked_config({key: "hunter2"}) == {key: "[hidden]"}


KAFKA_CLIENTS_PASSWORDS = (
    "sasl.jaas.config",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.password",
)
"""The properties of the type PASSWORD of the consumer, producer and admin client of Kafka 4.3."""


@pytest.mark.parametrize("prefix", ["", "source.", "sink.", "source.option.", "sink.option.", "kafka."])
@pytest.mark.parametrize("override", ["", "consumer.override.", "producer.override.", "admin.override."])
def test_each_password_of_kafkas_clients_is_hidden_with_each_prefix(prefix: str, override: str) -> None:
    keys = [prefix + override + name for name in KAFKA_CLIENTS_PASSWORDS]
    assert masked_config(dict.fromkeys(keys, "x")) == dict.fromkeys(keys, MASK)


@pytest.mark.parametrize(
    "key",
    [
        "key.converter",
        "sink.key.fields",
        "pk.fields",
        "name",
        "topics",
        "passes",
        "bypass",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.truststore.location",
        "config",
        "design",
    ],
)
def test_other_values_stay(key: str) -> None:
    assert masked_config({key: "id"}) == {key: "id"}


def test_a_url_with_a_password_is_hidden_and_one_without_stays() -> None:
    shown = {"b": "postgresql://db:5432/x", "c": "jdbc:postgresql://db/x?u=a"}
    hidden = {"a": "postgresql://etl:s3cr3t@db:5432/x", "d": "jdbc:postgresql://db/x?user=a&password=b"}
    assert masked_config({**shown, **hidden}) == {**shown, "a": "[hidden]", "d": "[hidden]"}


@pytest.mark.parametrize(
    ("value", "is_secret"),
    [
        ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=b==;EndpointSuffix=core.windows.net", True),
        ("AccountKey=b==;AccountName=a", True),
        ("Endpoint=sb://a.example/; SharedAccessKeyName=n; SharedAccessKey=k", True),
        ("https://a.blob.example/x?sv=2024&sig=abc%3D", True),
        ("https://s3.example/x?X-Amz-Signature=abc&X-Amz-Security-Token=t", True),
        ("jdbc:sqlserver://db;user=a;pwd=b", True),
        ("DefaultEndpointsProtocol=https;AccountName=a", False),
        ("https://a.example/x?sv=2024&design=1", False),
        ("SELECT token FROM t WHERE token = 1 AND sig > 2", False),
    ],
)
def test_a_value_with_a_secret_parameter_is_hidden(value: str, is_secret: bool) -> None:
    assert masked_config({"k": value}) == {"k": MASK if is_secret else value}


LONG_TEXTS = [
    "://" + ":" * 800_000,
    "http://a:" + "b" * 800_000,
    "${" + ":" * 800_000,
    "${" * 50_000 + "}",
    "}${" + "a:" * 400_000,
    "?" + "a" * 800_000,
    "; " * 400_000,
    ";" + " " * 800_000,
]
"""Texts for which the time of a careless pattern grows with the square, or the cube, of their length."""


@pytest.mark.timeout(60)  # The square would take minutes, also for these lengths.
@pytest.mark.parametrize("text", LONG_TEXTS, ids=range(len(LONG_TEXTS)))
def test_long_texts_are_searched_in_proportion_to_their_length(text: str) -> None:
    assert masked_config({"key": text}) == {"key": text}
    assert ConfigProviders().resolve({"key": text}) == {"key": text}
    assert not contains_reference(text)


def test_a_reference_to_a_secret_is_not_secret() -> None:
    config = {"password": "${env:DB_PASSWORD}", "token": "x${env:A}"}
    assert masked_config(config) == {"password": "${env:DB_PASSWORD}", "token": "[hidden]"}


@pytest.mark.parametrize("value", ["${:hunter2}", "${env:}", "${:}", "${hunter2}"])
def test_a_text_that_no_provider_resolves_is_hidden(value: str) -> None:
    assert masked_config({"password": value}) == {"password": "[hidden]"}


def test_a_follower_receives_all_values_the_longest_first_until_it_is_removed() -> None:
    received: list[Sequence[str]] = []
    register_secret_to_hide("followed-1")
    add_secrets_follower_and_call_it(received.append)
    assert "followed-1" in received[-1]
    register_secret_to_hide("before followed-1")
    assert received[-1].index("before followed-1") < received[-1].index("followed-1")
    register_secret_to_hide("followed-1")
    assert len(received) == 2
    remove_secrets_follower(received.append)
    remove_secrets_follower(received.append)
    register_secret_to_hide("followed-2")
    assert len(received) == 2


class OneValue:
    def value_of(self, path: str, key: str) -> str:
        return "hard to hide"


def test_a_value_that_a_follower_cannot_hide_is_not_used_and_is_tried_again() -> None:
    received: list[Sequence[str]] = []
    is_broken = True

    def follow(texts: Sequence[str]) -> None:
        if is_broken:
            raise SecretNotHiddenError("no connection")
        received.append(texts)

    with pytest.raises(SecretNotHiddenError):
        add_secrets_follower_and_call_it(follow)
    register_secret_to_hide("not followed")
    is_broken = False
    add_secrets_follower_and_call_it(follow)
    try:
        is_broken = True
        for _ in range(2):
            with pytest.raises(SecretNotHiddenError):
                ConfigProviders(by_name={"env": OneValue()}).resolve({"key": "${env:NAME}"})
        assert hide_secrets("hard to hide") == MASK
        is_broken = False
        register_secret_to_hide("hard to hide")
        assert "hard to hide" in received[-1]
    finally:
        remove_secrets_follower(follow)


def test_a_follower_that_takes_long_delays_no_known_value_and_no_removal() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(texts: Sequence[str]) -> None:
        if "slowly-followed" in texts:
            entered.set()
            go_on.wait(30)

    register_secret_to_hide("known-before")
    add_secrets_follower_and_call_it(wait)
    register_secret_to_hide("known-before-the-wait")
    thread = threading.Thread(target=register_secret_to_hide, args=("slowly-followed",))
    thread.start()
    try:
        assert entered.wait(30)
        register_secret_to_hide("known-before-the-wait")
        remove_secrets_follower(wait)
        assert hide_secrets("slowly-followed") == MASK
        assert thread.is_alive()
    finally:
        go_on.set()
        thread.join()
