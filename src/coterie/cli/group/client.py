"""A client of a group's REST API, which sends each request to the first worker that responds."""

import sys
import time
from collections.abc import Callable, Set
from urllib.parse import quote

import httpx

from coterie.cli.asking import message_in, nobody_at, open_client
from coterie.cli.group.shown import OrderAnswer, ShownGroup, read_group, read_order_answer, read_paused
from coterie.nouns.errors import WorldError

_LOOK_EVERY_S = 0.2
SILENT_S = 1.0
"""Time after which the client prints why it waits: a worker is starting up, or there is no leader."""
_ROUNDS_S = 30.0
"""How long a group may be without a leader that responds: a session timeout and a rebalance."""


class GroupClient:
    """A group, given the URL of any of its workers.

    The client adds the URLs of the other workers from each response, because the given worker may end first.
    """

    def __init__(self, url: str) -> None:
        self._urls = [url.rstrip("/")]
        self._has_answered = False
        self._said: set[str] = set()
        self._client = open_client()

    def __enter__(self) -> "GroupClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def shown(self, *, patience_s: float = _ROUNDS_S) -> ShownGroup:
        """The present group. While it has no leader that responds, the request is repeated for ``patience_s``.

        :raises WorldError: when no worker responds, or with the message of an error response.
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
            if waited_s >= SILENT_S and why not in self._said:
                self._said.add(why)  # a set, because the messages of two starting workers may alternate
                sys.stderr.write(f"Waiting: {why}\n")
            time.sleep(_LOOK_EVERY_S)

    def order(self, method: str, worker: str, what: str) -> OrderAnswer:
        """Order ``worker`` to do ``what``; returns its response.

        :raises WorldError: when no worker responds, or with the message of an error response.
        """
        self._said.clear()
        response, why = self._ask(method, f"/coterie/workers/{quote(worker, safe='')}/{what}")
        if response is None or not response.is_success:
            raise WorldError(why)
        return read_order_answer(response.content, source=f"The response of {response.url}")

    def wait(self, waits_for: Callable[[ShownGroup], str], *, within_s: float) -> str:
        """Read the group until ``waits_for`` returns "" for it.

        Returns the last result of ``waits_for`` or, when no worker responds until ``within_s``, the reason.
        """
        deadline = time.monotonic() + within_s
        while True:
            try:
                shown = self.shown(patience_s=max(deadline - time.monotonic(), 0))
            except WorldError as error:
                if time.monotonic() < deadline:
                    raise
                return str(error)
            if not (left := waits_for(shown)) or time.monotonic() >= deadline:
                return left
            time.sleep(_LOOK_EVERY_S)

    def paused(self) -> Set[str]:
        """The connectors that are paused or stopped."""
        response, why = self._ask("GET", "/connectors?expand=status")
        if response is None or not response.is_success:
            raise WorldError(why)
        return read_paused(response.content, source=f"The response of {response.url}")

    def refuses(self, url: str) -> bool:
        """Whether connections to ``url`` are refused: no process listens there."""
        try:
            self._client.get(f"{url.rstrip('/')}/health")
        except httpx.ConnectError:
            return True
        except httpx.HTTPError:
            return False
        return False

    def _ask(self, method: str, path: str) -> tuple[httpx.Response | None, str]:
        """Return the first response with a status below 500, else the last response or None; and an error message."""
        response: httpx.Response | None = None
        why = ""
        for url in list(self._urls):
            try:
                response = self._client.request(method, url + path)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = why or nobody_at(url, error)
                continue
            self._has_answered = True
            # The next request goes to this worker first: a worker that does not respond may cost a timeout.
            self._urls = [url, *(other for other in self._urls if other != url)]
            why = f"{message_in(response)} (HTTP {response.status_code} from {url})"
            if response.status_code < 500:
                break
        return response, why
