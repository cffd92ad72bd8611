"""A client of a group's REST API, which sends each request to its workers in turn until a worker responds."""

import sys
import time
from collections.abc import Callable, Set
from urllib.parse import quote

import httpx

from coterie.cli.group.descriptions import GroupDescription, OrderAnswer, read_group, read_order_answer, read_paused
from coterie.cli.rest_request import error_message, open_client, unreachable_message
from coterie.nouns.errors import WorldError

_POLL_INTERVAL_S = 0.2
WAIT_MESSAGE_AFTER_S = 1.0
"""Time from a request after which the client prints why it waits: a worker is starting up, or there is no leader."""
_LEADER_WAIT_MAX_S = 30.0
"""How long a group may be without a leader that responds: a session timeout and a rebalance."""


class GroupClient:
    """A client of a group, given the URL of any of its workers.

    The client adds the URLs of the other workers from each description of the group, because the given worker may end
    before the others.
    """

    def __init__(self, url: str) -> None:
        """``url`` is the REST URL of a worker of the group."""
        self._urls = [url.rstrip("/")]
        self._has_answered = False
        self._printed: set[str] = set()
        self._client = open_client()

    def __enter__(self) -> "GroupClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def describe(self, *, patience_s: float = _LEADER_WAIT_MAX_S) -> GroupDescription:
        """Return the group's present description.

        While no leader responds, the request is repeated until ``patience_s`` after this call; but if no worker has
        responded to this client yet, the request is not repeated.

        :raises WorldError: when no worker responds, with the message of an error response, or when the response is not
            a description of a group.
        """
        began = time.monotonic()
        while True:
            response, why = self._ask("GET", "/coterie/group")
            if response is not None and response.is_success:
                shown = read_group(response.content, source=f"The response of {response.url}")
                here = [member.url.rstrip("/") for member in shown.members]
                self._urls += [url for url in here if url not in self._urls]
                return shown
            is_final = not self._has_answered or (response is not None and response.status_code < 500)
            waited_s = time.monotonic() - began
            if is_final or waited_s >= patience_s:
                raise WorldError(why)
            if waited_s >= WAIT_MESSAGE_AFTER_S and why not in self._printed:
                self._printed.add(why)  # a set, because the messages of two starting workers may alternate
                sys.stderr.write(f"Waiting: {why}\n")
            time.sleep(_POLL_INTERVAL_S)

    def send_order(self, method: str, worker: str, action: str) -> OrderAnswer:
        """Order ``worker`` (a name, host:port or instance id) to do ``action``; returns the worker's response.

        ``method`` is POST to begin the action, DELETE to cancel it.

        :raises WorldError: when no worker responds, with the message of an error response, or when the response is not
            that of a worker.
        """
        self._printed.clear()
        response, why = self._ask(method, f"/coterie/workers/{quote(worker, safe='')}/{action}")
        if response is None or not response.is_success:
            raise WorldError(why)
        return read_order_answer(response.content, source=f"The response of {response.url}")

    def wait_until_met(self, unmet: Callable[[GroupDescription], str], *, within_s: float) -> str:
        """Read the group's description again and again until ``unmet`` returns "" for it, for ``within_s`` at most.

        Returns the last result of ``unmet``: "" when the condition is met. If the group could not be read at the end of
        ``within_s``, the result is the reason.

        :raises WorldError: when a request fails before the end of ``within_s`` (see :meth:`describe`).
        """
        deadline = time.monotonic() + within_s
        while True:
            try:
                shown = self.describe(patience_s=max(deadline - time.monotonic(), 0))
            except WorldError as error:
                if time.monotonic() < deadline:
                    raise
                return str(error)
            if not (left := unmet(shown)) or time.monotonic() >= deadline:
                return left
            time.sleep(_POLL_INTERVAL_S)

    def paused_connectors(self) -> Set[str]:
        """The names of the connectors that are paused or stopped.

        :raises WorldError: when no worker responds, or with the message of an error response.
        """
        response, why = self._ask("GET", "/connectors?expand=status")
        if response is None or not response.is_success:
            raise WorldError(why)
        return read_paused(response.content, source=f"The response of {response.url}")

    def refuses_connections(self, url: str) -> bool:
        """Whether no connection to ``url`` can be opened, because no process listens there.

        False if the connection is opened and the response is an error or does not come in time.
        """
        try:
            self._client.get(f"{url.rstrip('/')}/health")
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            return False
        return False

    def _ask(self, method: str, path: str) -> tuple[httpx.Response | None, str]:
        """Send the request to the workers in turn, until a response has a status below 500.

        Returns this response, else the last response, or None without any response; and the error message of the
        response or, if there is none, the reason why no worker responded. The message has no meaning for a success.
        """
        response: httpx.Response | None = None
        why = ""
        for url in list(self._urls):
            try:
                response = self._client.request(method, url + path)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = why or unreachable_message(url, error)
                continue
            self._has_answered = True
            # The next request goes to this worker first: a worker that does not respond may cost a timeout.
            self._urls = [url, *(other for other in self._urls if other != url)]
            why = f"{error_message(response)} (HTTP {response.status_code} from {url})"
            if response.status_code < 500:
                break
        return response, why
