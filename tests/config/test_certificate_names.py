"""The names in certificates, as Kafka writes them. `tests/broker/security/test_tls.py` tests the TLS contexts, and
`tests/spark/test_certificate_names.py` compares the names with those of Java."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.config.certificate_names import distinguished_name, peer_distinguished_name
from coterie.nouns.errors import WireError
from tests.certificate_subjects import (
    CN,
    RECENT_JAVA_SUBJECTS,
    SUBJECTS,
    UTF8,
    Attribute,
    certificate,
    subject,
)
from tests.certificates import Authority


@pytest.mark.parametrize(("parts", "name"), [*SUBJECTS, *RECENT_JAVA_SUBJECTS])
def test_a_distinguished_name_is_written_as_kafka_writes_it(parts: Sequence[Sequence[Attribute]], name: str) -> None:
    assert distinguished_name(certificate(subject(parts))) == name


def test_the_subject_of_a_real_certificate_is_found(tmp_path: Path) -> None:
    named = "/C=DE/O=Big Co/emailAddress=a@b/CN=loader"
    pem = Authority(tmp_path).pair("loader", subject=named).certificate
    der = subprocess.run(["openssl", "x509", "-in", pem, "-outform", "DER"], capture_output=True, check=True).stdout
    assert distinguished_name(der) == "CN=loader,1.2.840.113549.1.9.1=#1603614062,O=Big Co,C=DE"


def test_a_connection_without_tls_has_no_name() -> None:
    assert peer_distinguished_name(None) is None


GOOD = certificate(subject([[(CN, UTF8, b"x" * 200)]]))


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_a_certificate_that_is_cut_is_malformed(size: int) -> None:
    with pytest.raises(WireError):
        distinguished_name(GOOD[:size])


@pytest.mark.parametrize("value", [bytes([UTF8, 0x80, 0, 0]), bytes([0x1F, 1, 0])], ids=["no length", "long tag"])
def test_a_value_that_java_does_not_read_is_malformed(value: bytes) -> None:
    # The value, with its tag and length, takes the place of one with the same size.
    filler = b"x" * (len(value) - 2)
    data = certificate(subject([[(CN, UTF8, filler)]]))
    assert data.count(bytes([UTF8, len(filler)]) + filler) == 1
    with pytest.raises(WireError):
        distinguished_name(data.replace(bytes([UTF8, len(filler)]) + filler, value))
