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

from coterie.nouns.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The values of ``security.protocol``."""
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
"""The values of ``sasl.mechanism``."""
KEYS = frozenset(
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
"""The keys that are read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSecurity:
    """The security settings of both Kafka clients of a worker (a Kafka library, and Coterie's own for groups); the
    default is a plaintext connection."""

    protocol: str = "PLAINTEXT"
    """One of :data:`PROTOCOLS`."""
    mechanism: str = ""
    """The SASL mechanism; empty without SASL."""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_location: str | None = None
    """The file with the trusted certificates; None: the certificates that the system trusts."""
    certificate_location: str | None = None
    """The file with this client's certificate; None: it has none."""
    key_location: str | None = None
    """The file with the key of this client's certificate."""
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
        return cls(**_SecurityParser(properties).parse())


class _SecurityParser:
    """Parses the keys once. It collects the errors of all keys, and raises them together at the end."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._given = {key: value.strip() for key, value in properties.items() if key in KEYS and value.strip()}
        self._algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        self._errors: dict[str, list[str]] = {}

    def parse(self) -> dict[str, Any]:
        """The fields of a :class:`KafkaSecurity`.

        :raises ConfigError: lists each invalid or missing key, with the reason.
        """
        protocol = self._given.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            self._refuse("security.protocol", f"must be one of {', '.join(PROTOCOLS)}")
        if self._algorithm not in ("https", "", "none"):
            self._refuse(
                "ssl.endpoint.identification.algorithm", "must be https, or empty or none to check no host name"
            )
        found: dict[str, Any] = {"protocol": protocol, "verifies_hostname": self._algorithm == "https"}
        if protocol.startswith("SASL"):
            found |= self._sasl()
        if protocol.endswith("SSL"):
            found |= self._tls()
        if self._errors:
            raise ConfigError(self._errors)
        return found

    def _sasl(self) -> dict[str, Any]:
        """The fields for SASL; errors are recorded."""
        key = "sasl.mechanisms" if "sasl.mechanism" not in self._given else "sasl.mechanism"
        mechanism = self._given.get(key, "GSSAPI").upper()
        if mechanism not in MECHANISMS:
            self._refuse("sasl.mechanism", f"must be one of {', '.join(MECHANISMS)}", shown=mechanism)
        username, password = self._given.get("sasl.username"), self._given.get("sasl.password")
        if "sasl.jaas.config" in self._given and not (username or password):
            username, password = self._jaas(mechanism)
        elif not (username and password):
            self._missing("sasl.username", "sasl.password", why=f"with security.protocol {self._protocol()}")
        return {"mechanism": mechanism, "username": username or "", "password": password or ""}

    def _jaas(self, mechanism: str) -> tuple[str | None, str | None]:
        """User and password of ``…LoginModule required username="…" password="…";``. If the text is invalid, an error
        is recorded and both are None."""
        found = _JAAS.fullmatch(self._given["sasl.jaas.config"])
        options = dict(_JAAS_OPTION.findall(found["options"])) if found else {}
        module = "PlainLoginModule" if mechanism == "PLAIN" else "ScramLoginModule"
        if found is None or found["module"].rpartition(".")[2] != module or not {"username", "password"} <= {*options}:
            # The value is hidden because it contains the password.
            self._errors["sasl.jaas.config"] = [
                "Invalid value [hidden] for configuration sasl.jaas.config: must be "
                f"org.apache.kafka.common.security.{'plain' if mechanism == 'PLAIN' else 'scram'}.{module} "
                'required username="…" password="…";'
            ]
            return None, None
        return _unquoted(options["username"]), _unquoted(options["password"])

    def _tls(self) -> dict[str, Any]:
        """The fields for TLS; errors are recorded."""
        trusted = self._given.get("ssl.ca.location") or self._pem("truststore", "set ssl.ca.location")
        both = self._pem("keystore", "set ssl.certificate.location and ssl.key.location")
        certificate = self._given.get("ssl.certificate.location") or both
        key = self._given.get("ssl.key.location") or both
        if bool(certificate) != bool(key):
            self._missing(
                "ssl.certificate.location",
                "ssl.key.location",
                why="because a certificate and its key must be set together",
            )
        return {
            "ca_location": trusted,
            "certificate_location": certificate,
            "key_location": key,
            "key_password": self._given.get("ssl.key.password"),
        }

    def _pem(self, store: str, alternative: str) -> str | None:
        """The location of the ``store``, "truststore" or "keystore", or None when it is not set. A type other than PEM
        is recorded as an error, whose message recommends ``alternative``."""
        location, type_ = self._given.get(f"ssl.{store}.location"), self._given.get(f"ssl.{store}.type", "JKS").upper()
        if location and type_ != "PEM":
            self._refuse(
                f"ssl.{store}.type",
                f"only PEM can be read; export the store (keytool -importkeystore to PKCS12, then openssl pkcs12) and "
                f"name the PEM file with ssl.{store}.type=PEM, or {alternative}",
                shown=type_,
            )
        return location

    def _protocol(self) -> str:
        """The value of ``security.protocol``, which must be set."""
        return self._given["security.protocol"]

    def _missing(self, *keys: str, why: str) -> None:
        """Record an error for each of ``keys`` that is not set."""
        for key in keys:
            if key not in self._given:
                self._errors[key] = [f'Missing required configuration "{key}" {why}.']

    def _refuse(self, key: str, why: str, *, shown: str | None = None) -> None:
        """Record that the value of ``key`` is invalid. The message contains ``shown`` instead of the value, unless it
        is None."""
        value = self._given.get(key, "") if shown is None else shown
        self._errors[key] = [f"Invalid value {value} for configuration {key}: {why}"]


_JAAS = re.compile(r"\s*(?P<module>[\w.]+)\s+(required|requisite|sufficient|optional)(?P<options>(.|\s)*?);?\s*")
"""The text of ``sasl.jaas.config``: a login module with its options."""
_JAAS_OPTION = re.compile(r'(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s";]+)')
"""One option of a login module: name and value."""


def _unquoted(value: str) -> str:
    """A value of a JAAS option without its quotes and escapes."""
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
