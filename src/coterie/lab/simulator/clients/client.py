"""One ordinary client: it joins, computes the assignment if it is the leader, sends heartbeats and commits offsets, as
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
from coterie.lab.simulator.actor import Actor
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
from coterie.nouns.ids import InstanceId
from coterie.wire.errors import ErrorCode

_RequestKind: TypeAlias = Literal["round", "heartbeat", "commit", "fetch", "farewell"]

_GIVEN_UP_MS = REBALANCE_TIMEOUT_MS + 5_000
"""A client whose JoinGroup or SyncGroup has had no response for this long joins again."""


class Client(Actor):
    """One process of a client. A restart is a new process with the same name and, if static, the same instance id."""

    def __init__(
        self,
        play: ClientsPlay,
        living: "dict[str, Client]",
        name: str,
        *,
        home: str,
        instance_id: InstanceId | None,
        protocols: tuple[str, ...],
    ) -> None:
        super().__init__(play.world, name, home, living)
        self.play = play
        self.instance_id = instance_id
        self.protocols = protocols
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.owned: list[TopicPartition] = []
        self.is_settled = False
        """The client has the assignment of its generation and has received no notice of a rebalance."""
        self.turned_away = False
        """The last JoinGroup was refused with GROUP_MAX_SIZE_REACHED."""
        self._asked: dict[_RequestKind, object] = {}
        self._stint = 0
        """Number of the present assignment: heartbeats and commits of an earlier one stop."""
        play.world.record(RecordKind.STARTS, name, instance_id, *protocols)
        self._join()

    # -- shutdown ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop cleanly: a dynamic member sends LeaveGroup, a static one does not (KIP-345)."""
        if self.instance_id is None and self.member_id:
            farewell = partial(LeaveGroup, members=(LeavingMember(member_id=self.member_id),))
            self._ask("farewell", farewell, lambda _: None)
        self.kill(RecordKind.STOPS)

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        self.is_settled = False
        self.owned = []
        self._stint += 1
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
        self.turned_away = response.error is ErrorCode.group_max_size_reached
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
        assert isinstance(response, SyncGroupResponse)
        if response.error is not ErrorCode.none:
            self._start_over(response.error)
            return
        self.owned = list(assigned(response.assignment))
        self.is_settled = True
        self._stint += 1
        self.after(HEARTBEAT_INTERVAL_MS, partial(self._beat, self._stint))
        self.after(COMMIT_INTERVAL_MS, partial(self._commit, self._stint))
        self._ask("fetch", partial(OffsetFetch, partitions=tuple(self.owned)), lambda _: None)

    def _start_over(self, error: ErrorCode) -> None:
        """Join again after an ``error`` that any response may contain; end if another process has fenced this one."""
        match error:
            case ErrorCode.fenced_instance_id:
                self.kill(RecordKind.FENCED)
                return
            case ErrorCode.unknown_member_id | ErrorCode.group_max_size_reached:
                self.member_id, self.generation = NO_MEMBER, NO_GENERATION
            case _:
                pass
        self.is_settled = False
        self._stint += 1
        self.after(3_000 if self.turned_away else self.play.world.rng.randint(50, 300), self._join_if_idle(self._stint))

    def _join_if_idle(self, stint: int) -> Callable[[], None]:
        return lambda: self._join() if stint == self._stint else None

    # -- between rounds ---------------------------------------------------------------------------------------------

    def _beat(self, stint: int) -> None:
        if stint != self._stint:
            return
        request = partial(Heartbeat, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id)
        self._ask("heartbeat", request, partial(self._on_beaten, stint))
        self.after(HEARTBEAT_INTERVAL_MS, partial(self._beat, stint))

    def _on_beaten(self, stint: int, response: Response) -> None:
        assert isinstance(response, HeartbeatResponse)
        if stint != self._stint or response.error is ErrorCode.none:
            return
        if response.error is ErrorCode.rebalance_in_progress:
            self._join()
        else:
            self._start_over(response.error)

    def _commit(self, stint: int) -> None:
        if stint != self._stint:
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
        self._ask("commit", request, partial(self._on_committed, stint))
        self.after(COMMIT_INTERVAL_MS, partial(self._commit, stint))

    def _on_committed(self, stint: int, response: Response) -> None:
        assert isinstance(response, OffsetCommitResponse)
        passing = (ErrorCode.none, ErrorCode.rebalance_in_progress)
        if stint == self._stint and response.error not in passing:
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
        """Send a request, which ``request`` builds from its ``reply_to``. A newer request of the same ``kind`` makes
        the client ignore the response."""
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
            self.home,
            lambda call: self.play.coordinator.serve(call, lambda reply_to: request(reply_to=reply_to)),
            answered=lambda response: self.soon(lambda: heard(lambda: hear(response))),
            failed=lambda _: self.soon(lambda: heard(failed)),
            late_max_ms=late_max_ms,
        )
        if kind == "round":
            self.after(_GIVEN_UP_MS, lambda: heard(failed))
