"""A worker's security settings, in the syntax of Connect and of librdkafka."""

import re

import pytest

from coterie.config.security import KafkaSecurity
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import ConfigError

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
NEEDED = {
    "group.id": "g",
    "config.storage.topic": "c",
    "offset.storage.topic": "o",
    "status.storage.topic": "s",
    "checkpoint.location": "/tmp",
}


def errors(properties: dict[str, str]) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        KafkaSecurity.from_properties(properties)
    return {key: " ".join(messages) for key, messages in refused.value.errors.items()}


def test_without_keys_a_connection_is_plaintext() -> None:
    assert KafkaSecurity.from_properties({}) == KafkaSecurity()


@pytest.mark.parametrize(
    "credentials",
    [
        {"sasl.username": "alice", "sasl.password": 'a "pass\\word"'},
        {
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="alice" password="a \\"pass\\\\word\\"";'
        },
        {
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required\n"
            '  password="a \\"pass\\\\word\\""\n  username=alice;\n'
        },
    ],
    ids=["librdkafka", "java", "java, over lines"],
)
def test_user_and_password_are_read_in_the_syntax_of_java_and_of_librdkafka(credentials: dict[str, str]) -> None:
    found = KafkaSecurity.from_properties(SASL | credentials)
    assert (found.protocol, found.mechanism, found.username) == ("SASL_SSL", "SCRAM-SHA-512", "alice")
    assert found.password == 'a "pass\\word"'
    assert found.has_sasl
    assert found.has_tls
    assert "pass" not in repr(found)


def test_certificates_are_read_in_the_syntax_of_java_and_of_librdkafka() -> None:
    java = KafkaSecurity.from_properties(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": "ca.pem",
            "ssl.truststore.type": "PEM",
            "ssl.keystore.location": "both.pem",
            "ssl.keystore.type": "PEM",
            "ssl.key.password": "secret",
        }
    )
    librdkafka = KafkaSecurity.from_properties(
        {
            "security.protocol": "ssl",
            "ssl.ca.location": "ca.pem",
            "ssl.certificate.location": "both.pem",
            "ssl.key.location": "both.pem",
            "ssl.key.password": "secret",
        }
    )
    assert java == librdkafka
    assert java.verifies_hostname


@pytest.mark.parametrize("algorithm", ["", "none", " NONE "])
def test_the_check_of_the_host_name_can_be_switched_off(algorithm: str) -> None:
    found = KafkaSecurity.from_properties({"ssl.endpoint.identification.algorithm": algorithm})
    assert not found.verifies_hostname


@pytest.mark.parametrize(
    ("properties", "key", "pattern"),
    [
        ({"security.protocol": "TLS"}, "security.protocol", "must be one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism", "GSSAPI .*must be one of PLAIN, SCRAM"),
        (SASL, "sasl.username", "Missing required"),
        (SASL | {"sasl.username": "a"}, "sasl.password", "Missing required"),
        (SASL | {"sasl.jaas.config": "nonsense secret"}, "sasl.jaas.config", r"\[hidden\]"),
        (
            SASL | {"sasl.jaas.config": 'a.PlainLoginModule required username="a" password="b";'},
            "sasl.jaas.config",
            "ScramLoginModule",
        ),
        ({"security.protocol": "SSL", "ssl.truststore.location": "x.jks"}, "ssl.truststore.type", "keytool"),
        ({"security.protocol": "SSL", "ssl.key.location": "x"}, "ssl.certificate.location", "must be set together"),
        ({"ssl.endpoint.identification.algorithm": "x"}, "ssl.endpoint.identification.algorithm", "https"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key(properties: dict[str, str], key: str, pattern: str) -> None:
    found = errors(properties)
    assert key in found
    assert re.search(pattern, found[key])


def test_a_worker_reads_the_security_keys_and_reports_all_errors_at_once() -> None:
    given = NEEDED | SASL | {"sasl.username": "alice", "sasl.password": "secret"}
    settings = WorkerSettings.from_properties(given)
    assert settings.security.username == "alice"
    assert "secret" not in repr(settings)
    assert WorkerSettings.unknown_keys(given) == []
    with pytest.raises(ConfigError) as refused:
        WorkerSettings.from_properties({"security.protocol": "TLS", **NEEDED, "group.id": ""})
    assert set(refused.value.errors) == {"security.protocol", "group.id"}
