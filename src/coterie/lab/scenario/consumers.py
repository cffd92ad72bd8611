"""A scenario of ordinary consumers: a real coordinator, and eager members, which release all partitions for each
rebalance.

A member here is the smallest consumer that the protocol permits: JoinGroup, SyncGroup, a heartbeat every 3 s whose
response reports a rebalance, and LeaveGroup, which a static member (KIP-345) does not send. The transcript's commands:

    > partitions P0 P1 P2     set the partitions that the group reads
    > C1 joins                a consumer starts; `C1 joins as a static member` sets its name as its instance id
    > C1 stops                the consumer is stopped cleanly: it sends LeaveGroup, unless it is static
    > wait 3 s                time passes
    > count from here         set the counts of rebalances and of stopped partitions to 0
    > count                   print both counts
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coterie.groups.classic import messages as said
from coterie.lab.scenario.group import GroupScenario
from coterie.lab.scenario.transcript import Block
from coterie.lab.steps import STEPS, Steps
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

HEARTBEAT_INTERVAL_MS = 3_000
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000


class Consumer:
    """One consumer of the group; it is eager."""

    def __init__(self, scenario: "ConsumersScenario", name: str, instance_id: InstanceId | None, life: int) -> None:
        """``life`` is the number of starts of the consumer ``name``, with this one."""
        self.scenario = scenario
        self.name = name
        self.instance_id = instance_id
        self.fresh_member_id = MemberId(f"{name}-{life}")
        self.member_id = said.NO_MEMBER
        self.generation = said.NO_GENERATION
        self.partitions: tuple[str, ...] = ()
        self.next_heartbeat_at_ms: int | None = None

    def join(self) -> None:
        """Release all partitions, as an eager member must, then send JoinGroup."""
        if self.partitions:
            self.scenario.report_stopped(self.name, self.partitions)
            self.partitions = ()
        self.next_heartbeat_at_ms = None
        self.scenario.ask(
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
            self.handle_response,
        )

    def handle_response(self, answer: said.Response) -> None:
        """Do what the coordinator's response ``answer`` asks for: send SyncGroup, join again, or keep sending
        heartbeats."""
        match answer:
            case said.JoinGroupResponse(error=ErrorCode.none):
                self.member_id, self.generation = answer.member_id, answer.generation
                self.sync(answer)
            case said.JoinGroupResponse(error=ErrorCode.member_id_required):
                self.member_id = answer.member_id
                self.join()
            case said.SyncGroupResponse(error=ErrorCode.none):
                self.partitions = tuple(answer.assignment.decode().split())
                self.next_heartbeat_at_ms = self.scenario.now_ms + HEARTBEAT_INTERVAL_MS
                self.scenario.report_assigned(self.name, self.partitions)
            case said.HeartbeatResponse(error=ErrorCode.none):
                self.next_heartbeat_at_ms = self.scenario.now_ms + HEARTBEAT_INTERVAL_MS
            case said.HeartbeatResponse() | said.SyncGroupResponse() if answer.error is ErrorCode.rebalance_in_progress:
                self.join()
            case _:
                raise AssertionError(
                    f"bug in the scenario's setup: the consumer {self.name} receives the response {answer}"
                )

    def sync(self, joined: said.JoinGroupResponse) -> None:
        """Send SyncGroup after the response ``joined``; the leader computes the assignments."""
        leads = joined.leader == self.member_id and not joined.skip_assignment
        assignments = self.scenario.range_assignments([member.member_id for member in joined.members]) if leads else ()
        self.scenario.ask(
            lambda reply_to: said.SyncGroup(
                reply_to=reply_to,
                member_id=self.member_id,
                generation=self.generation,
                assignments=assignments,
                instance_id=self.instance_id,
            ),
            self.handle_response,
        )

    def send_heartbeat(self) -> None:
        """Send a heartbeat. Its response sets the time of the next one."""
        self.next_heartbeat_at_ms = None
        self.scenario.ask(
            lambda reply_to: said.Heartbeat(
                reply_to=reply_to, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
            ),
            self.handle_response,
        )


class ConsumersScenario(GroupScenario):
    """One group of consumers; its commands print lines."""

    def __init__(self, *, steps: Steps = STEPS) -> None:
        super().__init__(GroupId("article"), steps)
        self.partitions: tuple[str, ...] = ()
        self.consumers: dict[str, Consumer] = {}
        self.rebalances = 0
        """Number of rebalances since the start, or since `count from here`."""
        self.stopped = 0
        """Number of partitions that consumers have released in the same time."""

    def play(self, blocks: list[Block]) -> list[Block]:
        """Perform the commands of ``blocks`` in order. Returns the blocks with the lines that the commands print now.

        :raises ValueError: when a command is unknown.
        :raises KeyError: when a consumer is to stop that does not run.
        """
        return [self._played(block) for block in blocks]

    # -- commands -----------------------------------------------------------------------------------------------------

    def _played(self, block: Block) -> Block:
        """Perform the command of ``block``. Returns the block with the lines that it prints."""
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
                self.print_line(f"rebalances: {self.rebalances}, partitions stopped: {self.stopped}")
            case _:
                raise ValueError(f"unknown command: {block.command}")
        return replace(block, answers=tuple(self.lines))

    def start(self, name: str, instance_id: InstanceId | None) -> None:
        """Start the consumer ``name``; it is static if ``instance_id`` is not None."""
        self.consumers[name] = Consumer(self, name, instance_id, self._next_life(name))
        self.consumers[name].join()
        self.run_queue()

    def stop(self, name: str) -> None:
        """Stop the consumer ``name`` cleanly: a dynamic member sends LeaveGroup, a static one does not."""
        consumer = self.consumers.pop(name)
        self.report_stopped(name, consumer.partitions)
        if consumer.instance_id is None:
            leaving = (said.LeavingMember(member_id=consumer.member_id),)
            self.ask(lambda reply_to: said.LeaveGroup(reply_to=reply_to, members=leaving), lambda _: None)
        self.run_queue()

    # -- called by the consumers --------------------------------------------------------------------------------------

    def range_assignments(self, members: list[MemberId]) -> tuple[tuple[MemberId, bytes], ...]:
        """The member ids with their encoded assignments by the range assignor over one topic: each member receives
        consecutive partitions; if the partitions cannot be divided evenly, the first members, sorted by id, receive one
        more."""
        ordered = sorted(members)
        each, more = divmod(len(self.partitions), len(ordered))
        ends = [each * number + min(number, more) for number in range(len(ordered) + 1)]
        return tuple(
            (member, " ".join(self.partitions[start:end]).encode())
            for member, start, end in zip(ordered, ends, ends[1:], strict=False)
        )

    def report_stopped(self, name: str, partitions: tuple[str, ...]) -> None:
        """Print and count the partitions that the consumer ``name`` releases."""
        self.stopped += len(partitions)
        self.print_line(f"{name} stops [{', '.join(partitions)}]")

    def report_assigned(self, name: str, partitions: tuple[str, ...]) -> None:
        """Print the partitions that the consumer ``name`` has been assigned."""
        self.print_line(f"{name} reads [{', '.join(partitions)}]")

    # -- steps of the coordinator, timers of the consumers ------------------------------------------------------------

    def _report_step(self, was: said.Phase, generation: Generation, records: Sequence[said.Record]) -> None:
        begins = was is not said.Phase.PREPARING_REBALANCE and self.group.phase is said.Phase.PREPARING_REBALANCE
        # If there is no member to wait for, the join phase ends in the step that opens it.
        if begins or (was is not said.Phase.PREPARING_REBALANCE and self.group.generation != generation):
            self.rebalances += 1
            self.print_line("Rebalance is triggered")
        if self.group.generation != generation:
            # Compared with `fresh_member_id`: a static member learns its member id only from this step's response.
            leads = [name for name, one in self.consumers.items() if one.fresh_member_id == self.group.leader]
            number = self.group.generation
            self.print_line(f"Generation {number}, led by {leads[0]}" if leads else f"Generation {number}: no members")

    def _fire_due(self) -> bool:
        for _, consumer in sorted(self.consumers.items()):
            if consumer.next_heartbeat_at_ms is not None and consumer.next_heartbeat_at_ms <= self.now_ms:
                consumer.send_heartbeat()
                return True
        return False

    def _deadlines(self) -> Iterable[int | None]:
        return (one.next_heartbeat_at_ms for one in self.consumers.values())
