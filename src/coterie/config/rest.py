"""A worker's settings for its REST API: Kafka Connect's keys, and the few keys that Coterie adds.

listeners                      addresses: http://host:port, https://host:port, several between commas
listeners.https.ssl.*          certificates of https listeners, as for Kafka clients (`config.security`), and
…ssl.client.auth               none (default), requested or required; without any key listeners.https.*, the keys
                               ssl.* count, as in Connect
admin.listeners                addresses for /admin, and for /metrics too; without the key, /admin is at the addresses
                               of `listeners`
rest.advertised.*              the address that other workers and clients use
rest.users.file                the users that may log in, with their roles (Coterie's own key)
access.control.allow.*         which pages of other addresses a browser may let use the API (CORS)
response.http.headers.config   headers of every response
"""

import csv
import itertools
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from coterie.config.definition import split_list
from coterie.config.security import TlsFiles
from coterie.nouns.errors import ConfigError, invalid_value_message
from coterie.nouns.ids import WorkerId, WorkerUrl

HTTPS_KEY_PREFIX = "listeners.https."
"""The prefix of the keys for https listeners."""
CLIENT_AUTH_KEY = "ssl.client.auth"
"""The key that determines whether clients of https listeners need a certificate; without :data:`HTTPS_KEY_PREFIX`."""
_HEADER_NAME_PATTERN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE_PATTERN = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_Port = Annotated[int, Field(ge=1, le=65535)]
_NonEmptyText = Annotated[str, Field(min_length=1)]
_Texts = Annotated[
    tuple[_NonEmptyText, ...], BeforeValidator(lambda value: split_list(value) if isinstance(value, str) else value)
]


class RestScheme(StrEnum):
    """The URL scheme of a listener of the REST API."""

    HTTP = "http"
    HTTPS = "https"


class RestListener(NamedTuple):
    """An address at which a REST API listens. An empty ``host`` means every interface, and port 0 means that the
    operating system chooses the port."""

    scheme: RestScheme
    host: str
    port: int

    @property
    def listens_on_every_interface(self) -> bool:
        """Whether the host means every interface of the machine: 0.0.0.0, ::, or empty."""
        return self.host in ("", "0.0.0.0", "::")

    def overlaps(self, other: "RestListener") -> bool:
        """Whether the two listeners cannot listen at the same time: they have the same port, other than 0, and the same
        host or every interface. Two names of one host are different hosts here."""
        is_host_shared = self.host == other.host or self.listens_on_every_interface or other.listens_on_every_interface
        return self.port == other.port != 0 and is_host_shared


class RestAddress(NamedTuple):
    """The host and port at which a worker's REST API is reached."""

    host: str
    port: int


class ClientAuth(StrEnum):
    """Whether clients of an https listener send a certificate (``ssl.client.auth``)."""

    NONE = "none"
    """Clients are not asked for a certificate."""
    REQUESTED = "requested"
    """A client may send a certificate, which must be valid."""
    REQUIRED = "required"
    """A client without a valid certificate is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestTls:
    """The certificates of the https listeners, and of this worker's requests to other workers."""

    files: TlsFiles = field(default_factory=TlsFiles)
    client_auth: ClientAuth = ClientAuth.NONE

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The settings from the keys and values of a worker file; other keys are ignored.

        :raises ConfigError: when a key is invalid or missing. The keys of the certificates' files are checked first,
            and the error lists all that are wrong. Only if none is wrong, ``ssl.client.auth`` is checked, and whether
            the truststore that it needs is set.
        """
        prefix = HTTPS_KEY_PREFIX if any(key.startswith(HTTPS_KEY_PREFIX) for key in properties) else ""
        files = TlsFiles.from_properties(properties, prefix=prefix)
        key = prefix + CLIENT_AUTH_KEY
        value = properties.get(key, "").strip().lower() or ClientAuth.NONE.value
        if value not in [choice.value for choice in ClientAuth]:
            raise ConfigError({key: [invalid_value_message(key, value, f"must be {_choices_text(ClientAuth)}")]})
        client_auth = ClientAuth(value)
        if client_auth is not ClientAuth.NONE and files.trusted_ca_location is None:
            missing_key = f"{prefix}ssl.truststore.location"
            raise ConfigError({missing_key: [f'Missing required configuration "{missing_key}" with {key}={value}.']})
        return cls(files=files, client_auth=client_auth)


class ResponseHeader(NamedTuple):
    """A header that a rule of ``response.http.headers.config`` puts into every response."""

    name: str
    value: str
    replaces_existing: bool
    """Whether the header replaces a header of the response with the same name; otherwise it is added."""


class RestSettings(BaseModel):
    """The settings of a worker's REST API; part of `worker.WorkerSettings`."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    listeners: Annotated[_Texts, Field(min_length=1)] = ("http://:8083",)
    """The addresses of this worker's REST API, each `http://host:port` or `https://host:port`."""
    admin_listeners: _Texts | None = None
    """The addresses that serve the paths `/admin/…`, each `http://host:port` or `https://host:port`; then no other
    address serves them. By default all `listeners` serve these paths; with an empty value no address does."""
    rest_advertised_host_name: _NonEmptyText | None = None
    """The host with which other workers and clients reach this worker; by default the host of the advertised listener,
    or this machine's host name when that host is empty, 0.0.0.0 or ::."""
    rest_advertised_port: _Port | None = None
    """The port with which other workers and clients reach this worker; by default the port of the advertised
    listener."""
    rest_advertised_listener: str | None = None
    """The URL scheme with which other workers and clients reach this worker, http or https. The advertised listener is
    the first with this scheme; by default the first http listener, else the first https listener."""
    rest_users_file: _NonEmptyText | None = None
    """The file with the users that may use the REST API, and their roles (`coterie rest user`). The worker reads the
    file again when it changes. Without this key every client may do everything. (Coterie's own key.)"""
    rest_health_open: bool = False
    """With `rest.users.file`: whether `GET /health` needs no log-in. (Coterie's own key.)"""
    access_control_allow_origin: str = ""
    """The origins (such as `https://ui.example`) whose pages may use this REST API in a browser, between commas; *
    means every origin. By default only pages of the worker's own address may: of an IP address, `localhost`, this
    machine's host name, and the hosts of `listeners`, `admin.listeners` and `rest.advertised.host.name`."""
    access_control_allow_methods: str = ""
    """The HTTP methods that pages of the allowed origins may use, between commas; by default GET, POST and HEAD."""
    response_http_headers_config: str = ""
    """Headers that are added to every response: between commas, each `set NAME: VALUE` or `add NAME: VALUE`; a rule
    that contains a comma stands in double quotes."""
    rest_tls: RestTls = Field(default=RestTls(), exclude=True)
    """The certificates of the https listeners: the keys `listeners.https.ssl.*`."""

    @property
    def rest_listeners(self) -> tuple[RestListener, ...]:
        """The addresses at which this worker's REST API listens."""
        return tuple(map(parse_listener, self.listeners))

    @property
    def rest_admin_listeners(self) -> tuple[RestListener, ...]:
        """The addresses of ``admin.listeners``: only these serve the paths ``/admin/…``, and these serve ``/metrics``
        besides the other addresses. None of them when the key is empty (no address serves ``/admin/…`` then), and when
        the key is not set (all addresses of ``listeners`` serve ``/admin/…`` then)."""
        return tuple(map(parse_listener, self.admin_listeners or ()))

    @property
    def advertised_listener(self) -> RestListener:
        """The listener that other workers and clients use: the first with the scheme of ``rest.advertised.listener``;
        by default the first http listener, else the first https listener."""
        wanted = [self.rest_advertised_listener] if self.rest_advertised_listener else list(RestScheme)
        return next(listener for scheme in wanted for listener in self.rest_listeners if listener.scheme == scheme)

    @property
    def own_hosts(self) -> frozenset[str]:
        """The hosts of this worker, in lower case: those of all listeners, the advertised host, and the host name of
        this machine."""
        listeners = (*self.rest_listeners, *self.rest_admin_listeners)
        hosts = {listener.host for listener in listeners if not listener.listens_on_every_interface}
        return frozenset(host.lower() for host in (*hosts, self.advertised_address().host, socket.gethostname()))

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The items of ``access.control.allow.origin``."""
        return tuple(split_list(self.access_control_allow_origin))

    @property
    def allowed_methods(self) -> tuple[str, ...]:
        """The items of ``access.control.allow.methods``, in upper case; by default those that Connect allows."""
        methods = [method.upper() for method in split_list(self.access_control_allow_methods)]
        return tuple(methods) or ("GET", "POST", "HEAD")

    @property
    def response_headers(self) -> tuple[ResponseHeader, ...]:
        """The headers of ``response.http.headers.config``."""
        return _parse_header_rules(self.response_http_headers_config)

    def advertised_address(self, *, bound_port: int | None = None) -> RestAddress:
        """The host and port at which other workers and clients reach this worker.

        ``bound_port`` is the port that the operating system chose when the advertised listener's port is 0; None when
        that port is not known, and then the result may have port 0.
        """
        listener = self.advertised_listener
        host = socket.gethostname() if listener.listens_on_every_interface else listener.host
        port = self.rest_advertised_port or (bound_port if listener.port == 0 else None) or listener.port
        return RestAddress(self.rest_advertised_host_name or host, port)

    def worker_id(self, *, bound_port: int | None = None) -> WorkerId:
        """``<advertised host>:<advertised port>``, the form of a worker id in Connect's statuses. ``bound_port`` is as
        in :meth:`advertised_address`."""
        host, port = self.advertised_address(bound_port=bound_port)
        return WorkerId(f"{host}:{port}")

    def advertised_url(self, *, bound_port: int | None = None) -> WorkerUrl:
        """The URL of this worker's REST API that it reports to its group, with a slash at the end. ``bound_port`` is as
        in :meth:`advertised_address`."""
        host, port = self.advertised_address(bound_port=bound_port)
        scheme = self.advertised_listener.scheme
        return WorkerUrl(f"{scheme}://{format_host_for_url(host)}:{port}/")

    # -- checks of one key --------------------------------------------------------------------------------------------

    @field_validator("listeners")
    @classmethod
    def _check_listeners(cls, listeners: tuple[str, ...]) -> tuple[str, ...]:
        """Check that each of ``listeners`` is the address of a listener, and that no two overlap. Return
        ``listeners``."""
        pairs = itertools.combinations(map(parse_listener, listeners), 2)
        if any(listener.overlaps(other) for listener, other in pairs):
            raise ValueError("two listeners have the same port on the same host: set another port for one of them")
        return listeners

    @field_validator("admin_listeners")
    @classmethod
    def _check_admin_listeners(cls, listeners: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Check ``listeners`` as :meth:`_check_listeners` does, and return them. None, for a key that is not set, is
        returned unchanged."""
        return None if listeners is None else cls._check_listeners(listeners)

    @field_validator("rest_advertised_listener")
    @classmethod
    def _check_advertised_scheme(cls, scheme: str | None) -> str | None:
        """Check that ``scheme`` is http, https or not set, and return it in lower case."""
        if scheme and scheme.lower() not in list(RestScheme):
            raise ValueError(f"must be {_choices_text(RestScheme)}")
        return scheme.lower() if scheme else None

    @field_validator("response_http_headers_config")
    @classmethod
    def _check_header_rules(cls, rules: str) -> str:
        """Check that ``rules`` can be parsed, and return them."""
        _parse_header_rules(rules)
        return rules

    # -- checks between keys ------------------------------------------------------------------------------------------

    def rest_contradiction_errors(self) -> dict[str, list[str]]:
        """The errors, by key, of values that are valid but contradict each other, and of a missing certificate when a
        listener has the scheme https."""
        errors: dict[str, list[str]] = {}
        schemes = {listener.scheme for listener in self.rest_listeners}
        advertised = self.rest_advertised_listener
        if advertised is not None and advertised not in schemes:
            key = "rest.advertised.listener"
            errors[key] = [invalid_value_message(key, advertised, "listeners has no address with this scheme")]
        pairs = itertools.product(self.rest_listeners, self.rest_admin_listeners)
        if used := sorted(listener.port for listener, admin_listener in pairs if listener.overlaps(admin_listener)):
            key, value = "admin.listeners", ",".join(self.admin_listeners or ())
            errors[key] = [invalid_value_message(key, value, f"listeners has the port {used[0]}, too: set another one")]
        schemes |= {listener.scheme for listener in self.rest_admin_listeners}
        if RestScheme.HTTPS in schemes and self.rest_tls.files.certificate_location is None:
            key = f"{HTTPS_KEY_PREFIX}ssl.keystore.location"
            errors[key] = [
                f'Missing required configuration "{key}" with an https listener: name the PEM file with the '
                f"certificate and its key, and set {HTTPS_KEY_PREFIX}ssl.keystore.type=PEM."
            ]
        return errors


def parse_listener(text: str) -> RestListener:
    """The listener that ``text`` states as ``http://host:port`` or ``https://host:port``; an empty host means every
    interface.

    :raises ValueError: when ``text`` has another form.
    """
    try:
        url_parts = urlsplit(text)
        scheme, port = RestScheme(url_parts.scheme), url_parts.port
    except ValueError:
        scheme, port = RestScheme.HTTP, None
    if port is None or url_parts.path not in ("", "/") or url_parts.query or url_parts.fragment:
        raise ValueError(f"{text} is not http://host:port or https://host:port")
    return RestListener(scheme, url_parts.hostname or "", port)


def _parse_header_rules(rules: str) -> tuple[ResponseHeader, ...]:
    """The headers of ``response.http.headers.config``.

    :raises ValueError: when a rule has another form than ``set NAME: VALUE`` or ``add NAME: VALUE``, or HTTP does not
        allow the name or the value (RFC 9110, section 5).
    """
    rules = rules.strip()
    if (line_break := re.search(r"[\r\n]", rules)) is not None:
        rule_start = rules[: line_break.start()].rpartition(",")[2].strip(' "')
        raise ValueError(f"a line break follows {rule_start!r}, but a header has one line")
    try:
        rule_texts = next(csv.reader([rules], skipinitialspace=True), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error
    headers = []
    for rule in map(str.strip, rule_texts):
        action, _, header = rule.partition(" ")
        name, colon, value = (header_part.strip() for header_part in header.partition(":"))
        # Connect also has setDate and addDate, with a date as value; a fixed date in every response has no use.
        if action not in ("set", "add") or not colon or not name:
            raise ValueError(f"{rule!r} is not `set NAME: VALUE` or `add NAME: VALUE`")
        if _HEADER_NAME_PATTERN.fullmatch(name) is None:
            raise ValueError(f"{rule!r}: a header's name consists of ASCII letters, digits and !#$%&'*+-.^_`|~")
        if _HEADER_VALUE_PATTERN.fullmatch(value) is None:
            raise ValueError(
                f"{rule!r}: a header's value consists of characters of Latin-1, without control characters"
            )
        headers.append(ResponseHeader(name, value, replaces_existing=action == "set"))
    return tuple(headers)


def _choices_text(choices: type[StrEnum]) -> str:
    """The values of ``choices`` as text for a message: "none, requested or required"."""
    *first, last = choices
    return f"{', '.join(first)} or {last}"


def format_host_for_url(host: str) -> str:
    """``host`` as a URL contains it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
