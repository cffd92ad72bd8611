"""A scenario of ordinary consumers: the real coordinator, and eager members, which release all partitions before each
rebalance.

A member here is the smallest consumer that the protocol permits: JoinGroup, SyncGroup, a heartbeat every 3 s whose
response reports a rebalance, and LeaveGroup, which a static member (KIP-345) does not send. The transcript's commands:

    > partitions P0 P1 P2     set the partitions that the group reads
    > C1 joins                a consumer starts; after `C1 joins as a static member` its name is its instance id
    > C1 stops                the consumer is stopped cleanly: it sends LeaveGroup, unless it is static
    > wait 3 s                time passes
    > count from here         set the counts of rebalances and of stopped partitions to 0
    > count                   print both counts
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from coterie.groups.classic import messages as group_messages
from coterie.lab.scenario.group import GroupScenario
from coterie.lab.scenario.transcript import TranscriptBlock
from coterie.lab.steps import PLAIN_STEPS, MachineSteps
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

HEARTBEAT_INTERVAL_MS = 3_000
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000


class ScenarioConsumer:
    """One consumer of the group, an eager member: it releases all partitions before each JoinGroup."""

    def __init__(
        self, scenario: "ConsumersScenario", name: str, instance_id: InstanceId | None, start_number: int
    ) -> None:
        """``start_number`` is the number of starts of the consumer ``name``, including this one."""
        self.scenario = scenario
        self.name = name
        self.instance_id = instance_id
        self.fresh_member_id = MemberId(f"{name}-{start_number}")
        """The member id that the coordinator gives to the consumer if it joins without one."""
        self.member_id = group_messages.NO_MEMBER
        self.generation = group_messages.NO_GENERATION
        self.partitions: tuple[str, ...] = ()
        """The names of the partitions that the consumer reads."""
        self.next_heartbeat_at_ms: int | None = None
        """When the next heartbeat is to be sent; None while the consumer waits for a response."""

    def release_and_queue_join(self) -> None:
        """Release all partitions, as an eager member must, then queue JoinGroup."""
        if self.partitions:
            self.scenario.count_and_print_stopped_partitions(self.name, self.partitions)
            self.partitions = ()
        self.next_heartbeat_at_ms = None
        self.scenario.queue_request(
            lambda reply_to: group_messages.JoinGroup(
                reply_to=reply_to,
                member_id=self.member_id,
                fresh_member_id=self.fresh_member_id,
                requires_known_member_id=True,
                client_id=self.name,
                client_host="/127.0.0.1",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                protocol_type="consumer",
                protocols=(group_messages.MemberProtocol(name="range", metadata=self.name.encode()),),
                instance_id=self.instance_id,
                supports_skip_assignment=True,
            ),
            self.handle_response,
        )

    def handle_response(self, response: group_messages.Response) -> None:
        """Do what must follow ``response``, the coordinator's response to a request of this consumer: send SyncGroup,
        join again, or plan the next heartbeat.

        :raises AssertionError: for a response with an error that does not occur in a correct scenario.
        """
        match response:
            case group_messages.JoinGroupResponse(error=ErrorCode.none):
                self.member_id, self.generation = response.member_id, response.generation
                self.queue_sync(response)
            case group_messages.JoinGroupResponse(error=ErrorCode.member_id_required):
                self.member_id = response.member_id
                self.release_and_queue_join()
            case group_messages.SyncGroupResponse(error=ErrorCode.none):
                self.partitions = tuple(response.assignment.decode().split())
                self.next_heartbeat_at_ms = self.scenario.now_ms + HEARTBEAT_INTERVAL_MS
                self.scenario.print_assigned_partitions(self.name, self.partitions)
            case group_messages.HeartbeatResponse(error=ErrorCode.none):
                self.next_heartbeat_at_ms = self.scenario.now_ms + HEARTBEAT_INTERVAL_MS
            case group_messages.HeartbeatResponse() | group_messages.SyncGroupResponse() if (
                response.error is ErrorCode.rebalance_in_progress
            ):
                self.release_and_queue_join()
            case _:
                raise AssertionError(
                    f"bug in the scenario or the coordinator: the consumer {self.name} cannot handle the response "
                    f"{response}"
                )

    def queue_sync(self, join_response: group_messages.JoinGroupResponse) -> None:
        """Queue SyncGroup after the JoinGroup response ``join_response``; if this consumer is the leader and has to
        compute the assignments, with all assignments."""
        is_leader = join_response.leader == self.member_id and not join_response.skip_assignment
        assignments = (
            self.scenario.range_assignments([member.member_id for member in join_response.members]) if is_leader else ()
        )
        self.scenario.queue_request(
            lambda reply_to: group_messages.SyncGroup(
                reply_to=reply_to,
                member_id=self.member_id,
                generation=self.generation,
                assignments=assignments,
                instance_id=self.instance_id,
            ),
            self.handle_response,
        )

    def queue_heartbeat(self) -> None:
        """Queue a heartbeat. Its response sets the time of the next one."""
        self.next_heartbeat_at_ms = None
        self.scenario.queue_request(
            lambda reply_to: group_messages.Heartbeat(
                reply_to=reply_to, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id
            ),
            self.handle_response,
        )


class ConsumersScenario(GroupScenario):
    """One group of consumers. Performs the commands of a transcript, counts rebalances and stopped partitions, and
    collects the lines that the commands print. A consumer that is stopped sends LeaveGroup, unless it is a static
    member (KIP-345)."""

    def __init__(self, *, steps: MachineSteps = PLAIN_STEPS) -> None:
        super().__init__(GroupId("article"), steps)
        self.partitions: tuple[str, ...] = ()
        """The names of the partitions that the group reads."""
        self.consumers: dict[str, ScenarioConsumer] = {}
        """The running consumers, by name."""
        self.rebalance_count = 0
        """Number of rebalances since the start, or since `count from here`."""
        self.stopped_partition_count = 0
        """Number of partitions that consumers have released since the start, or since `count from here`."""

    def run_transcript_blocks(self, blocks: list[TranscriptBlock]) -> list[TranscriptBlock]:
        """Perform the commands of ``blocks`` in order. Returns the same blocks, each with the lines that its command
        prints now.

        :raises ValueError: when a command is unknown, or its number of seconds is not a whole number.
        :raises KeyError: when a command stops a consumer that does not run.
        :raises AssertionError: when a consumer gets a response that does not occur in a correct scenario.
        """
        return [self._run_transcript_block(block) for block in blocks]

    # -- commands -----------------------------------------------------------------------------------------------------

    def _run_transcript_block(self, block: TranscriptBlock) -> TranscriptBlock:
        """Perform the command of ``block``, if it has one. Returns the block with the lines that the command prints."""
        if block.command is None:
            return block
        self.output_lines.clear()
        match block.command.split():
            case ["partitions", *partitions]:
                self.partitions = tuple(partitions)
            case [name, "joins"]:
                self.start_consumer(name, None)
            case [name, "joins", "as", "a", "static", "member"]:
                self.start_consumer(name, InstanceId(name))
            case [name, "stops"]:
                self.stop_consumer(name)
            case ["wait", seconds, "s"]:
                self.advance_clock(1000 * int(seconds))
            case ["count", "from", "here"]:
                self.rebalance_count = self.stopped_partition_count = 0
            case ["count"]:
                self.add_output_line(
                    f"rebalances: {self.rebalance_count}, partitions stopped: {self.stopped_partition_count}"
                )
            case _:
                raise ValueError(f"unknown command: {block.command}; see the list in coterie.lab.scenario.consumers")
        return replace(block, output_lines=tuple(self.output_lines))

    def start_consumer(self, name: str, instance_id: InstanceId | None) -> None:
        """Start the consumer ``name``, a static member if ``instance_id`` is not None, and run until the group is idle.

        :raises ValueError: when the consumer runs already.
        """
        if name in self.consumers:
            raise ValueError(
                f"cannot start the consumer {name}, because it runs already: end it first, or use another name"
            )
        self.consumers[name] = ScenarioConsumer(self, name, instance_id, self._increment_start_count(name))
        self.consumers[name].release_and_queue_join()
        self.run_all_due_now()

    def stop_consumer(self, name: str) -> None:
        """Stop the consumer ``name`` cleanly, and run until the group is idle: a dynamic member sends LeaveGroup, a
        static one does not.

        :raises KeyError: when the consumer does not run.
        """
        consumer = self.consumers.pop(name)
        self.count_and_print_stopped_partitions(name, consumer.partitions)
        if consumer.instance_id is None:
            leaving = (group_messages.LeavingMember(member_id=consumer.member_id),)
            self.queue_request(
                lambda reply_to: group_messages.LeaveGroup(reply_to=reply_to, members=leaving), lambda _: None
            )
        self.run_all_due_now()

    # -- called by the consumers --------------------------------------------------------------------------------------

    def range_assignments(self, members: list[MemberId]) -> tuple[tuple[MemberId, bytes], ...]:
        """The encoded assignments of ``members`` by the range assignor over one topic, each with its member id: each
        member receives consecutive partitions; if the partitions cannot be divided evenly, the first members, sorted by
        id, receive one more than the others."""
        ordered = sorted(members)
        partitions_each, members_with_one_more = divmod(len(self.partitions), len(ordered))
        end_indexes = [
            partitions_each * number + min(number, members_with_one_more) for number in range(len(ordered) + 1)
        ]
        return tuple(
            (member, " ".join(self.partitions[start_index:end_index]).encode())
            for member, start_index, end_index in zip(ordered, end_indexes, end_indexes[1:], strict=False)
        )

    def count_and_print_stopped_partitions(self, name: str, partitions: tuple[str, ...]) -> None:
        """Count ``partitions``, which the consumer ``name`` releases, in :attr:`stopped_partition_count`, and print
        them: add a line with their names to the transcript."""
        self.stopped_partition_count += len(partitions)
        self.add_output_line(f"{name} stops [{', '.join(partitions)}]")

    def print_assigned_partitions(self, name: str, partitions: tuple[str, ...]) -> None:
        """Print ``partitions``, the whole new assignment of the consumer ``name``: add a line with their names to the
        transcript."""
        self.add_output_line(f"{name} reads [{', '.join(partitions)}]")

    # -- steps of the coordinator, timers of the consumers ------------------------------------------------------------

    def _print_rebalance_of_step(
        self,
        phase_before: group_messages.GroupPhase,
        generation_before: GenerationId,
        records: Sequence[group_messages.Record],
    ) -> None:
        is_rebalance_begun = (
            phase_before is not group_messages.GroupPhase.PREPARING_REBALANCE
            and self.group.phase is group_messages.GroupPhase.PREPARING_REBALANCE
        )
        # If there is no member to wait for, the join phase ends in the step that opens it.
        if is_rebalance_begun or (
            phase_before is not group_messages.GroupPhase.PREPARING_REBALANCE
            and self.group.generation != generation_before
        ):
            self.rebalance_count += 1
            self.add_output_line("Rebalance is triggered")
        if self.group.generation != generation_before:
            # Compared with `fresh_member_id`: a static member learns its member id only from this step's response.
            leader_names = [
                name for name, consumer in self.consumers.items() if consumer.fresh_member_id == self.group.leader
            ]
            number = self.group.generation
            self.add_output_line(
                f"Generation {number}, led by {leader_names[0]}" if leader_names else f"Generation {number}: no members"
            )

    def _fire_due_member_timer(self) -> bool:
        for _, consumer in sorted(self.consumers.items()):
            if consumer.next_heartbeat_at_ms is not None and consumer.next_heartbeat_at_ms <= self.now_ms:
                consumer.queue_heartbeat()
                return True
        return False

    def _next_member_timer_times_ms(self) -> Iterable[int | None]:
        return (consumer.next_heartbeat_at_ms for consumer in self.consumers.values())
