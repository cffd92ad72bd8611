"""The messages of commands whose TLS connection to a worker fails."""

import re

import pytest

from coterie.cli.rest_request import send_request_or_raise
from coterie.nouns.errors import WorldError
from tests.certificates import Authority
from tests.cli.answers import answering, http_server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def failure_message(url: str) -> str:
    """The message of a command whose request to ``url`` fails."""
    with pytest.raises(WorldError) as raised:
        send_request_or_raise(url, "GET", "/")
    return str(raised.value)


@pytest.mark.parametrize(
    ("is_trusted", "host", "reason"),
    [
        (False, "IP:127.0.0.1", "unable to get local issuer certificate"),
        (True, "DNS:worker-1", "IP address mismatch, certificate is not valid for '127.0.0.1'."),
    ],
)
def test_a_certificate_that_is_not_accepted_is_reported_with_the_reason_and_what_to_do(
    is_trusted: bool, host: str, reason: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    pair = authority.pair("worker", host=host)
    with http_server(lambda method, path: (200, b"{}"), pair) as url:
        assert failure_message(url) == (
            f"The TLS connection to {url} failed (certificate verify failed: {reason}): with --ca, name the file with "
            "the CA certificate that issued the worker's certificate; and use a URL whose host name is in the worker's "
            "certificate."
        )


def test_an_https_url_of_an_http_listener_is_reported() -> None:
    with answering(b"{}") as http_url:
        url = http_url.replace("http:", "https:")
        assert re.fullmatch(
            rf"The TLS connection to {url} failed \(.*wrong version number.*\): use the URL of an https listener\.",
            failure_message(url),
        )
