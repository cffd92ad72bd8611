"""The network between the broker and the workers, clients or producers: messages may be delayed, reordered or lost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World


class Direction(StrEnum):
    """The direction of a message; `TO_WORKER` is also that to a client or a producer. The values are part of
    records."""

    TO_BROKER = "to broker"
    TO_WORKER = "to worker"


@dataclass(slots=True)
class LinkFaults:
    """The present faults of the link between one worker (or client, or producer) and the broker."""

    is_cut: bool = False
    """Whether every message is lost."""
    loss_probability: float = 0.0
    """The probability that a message is lost."""
    break_probability: float = 0.0
    """The probability that the connection of a call breaks; its request still arrives, late."""
    drops_large_messages: bool = False
    """Whether large messages are lost and small ones arrive, as behind a router that drops packets above its limit."""
    delayed_until_ms: dict[Direction, int] = field(default_factory=dict)
    """By direction, the time before which no message arrives that is sent now."""


class Network:
    """Sends messages between the broker and its clients, each over the link of a name: that of a worker, a client or an
    operator, or a transactional id. All processes of one name share a link."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._links: dict[str, LinkFaults] = {}
        self.late_probability = 0.02
        """The probability that a message is delayed by 10 to 800 ms, on a healthy link too."""

    def find_or_add_link_faults(self, link_name: str) -> LinkFaults:
        """The faults of the link ``link_name``; if none are stored for this name yet, a new object without faults is
        stored."""
        link = self._links.get(link_name)
        if link is None:
            link = self._links[link_name] = LinkFaults()
        return link

    def heal(self) -> None:
        """End all faults of all links. Messages that were delayed before still arrive late."""
        self._links.clear()

    def send_request(
        self,
        link_name: str,
        serve: "Callable[[NetworkCall], None]",
        *,
        on_response: Callable[[object], None],
        on_failure: Callable[[str], None],
        late_max_if_broken_ms: int = 0,
        is_response_large: bool = False,
    ) -> "NetworkCall":
        """Send a request over the link of ``link_name`` to the broker: when it arrives, ``serve`` is called with the
        call, which is also returned. Later ``on_response`` is called with the response, or ``on_failure`` with a
        reason; at most one of them, once. ``is_response_large``: whether the response is a large message.

        If the request is lost, the call fails up to 4 s later. If the connection breaks, the call fails up to 0.3 s
        later, but the request still arrives, up to ``late_max_if_broken_ms`` late.
        """
        call = NetworkCall(self._world, self, link_name, on_response, on_failure, is_response_large=is_response_large)
        late_ms = 0
        if self.find_or_add_link_faults(link_name).break_probability and self._world.draw_bool(
            self.find_or_add_link_faults(link_name).break_probability
        ):
            call.fail_later("the connection broke", within_ms=300)
            late_ms = self._world.rng.randint(0, late_max_if_broken_ms)
            self._world.add_record(RecordKind.BROKEN, link_name, late_ms)
        self.send_message(
            link_name,
            Direction.TO_BROKER,
            lambda: serve(call),
            on_loss=lambda: call.fail_later("no response", within_ms=4_000),
            late_ms=late_ms,
        )
        return call

    def send_message(
        self,
        link_name: str,
        direction: Direction,
        on_arrival: Callable[[], None],
        *,
        on_loss: Callable[[], None],
        late_ms: int = 0,
        is_large: bool = False,
    ) -> None:
        """Send one message over the link of ``link_name``: call ``on_arrival`` later, when the message arrives; if the
        message is lost, call ``on_loss`` now. ``late_ms`` is added to the delays of the link. ``is_large``: whether the
        message is large."""
        link, rng, now_ms = self.find_or_add_link_faults(link_name), self._world.rng, self._world.now_ms
        if (
            link.is_cut
            or (is_large and link.drops_large_messages)
            or (link.loss_probability and self._world.draw_bool(link.loss_probability))
        ):
            self._world.add_record(RecordKind.LOST, link_name, direction)
            on_loss()
            return
        at_ms = max(now_ms, link.delayed_until_ms.get(direction, 0)) + rng.randint(0, 4) + late_ms
        if self._world.draw_bool(self.late_probability):
            at_ms += rng.randint(10, 800)
        self._world.call_at(at_ms, on_arrival)


class NetworkCall:
    """One request over the link of ``link_name``, until its caller has a response or a failure. The call ends once; a
    response or failure that comes later is ignored."""

    def __init__(
        self,
        world: World,
        network: Network,
        link_name: str,
        on_response: Callable[[object], None],
        on_failure: Callable[[str], None],
        *,
        is_response_large: bool,
    ) -> None:
        self._world = world
        self._network = network
        self.link_name = link_name
        self._on_response = on_response
        self._on_failure = on_failure
        self._is_response_large = is_response_large
        self._has_ended = False

    @property
    def has_ended(self) -> bool:
        """Whether the caller no longer waits: it has received the response, or the call has failed."""
        return self._has_ended

    def respond(self, response: object) -> None:
        """Send ``response`` to the caller. If the response is lost, the call fails up to 4 s later."""
        self._network.send_message(
            self.link_name,
            Direction.TO_WORKER,
            lambda: self._end_once(lambda: self._on_response(response)),
            on_loss=lambda: self.fail_later("the response was lost", within_ms=4_000),
            is_large=self._is_response_large,
        )

    def fail_later(self, reason: str, *, within_ms: int) -> None:
        """Let the call fail with ``reason`` at a random time in the next ``within_ms``, unless it ends before."""
        self._world.call_after(self._world.rng.randint(1, within_ms), lambda: self.fail_now(reason))

    def fail_now(self, reason: str) -> None:
        """Let the call fail with ``reason`` now, unless it has ended."""
        self._end_once(lambda: self._on_failure(reason))

    def _end_once(self, callback: Callable[[], None]) -> None:
        """End this call and run ``callback``; does nothing if this call has ended before."""
        if not self._has_ended:
            self._has_ended = True
            callback()
