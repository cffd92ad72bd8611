"""How a worker connects to its brokers: Kafka Connect's keys, and librdkafka's where Java's have no meaning here.

    security.protocol      PLAINTEXT (default), SSL, SASL_PLAINTEXT, SASL_SSL
    sasl.mechanism         PLAIN, SCRAM-SHA-256, SCRAM-SHA-512          (librdkafka's sasl.mechanisms as well)
    sasl.jaas.config       Java's one line with username and password, or
    sasl.username, sasl.password                                        librdkafka's keys
    ssl.truststore.location with ssl.truststore.type=PEM, or
    ssl.ca.location        the trusted certificates; by default the certificates that the system trusts
    ssl.keystore.location  with ssl.keystore.type=PEM: key and certificate of this client in one file, or
    ssl.certificate.location, ssl.key.location                          librdkafka's keys
    ssl.key.password       the password of an encrypted key
    ssl.endpoint.identification.algorithm                               https (default); empty or none: any host name

librdkafka, Python and Java can all read PEM. A Java keystore is an error, whose message explains how to convert the
keystore to PEM. The keys configure the worker's own connections. A Kafka source uses them too, unless its config names
other brokers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from coterie.nouns.errors import ConfigError, invalid_value_message

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The values of ``security.protocol``."""
SASL_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The values of ``sasl.mechanism``."""
SECURITY_KEYS = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.ca.location",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
"""The config keys that :class:`KafkaSecurity` is read from."""


TLS_FILE_KEYS = frozenset(key for key in SECURITY_KEYS if key.startswith("ssl.") and "identification" not in key)
"""The config keys that :class:`TlsFiles` is read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The PEM files of this process for TLS connections, in which the process is the client or the server. The
    locations of the certificate and of its key are both set, possibly to the same file, or both None."""

    trusted_ca_location: str | None = None
    """The file with the certificates that are trusted to sign the other end's certificate. None: as a client, those
    that the system trusts; as a server none, so clients cannot be asked for a certificate."""
    certificate_location: str | None = None
    """The file with this end's own certificate; None: it has none."""
    key_location: str | None = None
    """The file with the key of the certificate, possibly the same file; None without a certificate."""
    key_password: str | None = field(default=None, repr=False)
    """The password of an encrypted key; None: the key is not encrypted."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], *, prefix: str = "") -> Self:
        """The locations of the files, and the password, from the values of the keys ``<prefix>ssl.…``; other keys are
        ignored. All fields are None if none of these keys is set. No file is read.

        :raises ConfigError: lists each invalid key, and the key of the certificate or of its key if only the other is
            set, with the reason.
        """
        unprefixed = {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}
        parser = _SecurityParser(unprefixed, prefix=prefix)
        files = cls(**parser.tls_fields())
        parser.raise_if_errors()
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """The security settings of both Kafka clients of a worker (a Kafka library, and Coterie's own for groups); the
    default is a plaintext connection."""

    protocol: str = "PLAINTEXT"
    """One of :data:`SECURITY_PROTOCOLS`."""
    mechanism: str = ""
    """The SASL mechanism; empty without SASL."""
    username: str = ""
    password: str = field(default="", repr=False)
    trusted_ca_location: str | None = None
    """The file with the trusted certificates; None: the certificates that the system trusts."""
    certificate_location: str | None = None
    """The file with this client's certificate; None: it has none."""
    key_location: str | None = None
    """The file with the key of this client's certificate, possibly the same file; None without a certificate."""
    key_password: str | None = field(default=None, repr=False)
    """The password of an encrypted key; None: the key is not encrypted."""
    verifies_hostname: bool = True
    """Whether a broker's certificate must name the host to which the worker connects."""

    @property
    def has_tls(self) -> bool:
        """Whether connections use TLS."""
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether connections authenticate with SASL."""
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The settings from the keys and values of a worker file; other keys are ignored.

        :raises ConfigError: lists each invalid or missing key, with the reason.
        """
        return cls(**_SecurityParser(properties).kafka_security_fields_or_raise())


class _SecurityParser:
    """Parses the security keys of one worker file. It records the errors of all keys, and
    :meth:`kafka_security_fields_or_raise` raises them together; after :meth:`tls_fields` alone, call
    :meth:`raise_if_errors`. ``prefix`` stands before the keys in the worker file, and so in the errors; it is removed
    in ``properties``."""

    def __init__(self, properties: Mapping[str, str], *, prefix: str = "") -> None:
        self._prefix = prefix
        self._set_values = {
            key: value.strip() for key, value in properties.items() if key in SECURITY_KEYS and value.strip()
        }
        self._endpoint_identification = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        self._errors: dict[str, list[str]] = {}

    def kafka_security_fields_or_raise(self) -> dict[str, Any]:
        """The fields of a :class:`KafkaSecurity`.

        :raises ConfigError: lists each invalid or missing key, with the reason.
        """
        protocol = self._set_values.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in SECURITY_PROTOCOLS:
            self._record_invalid("security.protocol", f"must be one of {', '.join(SECURITY_PROTOCOLS)}")
        if self._endpoint_identification not in ("https", "", "none"):
            self._record_invalid(
                "ssl.endpoint.identification.algorithm", "must be https, or empty or none to check no host name"
            )
        fields: dict[str, Any] = {"protocol": protocol, "verifies_hostname": self._endpoint_identification == "https"}
        if protocol.startswith("SASL"):
            fields |= self._sasl_fields()
        if protocol.endswith("SSL"):
            fields |= self.tls_fields()
        self.raise_if_errors()
        return fields

    def raise_if_errors(self) -> None:
        """Raise all recorded errors together, if there are any.

        :raises ConfigError: when errors were recorded.
        """
        if self._errors:
            raise ConfigError(self._errors)

    def _sasl_fields(self) -> dict[str, Any]:
        """The fields of a :class:`KafkaSecurity` for SASL: ``mechanism``, ``username`` and ``password``. Errors are
        recorded."""
        key = "sasl.mechanisms" if "sasl.mechanism" not in self._set_values else "sasl.mechanism"
        mechanism = self._set_values.get(key, "GSSAPI").upper()
        if mechanism not in SASL_MECHANISMS:
            self._record_invalid(
                "sasl.mechanism", f"must be one of {', '.join(SASL_MECHANISMS)}", shown_value=mechanism
            )
        username, password = self._set_values.get("sasl.username"), self._set_values.get("sasl.password")
        if "sasl.jaas.config" in self._set_values and not (username or password):
            username, password = self._jaas_credentials_or_record_error(mechanism)
        elif not (username and password):
            self._record_missing(
                "sasl.username",
                "sasl.password",
                reason=f"with security.protocol {self._security_protocol_as_written()}",
            )
        return {"mechanism": mechanism, "username": username or "", "password": password or ""}

    def _jaas_credentials_or_record_error(self, mechanism: str) -> tuple[str | None, str | None]:
        """User and password in ``sasl.jaas.config``, a text ``…LoginModule required username="…" password="…";`` for
        the SASL ``mechanism``. If the text is invalid, an error is recorded and both are None."""
        match_ = _JAAS_PATTERN.fullmatch(self._set_values["sasl.jaas.config"])
        options = dict(_JAAS_OPTION_PATTERN.findall(match_["options"])) if match_ else {}
        module_name = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        if (
            match_ is None
            or match_["module"].rpartition(".")[2] != module_name
            or not {"username", "password"} <= {*options}
        ):
            # The value is hidden because it contains the password.
            self._errors["sasl.jaas.config"] = [
                invalid_value_message(
                    "sasl.jaas.config",
                    "[hidden]",
                    "must be "
                    f"org.apache.kafka.common.security.{'plain' if mechanism == 'PLAIN' else 'scram'}.{module_name} "
                    'required username="…" password="…";',
                )
            ]
            return None, None
        return _unquote(options["username"]), _unquote(options["password"])

    def tls_fields(self) -> dict[str, Any]:
        """The fields of a :class:`TlsFiles`, from the keys ``ssl.*``. Errors are recorded."""
        truststore = self._set_values.get("ssl.ca.location") or self._location_of_store_and_check_pem(
            "truststore", "set ssl.ca.location"
        )
        keystore = self._location_of_store_and_check_pem(
            "keystore", "set ssl.certificate.location and ssl.key.location"
        )
        certificate = self._set_values.get("ssl.certificate.location") or keystore
        key = self._set_values.get("ssl.key.location") or keystore
        if bool(certificate) != bool(key):
            self._record_missing(
                "ssl.certificate.location",
                "ssl.key.location",
                reason="because a certificate and its key must be set together",
            )
        return {
            "trusted_ca_location": truststore,
            "certificate_location": certificate,
            "key_location": key,
            "key_password": self._set_values.get("ssl.key.password"),
        }

    def _location_of_store_and_check_pem(self, store: str, advice_if_not_pem: str) -> str | None:
        """The value of ``ssl.<store>.location`` (``store`` is "truststore" or "keystore"), or None when it is not set.
        If the store has another type than PEM, an error is recorded; its message recommends ``advice_if_not_pem``."""
        location, type_ = (
            self._set_values.get(f"ssl.{store}.location"),
            self._set_values.get(f"ssl.{store}.type", "JKS").upper(),
        )
        if location and type_ != "PEM":
            self._record_invalid(
                f"ssl.{store}.type",
                f"only PEM can be read; export the store (keytool -importkeystore to PKCS12, then openssl pkcs12) and "
                f"name the PEM file with ssl.{store}.type=PEM, or {advice_if_not_pem}",
                shown_value=type_,
            )
        return location

    def _security_protocol_as_written(self) -> str:
        """The value of ``security.protocol``. Call this only if the key is set, as it is whenever SASL is used."""
        return self._set_values["security.protocol"]

    def _record_missing(self, *keys: str, reason: str) -> None:
        """Record an error for each of ``keys`` that is not set. ``reason`` is the end of the message."""
        for key in keys:
            if key not in self._set_values:
                full_key = self._prefix + key
                self._errors[full_key] = [f'Missing required configuration "{full_key}" {reason}.']

    def _record_invalid(self, key: str, reason: str, *, shown_value: str | None = None) -> None:
        """Record that the value of ``key`` is invalid, because of ``reason``. The message contains ``shown_value``
        instead of the value, unless it is None."""
        value = self._set_values.get(key, "") if shown_value is None else shown_value
        full_key = self._prefix + key
        self._errors[full_key] = [invalid_value_message(full_key, value, reason)]


_JAAS_PATTERN = re.compile(
    r"\s*(?P<module>[\w.]+)\s+(required|requisite|sufficient|optional)(?P<options>(.|\s)*?);?\s*"
)
"""The text of ``sasl.jaas.config``: a login module with its options."""
_JAAS_OPTION_PATTERN = re.compile(r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s";]+)')
"""One option of a login module: name and value."""


def _unquote(value: str) -> str:
    """A value of a JAAS option without its quotes and escapes."""
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
