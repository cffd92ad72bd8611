"""The broker of the simulation: the real `groups` machine with the real outbox, and a disk that may forget its tail."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coterie.engine.output import Outbox, Output
from coterie.groups.classic import step
from coterie.groups.lines import encode_line
from coterie.groups.messages import (
    CancelTimer,
    Effect,
    Event,
    GroupLoaded,
    Heartbeat,
    Record,
    Reply,
    ReplyTo,
    Request,
    Response,
    SetTimer,
    TimerFired,
    TimerKey,
)
from coterie.groups.state import Group, Limits, Phase, check_whole
from coterie.lab.simulator.durable import DurableGroup, Line, folded
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.world import Alarms, World
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a step began with."""

    phase: Phase
    generation: Generation
    members: frozenset[MemberId]
    static_members: Mapping[InstanceId, MemberId]

    @classmethod
    def of(cls, group: Group) -> "Before":
        return cls(
            phase=group.phase,
            generation=group.generation,
            members=frozenset(group.members),
            static_members=dict(group.static_members),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the machine, for whoever watches."""

    event: Event
    before: Before
    output: Output[Record, Effect]
    group: Group
    """As it is now."""
    asked: Mapping[ReplyTo, Request]
    """Every request that was not answered before this step."""


class CoordinatorWatch(Protocol):
    """Looks at everything, and raises a `Violation`."""

    def on_step(self, taken: Step) -> None: ...

    def on_reply(self, request: Request, response: Response) -> None:
        """An answer leaves; the log holds what it shows."""
        ...

    def on_crash(self, group: Group, lines: Iterable[Line]) -> None:
        """A life ends. ``lines`` are all that it has written, durable or not."""
        ...

    def on_loaded(self, group: Group) -> None:
        """A life has read its log and is about to begin."""
        ...


class Disk:
    """Takes what gathered while the last write was under way, acknowledges late, loses what it has not acknowledged."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.lines: list[Line] = []
        self.slow = False
        self._writing: list[Line] = []
        self._waiting: list[Line] = []
        self._life = 0

    def append(self, lines: Sequence[Line], acknowledged: Callable[[int], None]) -> None:
        self._waiting += lines
        if not self._writing:
            self._write(acknowledged)

    def crash(self) -> None:
        """Of what was being written any first part may have come to rest; nobody was told."""
        self.lines += self._writing[: self._world.rng.randint(0, len(self._writing))]
        self._writing, self._waiting = [], []
        self._life += 1

    def _write(self, acknowledged: Callable[[int], None]) -> None:
        self._writing, self._waiting = self._waiting, []
        life, ms = self._life, self._world.rng.randint(200, 3_000) if self.slow else self._world.rng.randint(1, 20)

        def written() -> None:
            if life != self._life:
                return
            done = len(self._writing)
            self.lines += self._writing
            self._writing = []
            acknowledged(done)
            if self._waiting:
                self._write(acknowledged)

        self._world.after(ms, written)


class SimCoordinator:
    """One life after the other of the same group's coordinator."""

    def __init__(self, world: World, watch: CoordinatorWatch, *, group_id: GroupId, limits: Limits) -> None:
        self._world = world
        self._watch = watch
        self._group_id = group_id
        self._limits = limits
        self.disk = Disk(world)
        self._fresh = 0
        self._asked = 0
        self.up = False
        self.start()

    # -- lives ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay what the disk holds, then answer again."""
        self._calls: dict[ReplyTo, Call] = {}
        self._requests: dict[ReplyTo, Request] = {}
        self._needs: dict[ReplyTo, int] = {}
        """How many lines the log has to hold before an answer may leave."""
        self._outbox = Outbox[Effect]()
        self._alarms = Alarms[TimerKey](self._world, lambda key: self.feed(TimerFired(key=key)))
        self.group = folded(self._group_id, self._limits, self.disk.lines)
        self._now = Before.of(self.group)
        self._durable = DurableGroup(self._group_id, self._limits, self.disk.lines)
        self._lines: list[Line] = list(self.disk.lines)
        self.up = True
        self._watch.on_loaded(self.group)
        self._world.say(f"coordinator is up with {len(self.disk.lines)} lines, generation {self.group.generation}")
        self.feed(GroupLoaded())

    def crash(self) -> None:
        self._watch.on_crash(self.group, self._lines)
        self._world.say(f"coordinator crashes in {self.group.phase}, generation {self.group.generation}")
        self.up = False
        self._alarms.off()
        self.disk.crash()
        for call in self._calls.values():
            call.fail("the connection was reset", within_ms=200)

    # -- questions --------------------------------------------------------------------------------------------------

    def serve(self, call: Call, request: Callable[[ReplyTo], Request]) -> None:
        if not self.up:
            call.fail("connection refused", within_ms=20)
            return
        self._asked += 1
        reply_to = ReplyTo(self._asked)
        self._calls[reply_to] = call
        self._requests[reply_to] = request(reply_to)
        self.feed(self._requests[reply_to])

    def fresh_member_id(self, prefix: str) -> MemberId:
        self._fresh += 1
        return MemberId(f"{prefix}-{self._world.rng.getrandbits(16):04x}{self._fresh}")

    # -- the loop: step, append, release, perform -------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        group, before = self.group, self._now
        with MachineCheck("groups"):
            output = step(group, event, now_ms=self._world.now_ms)
            if not isinstance(event, Heartbeat):  # Those are nine of ten steps, and change one deadline, or nothing.
                check_whole(group)
                self._now = Before.of(group)
        if isinstance(event, TimerFired):
            self._world.say(f"coordinator: {event.key}")
        self._watch.on_step(Step(event=event, before=before, output=output, group=group, asked=self._requests))
        if group.phase is not before.phase:
            self._world.say(f"coordinator: {before.phase} -> {group.phase}, generation {group.generation}")
        lines = [encode_line(self._group_id, record) for record in output.records]
        self._lines += lines
        for effect in output.effects:
            if isinstance(effect, Reply):
                self._needs[effect.to] = len(self._lines)
        self._outbox.put(output)
        if lines:
            self.disk.append(lines, self._on_durable)
        self._release()

    def _on_durable(self, lines: int) -> None:
        self._outbox.durable(lines)
        self._release()

    def _release(self) -> None:
        for effect in self._outbox.release():
            match effect:
                case Reply(to=to, response=response):
                    self._answer(to, response)
                case SetTimer(key=key, at_ms=at_ms):
                    self._alarms.set(key, at_ms)
                case CancelTimer(key=key):
                    self._alarms.cancel(key)

    def _answer(self, to: ReplyTo, response: Response) -> None:
        call, request = self._calls.pop(to), self._requests.pop(to)
        self._durable.check(request, response, needs=self._needs.pop(to))
        self._watch.on_reply(request, response)
        if not isinstance(request, Heartbeat) or response.error is not ErrorCode.none:
            self._world.say(f"coordinator to {call.worker}: {type(request).__name__} {response.error.name}")
        call.answer(response)

    @property
    def is_stable(self) -> bool:
        return self.up and self.group.phase is Phase.STABLE
