"""The names in certificates, as Kafka writes them. `tests/broker/security/test_tls.py` tests the contexts."""

import pytest

from coterie.config.tls import distinguished_name


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((("countryName", "DE"),), "C=DE"),
        ((("organizationName", "Big Co"),), "O=Big Co"),
        ((("commonName", 'a,b+"\\<>;'),), 'CN=a\\,b\\+\\"\\\\\\<\\>\\;'),
        ((("commonName", "#1"),), "CN=\\#1"),
        ((("commonName", "a#b"),), "CN=a\\#b"),
        ((("commonName", "a=b"),), "CN=a\\=b"),
        ((("commonName", "a\0b"),), "CN=a\\00b"),
        ((("commonName", " a  b "),), "CN=\\ a  b\\ "),
        ((("commonName", "\r a \r"),), "CN=\\\r\\ a\\ \\\r"),
        ((("commonName", "  "),), "CN=\\ \\ "),
        ((("commonName", "a\\ "),), "CN=a\\\\\\ "),
        ((("commonName", "a\t\n\x7f\u00a0"),), "CN=a\t\n\x7f\u00a0"),
        ((("commonName", "|~{}[]@!$%&_^`*'()-./:?"),), "CN=|~{}[]@!$%&_^`*'()-./:?"),
        ((("commonName", "one"), ("userId", "two")), "CN=one+UID=two"),
    ],
)
def test_a_distinguished_name_is_written_as_kafka_writes_it(subject: tuple[tuple[str, str], ...], name: str) -> None:
    assert distinguished_name({"subject": (subject,)}) == name


def test_the_last_part_of_a_distinguished_name_comes_first() -> None:
    subject = ((("countryName", "DE"),), (("organizationName", "Co"),), (("commonName", "loader"),))
    assert distinguished_name({"subject": subject}) == "CN=loader,O=Co,C=DE"
    assert distinguished_name(None) is None
    assert distinguished_name({}) is None
