"""The names in certificates, as Kafka writes them: with Java's `X500Principal.getName()`, that is RFC 2253.

Python's `ssl` module decodes the subject of a certificate, but not the ASN.1 type of each value, which is part of some
names. So the subject is read from the certificate's DER bytes, which OpenSSL has verified.
"""

import re
import ssl
from collections.abc import Iterator
from typing import NamedTuple

from coterie.nouns.errors import WireError

_SHORT_NAME_BY_OID = {
    "2.5.4.3": "CN", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET", "2.5.4.10": "O",
    "2.5.4.11": "OU", "0.9.2342.19200300.100.1.1": "UID", "0.9.2342.19200300.100.1.25": "DC",
}  # fmt: skip
"""RFC 2253's names of attribute types, by OID. All other types are written as OIDs, for example emailAddress."""
_TEXT_ENCODING_BY_TAG = {
    0x0C: "utf-8",
    0x13: "latin-1",
    0x14: "latin-1",
    0x16: "latin-1",
    0x1B: "latin-1",
    0x1E: "utf-16-be",
}
"""The ASN.1 types whose values are written as text, by tag, each with its encoding: UTF8String, PrintableString,
TeletexString, IA5String, GeneralString, BMPString. The encodings are those of Java 25. Java 17 reads each of these
types as UTF-8, which differs for TeletexString and BMPString."""
_VERSION_TAG = 0xA0
_SUBJECT_INDEX = 4
"""The subject's index in a certificate without its version: serial number, algorithm, issuer and validity are before
it."""


def peer_distinguished_name(connection: ssl.SSLObject | None) -> str | None:
    """The name in the certificate of the peer of a TLS connection (:func:`distinguished_name`). None without TLS, and
    if the peer has sent no certificate.

    :raises WireError: when the certificate is malformed.
    """
    certificate = None if connection is None else connection.getpeercert(binary_form=True)
    return None if certificate is None else distinguished_name(certificate)


def distinguished_name(certificate: bytes) -> str:
    """The subject of a certificate, of which ``certificate`` is the DER, in Kafka's format (RFC 2253: the last part
    first), such as ``CN=loader,O=Big Co``.

    :raises WireError: when the certificate is malformed.
    """
    try:
        (whole,) = _parse_der_elements(certificate)
        signed, *_ = _parse_der_elements(whole.content)
        fields = [one for one in _parse_der_elements(signed.content) if one.tag != _VERSION_TAG]
        parts = [
            "+".join(
                _attribute_text(*_parse_der_elements(attribute.content))
                for attribute in _parse_der_elements(part.content)
            )
            for part in _parse_der_elements(fields[_SUBJECT_INDEX].content)
        ]
    except (ValueError, IndexError, TypeError) as error:
        raise WireError("the subject of the peer's certificate is malformed") from error
    return ",".join(reversed(parts))


class _DerElement(NamedTuple):
    """One element of DER."""

    tag: int
    content: bytes
    whole: bytes
    """The element with its tag and length."""


def _parse_der_elements(data: bytes) -> Iterator[_DerElement]:
    """The elements of which ``data`` consists.

    :raises ValueError: when ``data`` is malformed.
    :raises IndexError: when ``data`` ends within a tag or a length.
    """
    end = 0
    while end < len(data):
        begin, tag, length, position = end, data[end], data[end + 1], end + 2
        has_long_tag, has_unknown_length = tag & 0x1F == 0x1F, length == 0x80
        if length & 0x80:
            position += length & 0x7F
            length = int.from_bytes(data[begin + 2 : position], "big")
        end = position + length
        if has_long_tag or has_unknown_length or end > len(data):
            raise ValueError("an element has a tag of several bytes, no length, or more bytes than follow")
        yield _DerElement(tag, data[position:end], data[begin:end])


def _attribute_text(kind: _DerElement, value: _DerElement) -> str:
    """One attribute of a name, with its type and its value. A value whose type has no name in RFC 2253 or that is no
    text is written as the hexadecimal bytes of its DER."""
    oid = _oid_text(kind.content)
    name, encoding = _SHORT_NAME_BY_OID.get(oid), _TEXT_ENCODING_BY_TAG.get(value.tag)
    if name is None or encoding is None:
        return f"{name or oid}=#{value.whole.hex()}"
    return f"{name}={_escape_subject_value(value.content.decode(encoding, 'replace'))}"


def _oid_text(content: bytes) -> str:
    """The dotted text of an OID's content: numbers in base 128, of which the first combines two."""
    numbers = [0]
    for byte in content:
        numbers[-1] = numbers[-1] << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(0)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:-1])))


def _escape_subject_value(value: str) -> str:
    """A value of a distinguished name with the escapes of Java's class X500Principal, whose names Kafka uses: those of
    RFC 2253, and also of ``=``, of every ``#``, of NUL (as in RFC 4514) and of all blanks at both ends."""
    escaped = re.sub(r'([,=+<>#;"\\])', r"\\\1", value).replace("\0", r"\00")
    return re.sub(r"\A[ \r]+|[ \r]+\Z", lambda blanks: re.sub("(.)", r"\\\1", blanks[0]), escaped)
