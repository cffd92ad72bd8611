"""Subjects of certificates, each with its name as Java's X500Principal writes it, whose names Kafka uses."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

UTF8, NUMERIC, PRINTABLE, T61, IA5, GENERAL, UNIVERSAL, BMP = 0x0C, 0x12, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E
"""Tags of the string types of ASN.1."""
SEQUENCE, SET = 0x30, 0x31

CN, SURNAME, SERIAL, C, L, ST, STREET, ORG, OU, TITLE, GIVEN, INITIALS, GENERATION, QUALIFIER = (
    f"2.5.4.{number}" for number in (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 42, 43, 44, 46)
)
UID, DC = "0.9.2342.19200300.100.1.1", "0.9.2342.19200300.100.1.25"
EMAIL = "1.2.840.113549.1.9.1"
UNKNOWN = "2.999.16384.4294967296"

Attribute: TypeAlias = tuple[str, int, bytes]
"""The type's OID, the tag of the value, and the value's bytes."""


def element(tag: int, *contents: bytes) -> bytes:
    """A DER element."""
    content = b"".join(contents)
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    size_bytes = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(size_bytes)]) + size_bytes + content


def subject(parts: Iterable[Sequence[Attribute]]) -> bytes:
    """The DER of a name with these parts; a part with several attributes is a multi-valued RDN."""
    return element(
        SEQUENCE,
        *(
            element(SET, *(element(SEQUENCE, _object_id(oid), element(tag, value)) for oid, tag, value in part))
            for part in parts
        ),
    )


def certificate(name: bytes) -> bytes:
    """The DER of a certificate with this subject, without what the subject does not depend on."""
    issuer = subject([[(CN, UTF8, b"issuer")]])
    version, serial = element(0xA0, element(0x02, b"\x02")), element(0x02, b"\x01")
    return element(SEQUENCE, element(SEQUENCE, version, serial, element(SEQUENCE), issuer, element(SEQUENCE), name))


def _object_id(oid: str) -> bytes:
    first, second, *others = map(int, oid.split("."))
    content = bytearray()
    for number in (40 * first + second, *others):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(0x80 | number & 0x7F)
        content += bytes(reversed(groups))
    return element(0x06, bytes(content))


SUBJECTS: Sequence[tuple[Sequence[Sequence[Attribute]], str]] = [
    ([[(C, PRINTABLE, b"DE")]], "C=DE"),
    ([[(ORG, UTF8, b"Big Co")]], "O=Big Co"),
    ([[(CN, UTF8, b'a,b+"\\<>;')]], 'CN=a\\,b\\+\\"\\\\\\<\\>\\;'),
    ([[(CN, UTF8, b"#1")]], "CN=\\#1"),
    ([[(CN, UTF8, b"a#b")]], "CN=a\\#b"),
    ([[(CN, UTF8, b"a=b")]], "CN=a\\=b"),
    ([[(CN, UTF8, b"a\0b")]], "CN=a\\00b"),
    ([[(CN, UTF8, b" a  b ")]], "CN=\\ a  b\\ "),
    ([[(CN, UTF8, b"\r a \r")]], "CN=\\\r\\ a\\ \\\r"),
    ([[(CN, UTF8, b"  ")]], "CN=\\ \\ "),
    ([[(CN, UTF8, b"")]], "CN="),
    ([[(CN, UTF8, b"a\\ ")]], "CN=a\\\\\\ "),
    ([[(CN, UTF8, "a\t\n\x7f\u00a0\u4e2d\U0001f600".encode())]], "CN=a\t\n\x7f\u00a0\u4e2d\U0001f600"),
    ([[(CN, PRINTABLE, b"|~{}[]@!$%&_^`*'()-./:?")]], "CN=|~{}[]@!$%&_^`*'()-./:?"),
    ([[(CN, UTF8, b"x" * 300)]], "CN=" + "x" * 300),
    ([[(CN, T61, b"a")]], "CN=a"),
    ([[(CN, UNIVERSAL, b"\0\0\0a")]], "CN=#1c0400000061"),
    ([[(CN, GENERAL, b"a")]], "CN=a"),
    ([[(CN, NUMERIC, b"12")]], "CN=#12023132"),
    ([[(CN, SEQUENCE, element(UTF8, b"a"))]], "CN=#30030c0161"),
    ([[(CN, UTF8, b"one"), (UID, UTF8, b"two")]], "CN=one+UID=two"),
    ([[(L, UTF8, b"Ulm")], [(ST, UTF8, b"BW")], [(OU, UTF8, b"Data")]], "OU=Data,ST=BW,L=Ulm"),
    ([[(DC, IA5, b"org")], [(DC, IA5, b"example")], [(UID, UTF8, b"loader")]], "UID=loader,DC=example,DC=org"),
    ([[(STREET, UTF8, b"Weg 1")]], "STREET=Weg 1"),
    ([[(EMAIL, IA5, b"a@b")], [(CN, UTF8, b"loader")]], "CN=loader,1.2.840.113549.1.9.1=#1603614062"),
    ([[(EMAIL, UTF8, b"a@b")]], "1.2.840.113549.1.9.1=#0c03614062"),
    ([[(EMAIL, IA5, b"x" * 128)]], "1.2.840.113549.1.9.1=#168180" + "78" * 128),
    ([[(SERIAL, PRINTABLE, b"12")]], "2.5.4.5=#13023132"),
    ([[(TITLE, UTF8, b"Dr")]], "2.5.4.12=#0c024472"),
    ([[(GIVEN, UTF8, b"Ann")], [(SURNAME, UTF8, b"Lee")]], "2.5.4.4=#0c034c6565,2.5.4.42=#0c03416e6e"),
    ([[(INITIALS, UTF8, b"A")]], "2.5.4.43=#0c0141"),
    ([[(GENERATION, UTF8, b"II")]], "2.5.4.44=#0c024949"),
    ([[(QUALIFIER, PRINTABLE, b"q")]], "2.5.4.46=#130171"),
    ([[(UNKNOWN, UTF8, b"u")]], "2.999.16384.4294967296=#0c0175"),
    ([[(CN, UTF8, b"one"), (EMAIL, IA5, b"a@b")]], "CN=one+1.2.840.113549.1.9.1=#1603614062"),
    ([[(EMAIL, IA5, b"a@b"), (CN, UTF8, b"one")]], "1.2.840.113549.1.9.1=#1603614062+CN=one"),
    ([], ""),
]
"""Java 17 and 25 write these names equally."""
RECENT_JAVA_SUBJECTS: Sequence[tuple[Sequence[Sequence[Attribute]], str]] = [
    ([[(CN, T61, b"M\xfcller")]], "CN=M\u00fcller"),
    ([[(CN, BMP, b"\0a\0 ")]], "CN=a\\ "),
]
"""Java 17 reads these values as UTF-8, with the results ``CN=M\ufffdller`` and ``CN=\\00a\\00\\ ``."""
