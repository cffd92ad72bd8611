"""The network between the workers and the broker: messages may be delayed, reordered or lost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World


class Way(StrEnum):
    TO_BROKER = "to broker"
    TO_WORKER = "to worker"


@dataclass(slots=True)
class Link:
    """The present state of the link between a worker and the broker."""

    cut: bool = False
    loss: float = 0.0
    """Probability that a message is lost."""
    breaks: float = 0.0
    """Probability that a call's connection breaks; the request still arrives, late."""
    narrow: bool = False
    """Large messages are lost and small ones arrive, as behind a router that drops packets above its limit."""
    clogged_until_ms: dict[Way, int] = field(default_factory=dict)


class Network:
    """The links by worker name. A link is the same for all processes of its worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: dict[str, Link] = {}
        self.late_share = 0.02
        """Probability that a healthy link delays a message by 10 to 800 ms."""

    def link(self, worker: str) -> Link:
        link = self._links.get(worker)
        if link is None:
            link = self._links[worker] = Link()
        return link

    def heal(self) -> None:
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
        """Send a request to the broker, which handles it with ``serve``. ``answered`` or ``failed`` is called once.
        ``large``: whether the response is a large message.

        When the connection breaks, the request still arrives, up to ``late_max_ms`` later.
        """
        call = Call(self._world, self, worker, answered, failed, large=large)
        late_ms = 0
        if self.link(worker).breaks and self._world.chance(self.link(worker).breaks):
            call.fail("the connection broke", within_ms=300)
            late_ms = self._world.rng.randint(0, late_max_ms)
            self._world.record(RecordKind.BROKEN, worker, late_ms)
        self.send(
            worker,
            Way.TO_BROKER,
            lambda: serve(call),
            lost=lambda: call.fail("no response", within_ms=4_000),
            late_ms=late_ms,
        )
        return call

    def send(
        self,
        worker: str,
        way: Way,
        arrive: Callable[[], None],
        *,
        lost: Callable[[], None],
        late_ms: int = 0,
        large: bool = False,
    ) -> None:
        link, rng, now_ms = self.link(worker), self._world.rng, self._world.now_ms
        if link.cut or (large and link.narrow) or (link.loss and self._world.chance(link.loss)):
            self._world.record(RecordKind.LOST, worker, way)
            lost()
            return
        at_ms = max(now_ms, link.clogged_until_ms.get(way, 0)) + rng.randint(0, 4) + late_ms
        if self._world.chance(self.late_share):
            at_ms += rng.randint(10, 800)
        self._world.at(at_ms, arrive)


class Call:
    """One outstanding request. It ends once; a response that arrives later is ignored."""

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
        """The caller waits no longer: it has the response, or its connection is closed."""
        return self._over

    def answer(self, response: object) -> None:
        self._network.send(
            self.worker,
            Way.TO_WORKER,
            lambda: self._end(lambda: self._answered(response)),
            lost=lambda: self.fail("the response was lost", within_ms=4_000),
            large=self._large,
        )

    def fail(self, reason: str, *, within_ms: int) -> None:
        self._world.after(self._world.rng.randint(1, within_ms), lambda: self.give_up(reason))

    def give_up(self, reason: str) -> None:
        self._end(lambda: self._failed(reason))

    def _end(self, then: Callable[[], None]) -> None:
        if not self._over:
            self._over = True
            then()
