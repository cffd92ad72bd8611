"""Clients that write to any worker while workers restart, as clients behind a load balancer do."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

CONFIG = {"connector.class": "Light", "tasks.max": "1"}
NAMES = 3
"""How many connectors each client creates, changes and deletes at a time."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was answered."""

    method: str
    path: str
    status: int
    message: str
    worker: str
    """The URL of the worker that has answered."""
    began_s: float
    ended_s: float


@dataclass
class Journal:
    """What all clients have seen; every field is safe to append to on any thread."""

    writes: list[Write] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """The URLs of the workers that have refused a connection: nothing was sent."""
    broken: list[str] = field(default_factory=list)
    """The URLs of the workers whose connection broke before a response came."""
    unreadable: list[str] = field(default_factory=list)
    """The writes that another worker did not show at once."""
    unanswered: set[int] = field(default_factory=set)
    """The numbers of the clients that have sent a write and wait for its response."""

    def in_flight(self, at_s: float) -> int:
        """How many of the answered writes were sent before ``at_s`` and answered after it."""
        return sum(write.began_s < at_s < write.ended_s for write in self.writes)


class Writer(threading.Thread):
    """One client. After each write it reads the connector at once, from another worker that is not restarting."""

    def __init__(self, number: int, urls: Callable[[], Sequence[str]], restarting: set[str], journal: Journal) -> None:
        """``urls``: those of all workers that were started and are not known to have ended. ``restarting``: those of
        the workers that restart now."""
        super().__init__(name=f"writer-{number}", daemon=True)
        self._number = number
        self._urls = urls
        self._restarting = restarting
        self._journal = journal
        self._turn = number
        self._stopped = threading.Event()
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Let the client end after the present round of writes."""
        self._stopped.set()

    def run(self) -> None:
        try:
            with httpx.Client(timeout=100, limits=httpx.Limits(max_keepalive_connections=0)) as self._client:
                for round_ in itertools.count():
                    for write in self._round([f"w{self._number}-{round_}-{i}" for i in range(NAMES)]):
                        self._perform(*write)
                    if self._stopped.is_set():
                        return
        except BaseException as error:
            self.error = error
            raise

    @staticmethod
    def _round(names: Sequence[str]) -> Iterator[tuple[str, str, str, Any]]:
        """Method, path, the connector's name and the body of each write of one round."""
        for name in names:
            yield "POST", "/connectors", name, {"name": name, "config": CONFIG}
        for name in names:
            yield "PUT", f"/connectors/{name}/config", name, {**CONFIG, "tasks.max": "2"}
            yield "PATCH", f"/connectors/{name}/config", name, {"note": name}
            yield "PUT", f"/connectors/{name}/stop", name, None
        for name in names:
            yield "DELETE", f"/connectors/{name}", name, None

    def _perform(self, method: str, path: str, name: str, body: Any) -> None:
        began_s = time.monotonic()
        response = self._send(method, path, body)
        worker = str(response.url.copy_with(path="/", query=None)).rstrip("/")
        message = response.text if response.is_error else ""
        self._journal.writes.append(
            Write(method, path, response.status_code, message, worker, began_s, time.monotonic())
        )
        if response.is_success and not self._is_shown(method, path, name, body, worker):
            self._journal.unreadable.append(f"{method} {path}, written by {worker}")

    def _send(self, method: str, path: str, body: Any) -> httpx.Response:
        """The response of the first worker that can be reached, beginning with another one each time."""
        while True:
            url = self._next_url()
            self._journal.unanswered.add(self._number)
            try:
                return self._client.request(method, url + path, json=body)
            except httpx.ConnectError:
                self._journal.refused.append(url)
            except httpx.TransportError:
                self._journal.broken.append(url)
                raise
            finally:
                self._journal.unanswered.remove(self._number)

    def _next_url(self, *, but: str = "", up: bool = False) -> str:
        """The next worker that is not ``but`` and, with ``up``, is not restarting."""
        while True:
            self._turn += 1
            urls = self._urls()
            url = urls[self._turn % len(urls)]
            if url != but and not (up and url in self._restarting):
                return url

    def _is_shown(self, method: str, path: str, name: str, body: Any, written_by: str) -> bool:
        """Whether another worker shows the write at once."""
        url = self._next_url(but=written_by, up=True)
        try:
            response = self._client.get(f"{url}/connectors/{name}")
        except httpx.TransportError:
            # The worker has begun to restart since.
            assert url in self._restarting, url
            return self._is_shown(method, path, name, body, written_by)
        if response.status_code == 503 and url in self._restarting:
            return self._is_shown(method, path, name, body, written_by)
        if response.status_code != 200:
            return method == "DELETE" and response.status_code == 404
        info: Mapping[str, Any] = response.json()
        match method, path.rpartition("/")[2]:
            case "PUT", "stop":
                return not info["tasks"]
            case "DELETE", _:
                return False
            case "POST", _:
                return bool(info["config"]["tasks.max"] == "1")
            case "PUT", _:
                return bool(info["config"]["tasks.max"] == "2" and "note" not in info["config"])
            case _:
                return bool(info["config"]["note"] == name)
