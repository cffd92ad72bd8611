"""Listeners, their certificates, users, CORS and response headers of a worker's REST API."""

import csv

import pytest

from coterie.config.rest import ClientAuth, ResponseHeader, RestListener, RestScheme
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import ConfigError

REQUIRED = {
    "group.id": "fleet",
    "config.storage.topic": "fleet-configs",
    "offset.storage.topic": "fleet-offsets",
    "status.storage.topic": "fleet-status",
    "checkpoint.location": "/shared/checkpoints",
}

CERTIFICATE = {
    "listeners.https.ssl.keystore.location": "/tls/worker.pem",
    "listeners.https.ssl.keystore.type": "PEM",
}


def settings(properties: dict[str, str]) -> WorkerSettings:
    return WorkerSettings.from_properties({**REQUIRED, **properties})


def errors(properties: dict[str, str]) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        settings(properties)
    return {key: message for key, (message,) in raised.value.errors.items()}


SAME_PORT = "two listeners have the same port on the same host: set another port for one of them"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("listeners", "8083", "8083 is not http://host:port or https://host:port"),
        ("listeners", "ftp://a:1", "ftp://a:1 is not http://host:port or https://host:port"),
        ("listeners", "http://a:99999", "http://a:99999 is not http://host:port or https://host:port"),
        ("listeners", "http://a:1/x", "http://a:1/x is not http://host:port or https://host:port"),
        ("listeners", "http://a:1,https://A:1", SAME_PORT),
        ("listeners", "http://a:1,http://:1", SAME_PORT),
        ("listeners", "http://0.0.0.0:1,http://a:2,http://b:1", SAME_PORT),
        ("listeners", "http://[::1]:1,http://[::]:1", SAME_PORT),
        ("admin.listeners", "9083", "9083 is not http://host:port or https://host:port"),
        ("admin.listeners", "http://a:1,https://A:1", SAME_PORT),
        ("admin.listeners", "http://a:8083", "listeners has the port 8083, too: set another one"),
        ("rest.advertised.port", "0", "must be at least 1"),
        ("rest.advertised.listener", "ftp", "must be http or https"),
        ("rest.advertised.listener", "https", "listeners has no address with this scheme"),
        ("response.http.headers.config", "set X", "'set X' is not `set NAME: VALUE` or `add NAME: VALUE`"),
        ("response.http.headers.config", "put X: y", "'put X: y' is not `set NAME: VALUE` or `add NAME: VALUE`"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key(key: str, value: str, reason: str) -> None:
    assert errors({key: value}) == {key: f"Invalid value {value} for configuration {key}: {reason}"}


def test_a_worker_has_several_listeners_and_advertises_the_first_http_listener() -> None:
    both = settings({"listeners": "https://worker-1:8443,http://:8083", **CERTIFICATE})
    assert both.rest_listeners == (
        RestListener(RestScheme.HTTPS, "worker-1", 8443),
        RestListener(RestScheme.HTTP, "", 8083),
    )
    assert both.advertised_listener.scheme is RestScheme.HTTP
    assert settings({"listeners": "https://worker-1:8443", **CERTIFICATE}).advertised_url() == "https://worker-1:8443/"


def test_listeners_may_have_the_same_port_on_different_hosts() -> None:
    hosts = settings(
        {"listeners": "http://127.0.0.1:8083,http://10.0.0.1:8083", "admin.listeners": "http://[::1]:8083"}
    )
    assert [listener.host for listener in hosts.rest_listeners] == ["127.0.0.1", "10.0.0.1"]
    assert hosts.rest_admin_listeners[0].port == 8083


def test_the_advertised_scheme_may_be_chosen() -> None:
    chosen = {"listeners": "http://:8083,https://worker-1:8443", "rest.advertised.listener": "HTTPS", **CERTIFICATE}
    assert settings(chosen).advertised_url() == "https://worker-1:8443/"


def test_a_listener_on_port_0_is_advertised_with_the_bound_port() -> None:
    listener = settings({"listeners": "http://127.0.0.1:0"})
    assert listener.advertised_url(bound_port=40123) == "http://127.0.0.1:40123/"


def test_a_listener_on_every_interface_is_advertised_with_the_host_name() -> None:
    assert settings({"listeners": "http://0.0.0.0:8083"}).advertised_address().host not in ("", "0.0.0.0")


def test_an_ipv6_listener_keeps_its_brackets_in_the_url() -> None:
    assert settings({"listeners": "http://[::1]:8083"}).advertised_url() == "http://[::1]:8083/"


# -- certificates -----------------------------------------------------------------------------------------------------


def test_an_https_listener_needs_a_certificate() -> None:
    message = errors({"listeners": "https://:8443"})["listeners.https.ssl.keystore.location"]
    assert message.startswith('Missing required configuration "listeners.https.ssl.keystore.location" with an https')


def test_the_certificate_of_the_kafka_clients_serves_https_unless_a_key_for_https_is_set() -> None:
    kafka = {"ssl.keystore.location": "/tls/kafka.pem", "ssl.keystore.type": "PEM", "ssl.ca.location": "/tls/ca.pem"}
    assert settings({"listeners": "https://:1", **kafka}).rest_tls.files.certificate_location == "/tls/kafka.pem"
    https = settings({"listeners": "https://:1", **kafka, **CERTIFICATE}).rest_tls.files
    assert (https.certificate_location, https.key_location, https.trusted_ca_location) == (
        "/tls/worker.pem",
        "/tls/worker.pem",
        None,
    )


def test_a_java_keystore_is_refused_by_the_name_of_its_key() -> None:
    jks = {"listeners": "https://:1", "listeners.https.ssl.keystore.location": "/tls/worker.jks"}
    assert "only PEM can be read" in errors(jks)["listeners.https.ssl.keystore.type"]


@pytest.mark.parametrize(("value", "client_auth"), [("", "none"), ("requested", "requested"), ("REQUIRED", "required")])
def test_clients_may_need_a_certificate(value: str, client_auth: str) -> None:
    properties = {**CERTIFICATE, "listeners.https.ssl.ca.location": "/tls/ca.pem"}
    found = settings({**properties, "listeners.https.ssl.client.auth": value}).rest_tls.client_auth
    assert found is ClientAuth(client_auth)


def test_client_certificates_need_a_truststore_and_a_known_value() -> None:
    key = "listeners.https.ssl.client.auth"
    assert errors({**CERTIFICATE, key: "required"}) == {
        "listeners.https.ssl.truststore.location": "Missing required configuration "
        f'"listeners.https.ssl.truststore.location" with {key}=required.'
    }
    assert errors({**CERTIFICATE, key: "yes"}) == {
        key: f"Invalid value yes for configuration {key}: must be none, requested or required"
    }


def test_the_keys_of_https_are_known() -> None:
    known = {**CERTIFICATE, "listeners.https.ssl.client.auth": "none", "ssl.client.auth": "none"}
    assert WorkerSettings.unknown_keys({**known, "listeners.https.ssl.protocol": "TLS"}) == [
        "listeners.https.ssl.protocol"
    ]


# -- users, pages of other addresses, headers -------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["eager", "compatible"])
def test_users_need_a_protocol_with_signed_requests(protocol: str) -> None:
    users = {"rest.users.file": "/etc/coterie/users.json"}
    assert (
        "only with connect.protocol sessioned or static"
        in (errors({**users, "connect.protocol": protocol})["rest.users.file"])
    )
    assert settings({**users, "connect.protocol": "sessioned"}).rest_users_file == "/etc/coterie/users.json"
    assert settings({**users, "group.protocol": "connect"}).rest_users_file is not None


def test_connects_keys_allow_pages_of_other_addresses() -> None:
    assert settings({}).allowed_origins == ()
    allowed = settings({"access.control.allow.origin": "https://ui.example, http://localhost:3000"})
    assert allowed.allowed_origins == ("https://ui.example", "http://localhost:3000")
    assert allowed.allowed_methods == ("GET", "POST", "HEAD"), "as in Connect"
    assert settings({"access.control.allow.methods": "get,PUT"}).allowed_methods == ("GET", "PUT")


def test_response_headers_are_parsed_as_connect_writes_them() -> None:
    rules = 'set X-Frame-Options: DENY, "add Cache-Control: no-cache, no-store",set X-XSS-Protection: 1; mode=block'
    assert settings({"response.http.headers.config": rules}).response_headers == (
        ResponseHeader("X-Frame-Options", "DENY", replaces_existing=True),
        ResponseHeader("Cache-Control", "no-cache, no-store", replaces_existing=False),
        ResponseHeader("X-XSS-Protection", "1; mode=block", replaces_existing=True),
    )


@pytest.mark.parametrize(
    ("rules", "named_rule"),
    [
        ("set A: b, set X-Frame-Options: DENY\nset C: d", "'set X-Frame-Options: DENY'"),
        ('set A: b,"add X-Frame-Options: DE\r\nNY"', "'add X-Frame-Options: DE'"),
        ("set X-Frame-Options: DE\x00NY", "'set X-Frame-Options: DE\\x00NY'"),
        ("set A: b, set X Frame-Options: DENY", "'set X Frame-Options: DENY'"),
        ("set X-Främe-Options: DENY", "'set X-Främe-Options: DENY'"),
        ("set X-Motto: 10 €", "'set X-Motto: 10 €'"),
        pytest.param(f"set A: {'a' * csv.field_size_limit()}", "field larger than field limit", id="a long rule"),
    ],
)
def test_a_header_that_no_response_can_have_is_refused_with_its_key_and_rule(rules: str, named_rule: str) -> None:
    message = errors({"response.http.headers.config": rules})["response.http.headers.config"]
    reason = message.removeprefix(f"Invalid value {rules} for configuration response.http.headers.config: ")
    assert reason != message
    assert named_rule in reason


def test_the_value_of_a_response_header_may_be_empty_or_contain_letters_of_latin_1() -> None:
    rules = 'set X-Empty:,set X-Motto: grün\tund "gut"'
    assert settings({"response.http.headers.config": rules}).response_headers == (
        ResponseHeader("X-Empty", "", replaces_existing=True),
        ResponseHeader("X-Motto", 'grün\tund "gut"', replaces_existing=True),
    )


def test_admin_listeners_are_those_of_listeners_others_or_none() -> None:
    assert settings({}).admin_listeners is None
    assert settings({"admin.listeners": ""}).admin_listeners == ()
    others = settings({"admin.listeners": "http://127.0.0.1:9083"})
    assert others.rest_admin_listeners == (RestListener(RestScheme.HTTP, "127.0.0.1", 9083),)
    missing = errors({"admin.listeners": "https://:9443"})
    assert list(missing) == ["listeners.https.ssl.keystore.location"]
