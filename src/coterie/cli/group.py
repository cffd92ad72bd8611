"""What a group says of itself over REST, asked of whoever of its workers answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx

from coterie.cli.asking import message_in, nobody_at
from coterie.nouns.errors import WorldError

Shown: TypeAlias = Mapping[str, Any]
"""A group, or one of its members, as `docs/rest.md` describes it."""

_LOOK_EVERY_S = 0.2
_ROUNDS_S = 30.0
"""How long a group may be without a leader that answers: a session, and a round."""


class Group:
    """A group, by the URL of any of its workers; it learns the others' as it goes, since that one may go first."""

    def __init__(self, url: str) -> None:
        self._urls = [url.rstrip("/")]
        self._has_answered = False
        self._client = httpx.Client(timeout=httpx.Timeout(20, connect=5), trust_env=False)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def shown(self, *, patience_s: float = _ROUNDS_S) -> Shown:
        """The group now. While it has no leader that answers, it is asked again for ``patience_s``.

        :raises WorldError: when no worker answers, or what they say instead.
        """
        deadline = time.monotonic() + patience_s
        while True:
            response, why = self._ask("GET", "/coterie/group")
            if response is not None and response.is_success:
                shown: Shown = response.json()
                self._learn(shown)
                return shown
            is_final = not self._has_answered or (response is not None and response.status_code < 500)
            if is_final or time.monotonic() >= deadline:
                raise WorldError(why)
            time.sleep(_LOOK_EVERY_S)

    def order(self, method: str, worker: str, what: str) -> Shown:
        """Order ``worker`` to do ``what``; what it answers.

        :raises WorldError: with why it does not.
        """
        response, why = self._ask(method, f"/coterie/workers/{quote(worker, safe='')}/{what}")
        if response is None or not response.is_success:
            raise WorldError(why)
        answered: Shown = response.json()
        return answered

    def wait(
        self, until: Callable[[Shown], bool], *, within_s: float, say: Callable[[Shown], None] = lambda _: None
    ) -> bool:
        """Look at the group again and again until it is so; whether it was in time."""
        deadline = time.monotonic() + within_s
        while True:
            shown = self.shown(patience_s=max(deadline - time.monotonic(), 0))
            say(shown)
            if until(shown):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_EVERY_S)

    def answers(self, url: str) -> bool:
        """Whether there is still a worker at ``url``."""
        try:
            self._client.get(f"{url.rstrip('/')}/health")
        except httpx.HTTPError:
            return False
        return True

    def _ask(self, method: str, path: str) -> tuple[httpx.Response | None, str]:
        """The answer of the first worker that has one to give, and what to say where it is none."""
        response: httpx.Response | None = None
        why = ""
        for url in list(self._urls):
            try:
                response = self._client.request(method, url + path)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = why or nobody_at(url, error)
                continue
            self._has_answered = True
            why = f"{message_in(response)} (HTTP {response.status_code} from {url})"
            if response.status_code < 500:
                break
        return response, why

    def _learn(self, shown: Shown) -> None:
        here = [str(member["url"]).rstrip("/") for member in shown["members"]]
        self._urls += [url for url in here if url not in self._urls]


def found(shown: Shown, worker: str) -> Shown | None:
    """The member that ``worker`` means, by its name, ``host:port`` or instance id."""
    members: Sequence[Shown] = shown["members"]
    for key in ("name", "worker_id", "instance_id"):
        for member in members:
            if member[key] == worker:
                return member
    return None
