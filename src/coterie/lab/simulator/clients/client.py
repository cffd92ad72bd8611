"""One ordinary client: it joins, computes the assignments if it is the leader, sends heartbeats and commits offsets, as
Kafka's consumer does."""

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

from coterie.groups.classic.messages import (
    NO_GENERATION,
    NO_MEMBER,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    ReplyTo,
    Request,
    Response,
    SyncGroup,
    SyncGroupResponse,
)
from coterie.groups.classic.offset_messages import OffsetCommit, OffsetCommitResponse, OffsetFetch, TopicPartition
from coterie.lab.simulator.clients.play import (
    COMMIT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    LATE_MAX_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    ClientsPlay,
    assign,
    assigned,
)
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcess
from coterie.nouns.ids import InstanceId
from coterie.wire.errors import ErrorCode

_RequestKind: TypeAlias = Literal["round", "heartbeat", "commit", "fetch", "farewell"]
"""The kinds of requests, as recorded: `round` is JoinGroup or SyncGroup, the last one is LeaveGroup."""

_GIVEN_UP_MS = REBALANCE_TIMEOUT_MS + 5_000
"""After this time without a response to its JoinGroup or SyncGroup, a client joins again."""


class Client(SimProcess):
    """One process of a client. After a restart there is a new process of the same service and, if static, with the same
    instance id."""

    def __init__(
        self,
        play: ClientsPlay,
        living: "dict[str, Client]",
        name: str,
        *,
        service: str,
        instance_id: InstanceId | None,
        protocols: tuple[str, ...],
    ) -> None:
        super().__init__(play.world, name, service, living)
        self.play = play
        self.instance_id = instance_id
        self.protocols = protocols
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.owned: list[TopicPartition] = []
        """The partitions of the client's present assignment."""
        self.is_settled = False
        """Whether the client has the assignment of its generation and has received no notice of a rebalance since."""
        self.refused_for_size = False
        """Whether the last JoinGroup was refused with GROUP_MAX_SIZE_REACHED."""
        self._asked: dict[_RequestKind, object] = {}
        """The token of the last request of each kind that has no response yet; the response to any other request is
        ignored."""
        self._assignment_number = 0
        """Changes with each assignment and each join: heartbeats and commits that were planned with an earlier number
        are not sent."""
        play.world.record(RecordKind.STARTS, name, instance_id, *protocols)
        self._join()

    # -- shutdown ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop cleanly: a dynamic member sends LeaveGroup, a static one does not (KIP-345)."""
        if self.instance_id is None and self.member_id:
            leave_request = partial(LeaveGroup, members=(LeavingMember(member_id=self.member_id),))
            self._ask("farewell", leave_request, lambda _: None)
        self.kill(RecordKind.STOPS)

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        """Send JoinGroup; the present assignment ends."""
        self.is_settled = False
        self.owned = []
        self._assignment_number += 1
        member_id = self.member_id

        def request(reply_to: ReplyTo) -> JoinGroup:
            return JoinGroup(
                reply_to=reply_to,
                member_id=member_id,
                fresh_member_id=self.play.coordinator.fresh_member_id(self.instance_id or self.name),
                requires_known_member_id=True,
                client_id=self.name,
                client_host="/127.0.0.1",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                protocol_type=self.play.protocol_type,
                protocols=tuple(
                    MemberProtocol(name=name, metadata=self.play.subscription()) for name in self.protocols
                ),
                instance_id=self.instance_id,
                can_skip_assignment=True,
            )

        # A JoinGroup contains no generation, so the coordinator accepts a late one, as Kafka does: the broker must not
        # read it from a closed connection.
        self._ask("round", request, self._on_joined, late_max_ms=0)

    def _on_joined(self, response: Response) -> None:
        assert isinstance(response, JoinGroupResponse)
        self.refused_for_size = response.error is ErrorCode.group_max_size_reached
        match response.error:
            case ErrorCode.none:
                self.member_id, self.generation = response.member_id, response.generation
                self._sync(response)
            case ErrorCode.member_id_required:
                self.member_id = response.member_id
                self._join()
            case error:
                self._start_over(error)

    def _sync(self, joined: JoinGroupResponse) -> None:
        """Send SyncGroup after the response ``joined``; the leader computes the assignments."""
        leads = joined.leader == self.member_id and not joined.skip_assignment
        assignments = assign(joined.members) if leads else {}
        request = partial(
            SyncGroup,
            member_id=self.member_id,
            generation=self.generation,
            protocol_type=joined.protocol_type,
            protocol=joined.protocol,
            assignments=tuple(assignments.items()),
            instance_id=self.instance_id,
        )
        self._ask("round", request, self._on_synced)

    def _on_synced(self, response: Response) -> None:
        """Begin heartbeats and commits with the new assignment."""
        assert isinstance(response, SyncGroupResponse)
        if response.error is not ErrorCode.none:
            self._start_over(response.error)
            return
        self.owned = list(assigned(response.assignment))
        self.is_settled = True
        self._assignment_number += 1
        self.after(HEARTBEAT_INTERVAL_MS, partial(self._beat, self._assignment_number))
        self.after(COMMIT_INTERVAL_MS, partial(self._commit, self._assignment_number))
        self._ask("fetch", partial(OffsetFetch, partitions=tuple(self.owned)), lambda _: None)

    def _start_over(self, error: ErrorCode) -> None:
        """Join again a short time after ``error``, which any response may contain. End instead if another process with
        the same instance id has fenced this one."""
        match error:
            case ErrorCode.fenced_instance_id:
                self.kill(RecordKind.FENCED)
                return
            case ErrorCode.unknown_member_id | ErrorCode.group_max_size_reached:
                self.member_id, self.generation = NO_MEMBER, NO_GENERATION
            case _:
                pass
        self.is_settled = False
        self._assignment_number += 1
        self.after(
            3_000 if self.refused_for_size else self.play.world.rng.randint(50, 300),
            self._join_if_idle(self._assignment_number),
        )

    def _join_if_idle(self, assignment_number: int) -> Callable[[], None]:
        """A callback that joins, unless the client has joined or received an assignment since this number."""
        return lambda: self._join() if assignment_number == self._assignment_number else None

    # -- between rounds ---------------------------------------------------------------------------------------------

    def _beat(self, assignment_number: int) -> None:
        """Send a heartbeat and plan the next one, while this is the present assignment."""
        if assignment_number != self._assignment_number:
            return
        request = partial(Heartbeat, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id)
        self._ask("heartbeat", request, partial(self._on_beaten, assignment_number))
        self.after(HEARTBEAT_INTERVAL_MS, partial(self._beat, assignment_number))

    def _on_beaten(self, assignment_number: int, response: Response) -> None:
        """Join again if the response to a heartbeat asks for it."""
        assert isinstance(response, HeartbeatResponse)
        if assignment_number != self._assignment_number or response.error is ErrorCode.none:
            return
        if response.error is ErrorCode.rebalance_in_progress:
            self._join()
        else:
            self._start_over(response.error)

    def _commit(self, assignment_number: int) -> None:
        """Commit an offset for each owned partition and plan the next commit, while this is the present assignment."""
        if assignment_number != self._assignment_number:
            return
        offsets = tuple(self.play.next_offset(partition, self.name) for partition in self.owned)
        request = partial(
            OffsetCommit,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            retention_ms=None,
            offsets=offsets,
        )
        self._ask("commit", request, partial(self._on_committed, assignment_number))
        self.after(COMMIT_INTERVAL_MS, partial(self._commit, assignment_number))

    def _on_committed(self, assignment_number: int, response: Response) -> None:
        assert isinstance(response, OffsetCommitResponse)
        passing = (ErrorCode.none, ErrorCode.rebalance_in_progress)
        if assignment_number == self._assignment_number and response.error not in passing:
            self._start_over(response.error)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _ask(
        self,
        kind: _RequestKind,
        request: Callable[..., Request],
        answered: Callable[[Response], None],
        *,
        late_max_ms: int = LATE_MAX_MS,
    ) -> None:
        """Send the request that ``request`` builds from its ``reply_to``, and call ``answered`` with its response. The
        response is ignored if a newer request of the same ``kind`` was sent. A failed JoinGroup or SyncGroup makes the
        client join again."""
        token = self._asked[kind] = object()
        if kind != "heartbeat":
            self.play.world.record(RecordKind.SENDS, self.name, kind)

        def heard(then: Callable[[], None]) -> None:
            if self._asked.get(kind) is token:
                del self._asked[kind]
                then()

        def hear(response: object) -> None:
            assert isinstance(response, Response)
            if kind != "heartbeat" or response.error is not ErrorCode.none:
                self.play.world.record(RecordKind.HEARS, self.name, kind, response.error.name)
            answered(response)

        def failed() -> None:
            if kind == "round":
                self._start_over(ErrorCode.network_exception)

        self.play.network.call(
            self.service,
            lambda call: self.play.coordinator.serve(call, lambda reply_to: request(reply_to=reply_to)),
            answered=lambda response: self.deliver(lambda: heard(lambda: hear(response))),
            failed=lambda _: self.deliver(lambda: heard(failed)),
            late_max_ms=late_max_ms,
        )
        if kind == "round":
            self.after(_GIVEN_UP_MS, lambda: heard(failed))
