"""Runs actors one file-system operation at a time, in an order that depends on a seed; kills and freezes some of them.

Each actor is a thread. Before every file-system call it waits for its turn, so that exactly one actor runs at any time.
The protocol under test is the real code, unchanged: the calls are intercepted in Python.
"""

import io
import itertools
import os
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from coterie.spark import checkpoint
from coterie.spark.generations import durable

CALLS = ("listdir", "scandir", "mkdir", "rename", "link", "unlink", "rmdir", "open", "stat", "utime")


class Killed(BaseException):
    """Ends an actor. Not an Exception, so that the protocol does not catch it."""


class Actor:
    """One thread, which runs only in its turns."""

    def __init__(self, name: str, play: Callable[[], None]) -> None:
        self.name = name
        self.is_killed = False
        self.failure: BaseException | None = None
        self.frozen_for = 0
        self._may_go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._play = play
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._waits.acquire()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def go_on(self) -> None:
        """Let the actor run up to its next operation, or to its end."""
        self._may_go.release()
        self._waits.acquire()
        if self._is_over:
            self._thread.join()

    def pause(self) -> None:
        """Called by the actor's thread before each operation."""
        self._waits.release()
        self._may_go.acquire()
        if self.is_killed:
            raise Killed

    _is_over = False

    def _run(self) -> None:
        LOCAL.actor = self
        try:
            self.pause()
            self._play()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - the stage raises it
            self.failure = error
        finally:
            self._is_over = True
            self._waits.release()


LOCAL = threading.local()


class Stage:
    """Lets actors take turns."""

    def __init__(self, rng: random.Random, *, kill: float, freeze: float) -> None:
        self.actors: list[Actor] = []
        self.steps = 0
        self.story: deque[str] = deque(maxlen=400)
        self._rng = rng
        self._kill, self._freeze = kill, freeze

    def enter(self, name: str, play: Callable[[], None]) -> None:
        self.actors.append(Actor(name, play))

    def run(self, steps: int, *, on_death: Callable[[], None]) -> None:
        """Run for ``steps`` operations, with kills and freezes; ``on_death`` may start another actor."""
        rng, until = self._rng, self.steps + steps
        while self.steps < until and self.actors:
            for actor in self.actors:
                actor.frozen_for -= 1
            awake = [actor for actor in self.actors if actor.frozen_for <= 0] or self.actors
            actor = rng.choice(awake)
            for _ in range(rng.choice((1, 1, 3, 10, 60, 200))):
                if rng.random() < self._kill:
                    self.story.append(f"{actor.name} is killed")
                    actor.is_killed = True
                self._turn(actor)
                if actor.has_ended:
                    on_death()
                    break
                if rng.random() < self._freeze:
                    actor.frozen_for = rng.choice((3, 10, 30, 100))
                    self.story.append(f"{actor.name} freezes for {actor.frozen_for} turns")
                    break

    def run_to_the_end(self) -> None:
        """Let all remaining actors run until they end, in any order."""
        limit = self.steps + 100_000
        while self.actors:
            actor = self._rng.choice(self.actors)
            for _ in range(self._rng.choice((1, 10, 100))):
                self._turn(actor)
                if actor.has_ended:
                    break
            assert self.steps < limit, "the actors do not end:\n" + "\n".join(self.story)

    def kill_all(self) -> None:
        """Kill the remaining actors: their threads, and the threads that they have started, have ended."""
        while self.actors:
            actor = self.actors.pop()
            actor.is_killed = True
            while not actor.has_ended:
                actor.go_on()

    def _turn(self, actor: Actor) -> None:
        self.steps += 1
        actor.go_on()
        if actor.has_ended:
            self.actors.remove(actor)
            if actor.failure is not None:
                raise AssertionError(f"{actor.name} failed; before:\n" + "\n".join(self.story)) from actor.failure


def install(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    """Make the actors of ``stage`` wait for their turn before each operation."""
    numbers = itertools.count()

    def step(what: str) -> None:
        actor: Actor | None = getattr(LOCAL, "actor", None)
        if actor is not None:
            actor.pause()
            stage.story.append(f"{actor.name}: {what}")

    def pause_or_sleep(seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        # Threads of Spark that an earlier test has left must not spin.
        if getattr(LOCAL, "actor", None) is None:
            sleep(seconds)
        else:
            step("sleep")

    def stepped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keys: Any) -> Any:
            step(f"{name} {' '.join(_shown(arg) for arg in args[:2])}")
            return real(*args, **keys)

        return call

    for name in CALLS:
        real = getattr(os, name)
        if name == "listdir":
            monkeypatch.setattr(os, name, stepped(name, lambda path, real=real: sorted(real(path))))
        else:
            monkeypatch.setattr(os, name, stepped(name, real))
    monkeypatch.setattr(io, "open", stepped("open", io.open))
    # Then a seed gives the same names in each run.
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.uuid5(uuid.NAMESPACE_OID, str(next(numbers))))
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(time, "sleep", pause_or_sleep)
    exchange = stepped("exchange_names", checkpoint.exchange_names)
    for module in (checkpoint, durable):
        monkeypatch.setattr(module, "exchange_names", exchange)


def _shown(arg: object) -> str:
    if isinstance(arg, str | os.PathLike):
        return "/".join(os.fspath(arg).split("/")[-3:])
    return ""
