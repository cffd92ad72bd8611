"""A scenario of ordinary consumers: a real coordinator, and eager members that stop all their work for each rebalance.

A member here is the smallest consumer that the protocol permits: JoinGroup, SyncGroup, a heartbeat every 3 s whose
response reports a rebalance, and LeaveGroup, which a static member (KIP-345) does not send. The transcript's commands:

    > partitions P0 P1 P2     the partitions that the group reads
    > C1 joins                a consumer starts; `C1 joins as a static member` sets its name as its instance id
    > C1 stops                the consumer is stopped cleanly
    > wait 3 s                time passes
    > count from here         the counts of rebalances and of stopped partitions are set to 0
    > count                   both counts
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coterie.groups.classic import messages as said
from coterie.lab.scenario.group import GroupStage
from coterie.lab.scenario.transcript import Block
from coterie.lab.steps import STEPS, Steps
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
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
        """Eager: release all partitions, then send JoinGroup."""
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
                raise AssertionError(f"bug in the scenario's setup: {self.name} receives {answer}")

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


class Consumers(GroupStage):
    """One group of consumers, and the lines that it prints."""

    def __init__(self, *, steps: Steps = STEPS) -> None:
        super().__init__(GroupId("article"), steps)
        self.partitions: tuple[str, ...] = ()
        self.consumers: dict[str, Consumer] = {}
        self.rebalances = 0
        self.stopped = 0

    def play(self, blocks: list[Block]) -> list[Block]:
        """The same script with the lines that the machines print now.

        :raises ValueError: when a command is unknown.
        """
        return [self._played(block) for block in blocks]

    # -- commands -----------------------------------------------------------------------------------------------------

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
                self.say(f"rebalances: {self.rebalances}, partitions stopped: {self.stopped}")
            case _:
                raise ValueError(f"unknown command: {block.command}")
        return replace(block, answers=tuple(self.lines))

    def start(self, name: str, instance_id: InstanceId | None) -> None:
        self.consumers[name] = Consumer(self, name, instance_id, self._next_life(name))
        self.consumers[name].join()
        self.settle()

    def stop(self, name: str) -> None:
        consumer = self.consumers.pop(name)
        self.tell_stopped(name, consumer.partitions)
        if consumer.instance_id is None:
            leaving = (said.LeavingMember(member_id=consumer.member_id),)
            self.ask(lambda reply_to: said.LeaveGroup(reply_to=reply_to, members=leaving), lambda _: None)
        self.settle()

    # -- called by the consumers --------------------------------------------------------------------------------------

    def dealt(self, members: list[MemberId]) -> tuple[tuple[MemberId, bytes], ...]:
        """The range assignor over one topic: consecutive partitions for each member; the first members by id have one
        more."""
        ordered = sorted(members)
        each, more = divmod(len(self.partitions), len(ordered))
        ends = [each * number + min(number, more) for number in range(len(ordered) + 1)]
        return tuple(
            (member, " ".join(self.partitions[start:end]).encode())
            for member, start, end in zip(ordered, ends, ends[1:], strict=False)
        )

    def tell_stopped(self, name: str, partitions: tuple[str, ...]) -> None:
        self.stopped += len(partitions)
        self.say(f"{name} stops [{', '.join(partitions)}]")

    def tell_assigned(self, name: str, partitions: tuple[str, ...]) -> None:
        self.say(f"{name} reads [{', '.join(partitions)}]")

    # -- steps of the coordinator, timers of the consumers ------------------------------------------------------------

    def _tell_step(self, was: said.Phase, generation: Generation, records: Sequence[said.Record]) -> None:
        begins = was is not said.Phase.PREPARING_REBALANCE and self.group.phase is said.Phase.PREPARING_REBALANCE
        # If there is no member to wait for, the join phase ends in the step that opens it.
        if begins or (was is not said.Phase.PREPARING_REBALANCE and self.group.generation != generation):
            self.rebalances += 1
            self.say("Rebalance is triggered")
        if self.group.generation != generation:
            # Compared with `fresh_member_id`: a static member learns its member id only from this step's response.
            leads = [name for name, one in self.consumers.items() if one.fresh_member_id == self.group.leader]
            number = self.group.generation
            self.say(f"Generation {number}, led by {leads[0]}" if leads else f"Generation {number}: no members")

    def _fire_due(self) -> bool:
        for _, consumer in sorted(self.consumers.items()):
            if consumer.next_heartbeat_at_ms is not None and consumer.next_heartbeat_at_ms <= self.now_ms:
                consumer.beat()
                return True
        return False

    def _deadlines(self) -> Iterable[int | None]:
        return (one.next_heartbeat_at_ms for one in self.consumers.values())
