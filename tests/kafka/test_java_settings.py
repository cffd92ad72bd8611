"""A worker's security settings as the Kafka clients in Spark get them."""

from pathlib import Path

import pytest

from coterie.config.security import KafkaSecurity
from coterie.kafka.security import prepare_java_settings
from coterie.nouns.errors import WorldError


def test_a_plain_connection_has_its_protocol_only(tmp_path: Path) -> None:
    assert prepare_java_settings(KafkaSecurity(), tmp_path) == {"security.protocol": "PLAINTEXT"}


def test_a_user_name_and_a_password_are_quoted_for_jaas(tmp_path: Path) -> None:
    security = KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password='a"\\b;')
    assert prepare_java_settings(security, tmp_path) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="a\\"\\\\b;";'
        ),
    }


def test_certificate_and_key_become_one_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    security = KafkaSecurity(
        protocol="SSL",
        certificate_location=str(certificate),
        key_location=str(key),
        key_password="p",
        verifies_hostname=False,
    )
    with pytest.raises(WorldError, match="cannot be used"):
        prepare_java_settings(security, tmp_path)
    certificate.write_text("certificate\n")
    key.write_text("key\n")
    settings = prepare_java_settings(security, tmp_path)
    path = Path(settings.pop("ssl.keystore.location"))
    assert path.read_text() == "key\ncertificate\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert settings == {
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "p",
    }


def test_a_file_with_certificate_and_key_is_used_unchanged(tmp_path: Path) -> None:
    security = KafkaSecurity(
        protocol="SSL", certificate_location="/both.pem", key_location="/both.pem", ca_location="/ca.pem"
    )
    assert prepare_java_settings(security, tmp_path) == {
        "security.protocol": "SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/both.pem",
    }
