"""A client of a group's REST API, which sends each request to its workers in turn until a worker responds."""

import errno
import socket
import sys
import time
from collections.abc import Callable, Mapping, Set

import httpx

from coterie.cli.group.descriptions import (
    GroupDescription,
    OrderResponse,
    parse_connector_config_response,
    parse_group_description,
    parse_order_response,
    parse_paused_or_stopped_connectors,
)
from coterie.cli.rest_request import (
    basic_login,
    error_message,
    find_os_error_cause,
    is_weaker_scheme,
    no_response_message,
    open_http_client,
    tls_failure_message,
)
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorName
from coterie.rest.path_encoding import encoded_path
from coterie.rest.unsent_requests import INVALID_URL_ERRORS, UNREACHABLE_ERRORS

POLL_INTERVAL_S = 0.2
"""The time between two requests for the state of a group that has not reached the expected state yet."""
WAIT_MESSAGE_AFTER_S = 1.0
"""Time from a request after which the client prints why it waits: a worker is starting up, or there is no leader."""
LEADER_TIMEOUT_S = 30.0
"""How long a group may be without a leader that responds: a session timeout and a rebalance."""
_NO_LISTENER_ERRNOS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""The errors of a TCP connection to an address at which no process listens, or to which there is no route."""


class GroupRestClient:
    """A client of a group through the REST API of its workers, given the URL of any of them.

    The client adds the URLs of the other workers from each description of the group, because the given worker may end
    before the others. While no leader responds, :meth:`describe_group` repeats its request until a time limit; but if
    no worker has ever responded to this client, it raises WorldError at once. An order is sent once to each worker in
    turn, until it may have been accepted: a worker has responded with another status than 503, or the request was sent
    and no response has come.

    The log-in of the command is not sent to an http URL of a worker if the given URL is https: the first request to
    such a URL prints one line on standard error. A worker there that needs a log-in counts as one that does not
    respond."""

    def __init__(self, url: str) -> None:
        """``url`` is the REST URL of a worker of the group."""
        self._given_url = url
        self._urls = [url.rstrip("/")]
        self._urls_without_login: set[str] = set()
        """The URLs for which standard error has the line that the log-in is not sent to them."""
        self._has_any_worker_responded = False
        self._printed_reasons: set[str] = set()
        self._http_client = open_http_client()

    def __enter__(self) -> "GroupRestClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._http_client.close()

    def describe_group(self, *, timeout_s: float = LEADER_TIMEOUT_S) -> GroupDescription:
        """Return the group's present description.

        While no leader responds, the request is repeated until ``timeout_s`` after this call. The request is not
        repeated after an error response with a status below 500, nor as long as no worker has ever responded to this
        client.

        :raises WorldError: when no worker responds, with the message of an error response, or when the response is not
            a description of a group.
        """
        began_at_s = time.monotonic()
        while True:
            response, reason = self._request_from_any_worker("GET", "/coterie/group")
            if response is not None and response.is_success:
                description = parse_group_description(response.content, source=f"The response of {response.url}")
                member_urls = [member.url.rstrip("/") for member in description.members]
                self._urls += [url for url in member_urls if url not in self._urls]
                return description
            is_final = not self._has_any_worker_responded or (response is not None and response.status_code < 500)
            waited_s = time.monotonic() - began_at_s
            if is_final or waited_s >= timeout_s:
                raise WorldError(reason)
            if waited_s >= WAIT_MESSAGE_AFTER_S and reason not in self._printed_reasons:
                self._printed_reasons.add(reason)  # a set, because the messages of two starting workers may alternate
                sys.stderr.write(f"Waiting: {reason}\n")
            time.sleep(POLL_INTERVAL_S)

    def send_order(self, method: str, worker: str, action: str) -> OrderResponse:
        """Order ``worker`` (a name, host:port or instance id) to drain or to restart. Returns the worker's response.

        ``action`` is ``drain``, ``restart`` or ``restart?moveJobs=true``. ``method`` is POST to begin the action, or
        DELETE to cancel a drain.

        :raises WorldError: when no worker responds, with the message of an error response, or when the response is not
            that of a worker. If the order was sent and no response has come, the worker may have accepted the order;
            the message then contains this.
        """
        self._printed_reasons.clear()
        response, reason = self._request_from_any_worker(
            method, f"{encoded_path(('coterie', 'workers', worker))}/{action}"
        )
        if response is None or not response.is_success:
            raise WorldError(reason)
        return parse_order_response(response.content, source=f"The response of {response.url}")

    def wait_and_return_unmet_reason(self, unmet_reason: Callable[[GroupDescription], str], *, timeout_s: float) -> str:
        """Read the group's description again and again until ``unmet_reason`` returns "" for it, for ``timeout_s`` at
        most.

        Returns "" as soon as ``unmet_reason`` returns "". At the end of ``timeout_s`` no error is raised: the result is
        then the last reason that ``unmet_reason`` returned or, if the group could not be read, the error message.

        :raises WorldError: when :meth:`describe_group` raises it before the end of ``timeout_s``.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                description = self.describe_group(timeout_s=max(deadline_s - time.monotonic(), 0))
            except WorldError as error:
                if time.monotonic() < deadline_s:
                    raise
                return str(error)
            if not (reason := unmet_reason(description)) or time.monotonic() >= deadline_s:
                return reason
            time.sleep(POLL_INTERVAL_S)

    def paused_or_stopped_connectors(self) -> Set[str]:
        """The names of the connectors that are paused or stopped.

        :raises WorldError: when no worker responds, with the message of an error response, or when the response is not
            a list of connectors.
        """
        response, reason = self._request_from_any_worker("GET", "/connectors?expand=status")
        if response is None or not response.is_success:
            raise WorldError(reason)
        return parse_paused_or_stopped_connectors(response.content, source=f"The response of {response.url}")

    def connector_config(self, connector: ConnectorName) -> Mapping[str, str | None]:
        """The config of ``connector``.

        :raises WorldError: when no worker responds, or with the message of an error response, for example because the
            connector does not exist.
        """
        response, reason = self._request_from_any_worker("GET", encoded_path(("connectors", connector, "config")))
        if response is None or not response.is_success:
            raise WorldError(reason)
        return parse_connector_config_response(response.content, source=f"The response of {response.url}")

    def refuses_connections(self, url: str) -> bool:
        """Whether no process listens at ``url``: the connection is refused, or there is no route to the host, or its
        name has no address.

        False if the connection is opened, also if the response is an error or does not come in time.

        :raises WorldError: when the TLS connection fails, for example because the certificate is not trusted.
        """
        try:
            # Without the log-in: each response, also 401, shows that a process listens.
            self._http_client.get(f"{url.rstrip('/')}/health")
        except httpx.HTTPError as error:
            if (message := tls_failure_message(url, error)) is not None:
                raise WorldError(f"Whether a process still listens at {url} is not known: {message}") from error
            match find_os_error_cause(error):
                case socket.gaierror(errno=code):
                    # A host that has ended may have lost its name, too, as a pod of Kubernetes does.
                    return code == socket.EAI_NONAME
                case OSError(errno=code):
                    return code in _NO_LISTENER_ERRNOS
                case None:
                    return False
        return False

    def _request_from_any_worker(self, method: str, path: str) -> tuple[httpx.Response | None, str]:
        """Send the request to the workers in turn, until a response has a status below 500. Another method than GET is
        sent to the next worker only if no worker can have performed the request: no connection was opened, or the
        status is 503.

        Returns this response, else the last response, or None without any response; and the error message of the
        response or, if there is none, the reason why no worker responded. The message has no meaning for a success.
        """
        may_repeat = method == "GET"
        response: httpx.Response | None = None
        reason = ""
        for url in list(self._urls):
            try:
                login = self._login_unless_weaker_scheme(url)
                url_response = self._http_client.request(method, url + path, auth=login)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if not (may_repeat or isinstance(error, (*UNREACHABLE_ERRORS, *INVALID_URL_ERRORS))):
                    return None, (
                        f"No response came from {url} after the order was sent ({str(error) or type(error).__name__}): "
                        "the order may have been accepted. `coterie group` shows the state of the workers"
                    )
                reason = reason or no_response_message(url, error)
                continue
            if url_response.status_code == 401 and url in self._urls_without_login:
                reason = reason or f"The worker at {url} needs a log-in, which is not sent to an http URL"
                continue
            response = url_response
            self._has_any_worker_responded = True
            # The next request goes to this worker first: a worker that does not respond may cost a timeout.
            self._urls = [url, *(other_url for other_url in self._urls if other_url != url)]
            reason = f"{error_message(response)} (HTTP {response.status_code} from {url})"
            if response.status_code < 500 or not (may_repeat or response.status_code == 503):
                break
        return response, reason

    def _login_unless_weaker_scheme(self, url: str) -> tuple[str, str] | None:
        """The log-in for a request to ``url``, user and password; None if the command has none, or if the request would
        send it in clear although the given URL is https. The latter is printed once for each URL.

        :raises httpx.InvalidURL: when ``url`` is not valid.
        """
        login = basic_login()
        if login is None or not is_weaker_scheme(url, given_url=self._given_url):
            return login
        if url not in self._urls_without_login:
            self._urls_without_login.add(url)
            sys.stderr.write(
                f"The log-in is not sent to {url}, because that URL is not encrypted and {self._given_url} is: set "
                "rest.advertised.listener=https on that worker.\n"
            )
        return None
