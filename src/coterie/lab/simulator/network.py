"""The network between the broker and the workers, clients or producers: messages may be delayed, reordered or lost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World


class Direction(StrEnum):
    """The direction of a message. The values are part of records."""

    TO_BROKER = "to broker"
    TO_WORKER = "to worker"


@dataclass(slots=True)
class Link:
    """The present faults of the link between one worker (or client, or producer) and the broker."""

    cut: bool = False
    """Whether every message is lost."""
    loss_probability: float = 0.0
    """The probability that a message is lost."""
    break_probability: float = 0.0
    """The probability that the connection of a call breaks; its request still arrives, late."""
    drops_large: bool = False
    """Whether large messages are lost and small ones arrive, as behind a router that drops packets above its limit."""
    delayed_until_ms: dict[Direction, int] = field(default_factory=dict)
    """By direction, the time before which no message arrives that is sent now."""


class Network:
    """The links by the name of the worker, client or transactional id. All processes of one name share a link."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: dict[str, Link] = {}
        self.late_probability = 0.02
        """The probability that a message is delayed by 10 to 800 ms, on a healthy link too."""

    def link(self, worker: str) -> Link:
        """The link of ``worker``; a healthy one if it has none yet."""
        link = self._links.get(worker)
        if link is None:
            link = self._links[worker] = Link()
        return link

    def heal(self) -> None:
        """End all faults of all links."""
        self._links.clear()

    def call(
        self,
        worker: str,
        serve: "Callable[[Call], None]",
        *,
        answered: Callable[[object], None],
        failed: Callable[[str], None],
        late_max_ms: int = 0,
        large: bool = False,
    ) -> "Call":
        """Send a request over the link of ``worker`` to the broker, which handles it with ``serve``. The result is the
        call, which ``serve`` also receives. Then ``answered`` is called with the response, or ``failed`` with a reason;
        at most one of them, once. ``large``: whether the response is a large message.

        When the connection breaks, the call fails, but the request still arrives, up to ``late_max_ms`` later.
        """
        call = Call(self._world, self, worker, answered, failed, large=large)
        late_ms = 0
        if self.link(worker).break_probability and self._world.chance(self.link(worker).break_probability):
            call.fail("the connection broke", within_ms=300)
            late_ms = self._world.rng.randint(0, late_max_ms)
            self._world.record(RecordKind.BROKEN, worker, late_ms)
        self.send(
            worker,
            Direction.TO_BROKER,
            lambda: serve(call),
            lost=lambda: call.fail("no response", within_ms=4_000),
            late_ms=late_ms,
        )
        return call

    def send(
        self,
        worker: str,
        direction: Direction,
        arrive: Callable[[], None],
        *,
        lost: Callable[[], None],
        late_ms: int = 0,
        large: bool = False,
    ) -> None:
        """Send one message over the link of ``worker``: call ``arrive`` when it arrives, after the delays of the link
        and ``late_ms``; if it is lost, call ``lost`` now. ``large``: whether the message is large."""
        link, rng, now_ms = self.link(worker), self._world.rng, self._world.now_ms
        if (
            link.cut
            or (large and link.drops_large)
            or (link.loss_probability and self._world.chance(link.loss_probability))
        ):
            self._world.record(RecordKind.LOST, worker, direction)
            lost()
            return
        at_ms = max(now_ms, link.delayed_until_ms.get(direction, 0)) + rng.randint(0, 4) + late_ms
        if self._world.chance(self.late_probability):
            at_ms += rng.randint(10, 800)
        self._world.at(at_ms, arrive)


class Call:
    """One outstanding request over the link of ``worker``. It ends once, with a response or a failure; what arrives
    later is ignored."""

    def __init__(
        self,
        world: World,
        network: Network,
        worker: str,
        answered: Callable[[object], None],
        failed: Callable[[str], None],
        *,
        large: bool,
    ) -> None:
        self._world = world
        self._network = network
        self.worker = worker
        self._answered = answered
        self._failed = failed
        self._large = large
        self._over = False

    @property
    def is_over(self) -> bool:
        """Whether the caller no longer waits: it has received the response, or its connection is closed."""
        return self._over

    def answer(self, response: object) -> None:
        """Send ``response`` to the caller. If it is lost, the call fails."""
        self._network.send(
            self.worker,
            Direction.TO_WORKER,
            lambda: self._end(lambda: self._answered(response)),
            lost=lambda: self.fail("the response was lost", within_ms=4_000),
            large=self._large,
        )

    def fail(self, reason: str, *, within_ms: int) -> None:
        """Let the call fail with ``reason`` at a random time in the next ``within_ms``."""
        self._world.after(self._world.rng.randint(1, within_ms), lambda: self.give_up(reason))

    def give_up(self, reason: str) -> None:
        """Let the call fail with ``reason`` now, unless it has ended."""
        self._end(lambda: self._failed(reason))

    def _end(self, then: Callable[[], None]) -> None:
        """End the call and call ``then``, unless it has ended before."""
        if not self._over:
            self._over = True
            then()
