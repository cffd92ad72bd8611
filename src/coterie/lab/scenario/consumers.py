"""A stage for ordinary consumers: a real coordinator, and eager members that stop all their work for each rebalance.

They are as small as a consumer's side of the protocol can be: join, sync, a heartbeat every 3 s that tells of a
rebalance, and a farewell, which a static member (KIP-345) does not say. The transcript's commands:

    > partitions P0 P1 P2     what there is to read
    > C1 joins                a consumer starts; `C1 joins as a static member` gives it its name as instance id
    > C1 stops                it is stopped in good order
    > wait 3 s                time passes
    > count from here         rebalances and stopped partitions are counted anew
    > count                   how many there were
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count

from coterie.engine.timers import Timers
from coterie.groups.classic import messages as said
from coterie.groups.classic.machine import step
from coterie.groups.classic.state import Group, Limits, check_whole
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.scenario.transcript import Block
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId, ReplyTo
from coterie.wire.errors import ErrorCode

HEARTBEAT_INTERVAL_MS = 3_000
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000


class Consumer:
    """One eager member."""

    def __init__(self, stage: "Consumers", name: str, instance_id: InstanceId | None, life: int) -> None:
        self.stage = stage
        self.name = name
        self.instance_id = instance_id
        self.fresh_member_id = MemberId(f"{name}-{life}")
        self.member_id = said.NO_MEMBER
        self.generation = said.NO_GENERATION
        self.partitions: tuple[str, ...] = ()
        self.next_heartbeat_at_ms: int | None = None

    def join(self) -> None:
        """Eager: whatever it reads it gives up first."""
        if self.partitions:
            self.stage.tell_stopped(self.name, self.partitions)
            self.partitions = ()
        self.next_heartbeat_at_ms = None
        self.stage.ask(
            lambda reply_to: said.JoinGroup(
                reply_to=reply_to,
                member_id=self.member_id,
                fresh_member_id=self.fresh_member_id,
                requires_known_member_id=True,
                client_id=self.name,
                client_host="/127.0.0.1",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                protocol_type="consumer",
                protocols=(said.MemberProtocol(name="range", metadata=self.name.encode()),),
                instance_id=self.instance_id,
                can_skip_assignment=True,
            ),
            self.take,
        )

    def take(self, answer: said.Response) -> None:
        match answer:
            case said.JoinGroupResponse(error=ErrorCode.none):
                self.member_id, self.generation = answer.member_id, answer.generation
                self.sync(answer)
            case said.JoinGroupResponse(error=ErrorCode.member_id_required):
                self.member_id = answer.member_id
                self.join()
            case said.SyncGroupResponse(error=ErrorCode.none):
                self.partitions = tuple(answer.assignment.decode().split())
                self.next_heartbeat_at_ms = self.stage.now_ms + HEARTBEAT_INTERVAL_MS
                self.stage.tell_assigned(self.name, self.partitions)
            case said.HeartbeatResponse(error=ErrorCode.none):
                self.next_heartbeat_at_ms = self.stage.now_ms + HEARTBEAT_INTERVAL_MS
            case said.HeartbeatResponse() | said.SyncGroupResponse() if answer.error is ErrorCode.rebalance_in_progress:
                self.join()
            case _:
                raise AssertionError(f"the stage is set wrong: {self.name} hears {answer}")

    def sync(self, joined: said.JoinGroupResponse) -> None:
        leads = joined.leader == self.member_id and not joined.skip_assignment
        assignments = self.stage.dealt([member.member_id for member in joined.members]) if leads else ()
        self.stage.ask(
            lambda reply_to: said.SyncGroup(
                reply_to=reply_to,
                member_id=self.member_id,
                generation=self.generation,
                assignments=assignments,
                instance_id=self.instance_id,
            ),
            self.take,
        )

    def beat(self) -> None:
        self.next_heartbeat_at_ms = None
        self.stage.ask(
            lambda reply_to: said.Heartbeat(
                reply_to=reply_to, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
            ),
            self.take,
        )


class Consumers:
    """One group of consumers, and what they say."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.partitions: tuple[str, ...] = ()
        self.consumers: dict[str, Consumer] = {}
        self.lines: list[str] = []
        self.rebalances = 0
        self.stopped = 0
        self._group = Group(GroupId("article"), Limits(initial_rebalance_delay_ms=0))
        self._timers = Timers[said.TimerKey]()
        self._numbers = map(ReplyTo, count(1))
        self._waiting: dict[ReplyTo, Callable[[said.Response], None]] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._lives: dict[str, int] = {}

    def play(self, blocks: list[Block]) -> list[Block]:
        """The same script with the answers that the machines give now.

        :raises ValueError: when a command means nothing.
        """
        return [self._played(block) for block in blocks]

    # -- what a script may do -----------------------------------------------------------------------------------------

    def _played(self, block: Block) -> Block:
        if block.command is None:
            return block
        self.lines.clear()
        match block.command.split():
            case ["partitions", *partitions]:
                self.partitions = tuple(partitions)
            case [name, "joins"]:
                self.start(name, None)
            case [name, "joins", "as", "a", "static", "member"]:
                self.start(name, InstanceId(name))
            case [name, "stops"]:
                self.stop(name)
            case ["wait", seconds, "s"]:
                self.wait(1000 * int(seconds))
            case ["count", "from", "here"]:
                self.rebalances = self.stopped = 0
            case ["count"]:
                self.lines.append(f"rebalances: {self.rebalances}, partitions stopped: {self.stopped}")
            case _:
                raise ValueError(f"unknown command: {block.command}")
        return replace(block, answers=tuple(self.lines))

    def start(self, name: str, instance_id: InstanceId | None) -> None:
        self._lives[name] = self._lives.get(name, 0) + 1
        self.consumers[name] = Consumer(self, name, instance_id, self._lives[name])
        self.consumers[name].join()
        self._settle()

    def stop(self, name: str) -> None:
        consumer = self.consumers.pop(name)
        self.tell_stopped(name, consumer.partitions)
        if consumer.instance_id is None:
            leaving = (said.LeavingMember(member_id=consumer.member_id),)
            self.ask(lambda reply_to: said.LeaveGroup(reply_to=reply_to, members=leaving), lambda _: None)
        self._settle()

    def wait(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (at_ms := self._next_at_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self._settle()
        self.now_ms = until_ms

    # -- what consumers do --------------------------------------------------------------------------------------------

    def ask(self, make: Callable[[ReplyTo], said.Request], answered: Callable[[said.Response], None]) -> None:
        reply_to = next(self._numbers)
        self._waiting[reply_to] = answered
        self._queue.append(lambda: self._coordinate(make(reply_to)))

    def dealt(self, members: list[MemberId]) -> tuple[tuple[MemberId, bytes], ...]:
        """The range assignor over one topic: neighbours together, who is first by name has one more."""
        ordered = sorted(members)
        each, more = divmod(len(self.partitions), len(ordered))
        ends = [each * number + min(number, more) for number in range(len(ordered) + 1)]
        return tuple(
            (member, " ".join(self.partitions[start:end]).encode())
            for member, start, end in zip(ordered, ends, ends[1:], strict=False)
        )

    def tell_stopped(self, name: str, partitions: tuple[str, ...]) -> None:
        self.stopped += len(partitions)
        self.lines.append(f"{name} stops [{', '.join(partitions)}]")

    def tell_assigned(self, name: str, partitions: tuple[str, ...]) -> None:
        self.lines.append(f"{name} reads [{', '.join(partitions)}]")

    # -- the coordinator's side ---------------------------------------------------------------------------------------

    def _coordinate(self, event: said.Event) -> None:
        was = self._group.phase
        generation = self._group.generation
        output = step(self._group, event, now_ms=self.now_ms)
        check_whole(self._group)
        begins = was is not said.Phase.PREPARING_REBALANCE and self._group.phase is said.Phase.PREPARING_REBALANCE
        # With nobody to wait for, the join phase is over in the step that opens it.
        if begins or (was is not said.Phase.PREPARING_REBALANCE and self._group.generation != generation):
            self.rebalances += 1
            self.lines.append("Rebalance is triggered")
        if self._group.generation != generation:
            self._tell_generation(self._group.generation)
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self._queue.append(partial(self._waiting.pop(to), response))
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _tell_generation(self, generation: Generation) -> None:
        # A static member reads its id only in the answer that is just being given.
        leads = [name for name, one in self.consumers.items() if one.fresh_member_id == self._group.leader]
        self.lines.append(
            f"Generation {generation}, led by {leads[0]}" if leads else f"Generation {generation}: nobody"
        )

    def _settle(self) -> None:
        while True:
            if self._queue:
                self._queue.popleft()()
            elif (key := self._timers.pop_due(self.now_ms)) is not None:
                self._coordinate(TimerFired(key=key))
            elif (due := self._due()) is not None:
                due.beat()
            else:
                return

    def _due(self) -> Consumer | None:
        return next((one for _, one in sorted(self.consumers.items()) if _is_due(one, self.now_ms)), None)

    def _next_at_ms(self) -> int | None:
        deadlines = [self._timers.next_at_ms(), *(one.next_heartbeat_at_ms for one in self.consumers.values())]
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)


def _is_due(consumer: Consumer, now_ms: int) -> bool:
    return consumer.next_heartbeat_at_ms is not None and consumer.next_heartbeat_at_ms <= now_ms
