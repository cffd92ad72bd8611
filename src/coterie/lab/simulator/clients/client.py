"""One ordinary client: it joins the group, computes the assignments if it is the leader, sends heartbeats and commits
offsets, as Kafka's consumer does."""

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
    REBALANCE_TIMEOUT_MS,
    REQUEST_DELAY_MAX_MS,
    SESSION_TIMEOUT_MS,
    SharedByClients,
    compute_and_encode_assignments,
    decode_assignment,
)
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcess
from coterie.nouns.ids import InstanceId
from coterie.wire.errors import ErrorCode

_RequestKind: TypeAlias = Literal["round", "heartbeat", "commit", "fetch", "farewell"]
"""The kinds of requests, as recorded: `round` is JoinGroup or SyncGroup, `commit` is OffsetCommit, `fetch` is
OffsetFetch, the last kind is LeaveGroup."""

_JOIN_AGAIN_AFTER_MS = REBALANCE_TIMEOUT_MS + 5_000
"""After this time without a response to its JoinGroup or SyncGroup, a client joins again."""


class Client(SimProcess):
    """One process of a client. A restart of the client is a new process with the same service; that of a static client
    has the same instance id."""

    def __init__(
        self,
        play: SharedByClients,
        live_processes: "dict[str, Client]",
        name: str,
        *,
        service: str,
        instance_id: InstanceId | None,
        protocols: tuple[str, ...],
    ) -> None:
        super().__init__(play.world, name, service, live_processes)
        self.play = play
        self.instance_id = instance_id
        self.protocols = protocols
        self.member_id = NO_MEMBER
        self.generation = NO_GENERATION
        self.owned: list[TopicPartition] = []
        """The partitions of the client's present assignment."""
        self.is_settled = False
        """Whether the client has the assignment of its generation, and since then no response with an error made it
        join again."""
        self.refused_for_size = False
        """Whether the last answered JoinGroup was refused with GROUP_MAX_SIZE_REACHED."""
        self._pending_tokens: dict[_RequestKind, object] = {}
        """By kind, the token of the newest request, while it has no response. Responses to older requests of the kind
        are ignored."""
        self._assignment_number = 0
        """A number that rises with each assignment and each join. Heartbeats and commits that were planned at an
        earlier number are not sent."""
        play.world.add_record(RecordKind.STARTS, name, instance_id, *protocols)
        self._release_and_send_join()

    # -- shutdown ---------------------------------------------------------------------------------------------------

    def leave_if_dynamic_and_end(self) -> None:
        """End the process cleanly: a dynamic client that has a member id sends LeaveGroup before, a static one does not
        (KIP-345)."""
        if self.instance_id is None and self.member_id:
            leave_request = partial(LeaveGroup, members=(LeavingMember(member_id=self.member_id),))
            self._send_request("farewell", leave_request, lambda _: None)
        self.kill(RecordKind.STOPS)

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _release_and_send_join(self) -> None:
        """Give up the present assignment, and send JoinGroup."""
        self.is_settled = False
        self.owned = []
        self._assignment_number += 1
        member_id = self.member_id

        def make_join_request(reply_to: ReplyTo) -> JoinGroup:
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
                    MemberProtocol(name=name, metadata=self.play.encode_protocol_metadata()) for name in self.protocols
                ),
                instance_id=self.instance_id,
                supports_skip_assignment=True,
            )

        # A JoinGroup contains no generation, so the coordinator accepts a late one, as Kafka does: the broker must not
        # read it from a closed connection.
        self._send_request("round", make_join_request, self._handle_join_response, late_max_if_broken_ms=0)

    def _handle_join_response(self, response: Response) -> None:
        """Send SyncGroup after a successful JoinGroup; join again at once with the member id of a response with
        MEMBER_ID_REQUIRED, and later after any other error."""
        assert isinstance(response, JoinGroupResponse)
        self.refused_for_size = response.error is ErrorCode.group_max_size_reached
        match response.error:
            case ErrorCode.none:
                self.member_id, self.generation = response.member_id, response.generation
                self._send_sync(response)
            case ErrorCode.member_id_required:
                self.member_id = response.member_id
                self._release_and_send_join()
            case error:
                self._join_later_or_end_process(error)

    def _send_sync(self, join_response: JoinGroupResponse) -> None:
        """Send SyncGroup after the JoinGroup response ``join_response``; if this client is the leader and has to
        compute the assignments, with all assignments."""
        computes_assignments = join_response.leader == self.member_id and not join_response.skip_assignment
        assignments = compute_and_encode_assignments(join_response.members) if computes_assignments else {}
        request = partial(
            SyncGroup,
            member_id=self.member_id,
            generation=self.generation,
            protocol_type=join_response.protocol_type,
            protocol=join_response.protocol,
            assignments=tuple(assignments.items()),
            instance_id=self.instance_id,
        )
        self._send_request("round", request, self._handle_sync_response)

    def _handle_sync_response(self, response: Response) -> None:
        """Begin heartbeats and commits with the assignment in the SyncGroup response, and fetch the committed offsets;
        after an error, join again."""
        assert isinstance(response, SyncGroupResponse)
        if response.error is not ErrorCode.none:
            self._join_later_or_end_process(response.error)
            return
        self.owned = list(decode_assignment(response.assignment))
        self.is_settled = True
        self._assignment_number += 1
        self.call_after(HEARTBEAT_INTERVAL_MS, partial(self._send_heartbeat_and_plan_next, self._assignment_number))
        self.call_after(COMMIT_INTERVAL_MS, partial(self._send_commit_and_plan_next, self._assignment_number))
        self._send_request("fetch", partial(OffsetFetch, partitions=tuple(self.owned)), lambda _: None)

    def _join_later_or_end_process(self, error: ErrorCode) -> None:
        """Join again a short time after ``error``, which any response may contain; after FENCED_INSTANCE_ID end the
        process instead. After UNKNOWN_MEMBER_ID or GROUP_MAX_SIZE_REACHED the client joins without a member id."""
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
        self.call_after(
            3_000 if self.refused_for_size else self.play.world.rng.randint(50, 300),
            self._make_join_if_unchanged_callback(self._assignment_number),
        )

    def _make_join_if_unchanged_callback(self, assignment_number: int) -> Callable[[], None]:
        """A callback that sends JoinGroup, unless ``_assignment_number`` has changed by then: the client has joined
        again or received an assignment since."""
        return lambda: self._release_and_send_join() if assignment_number == self._assignment_number else None

    # -- between rounds ---------------------------------------------------------------------------------------------

    def _send_heartbeat_and_plan_next(self, assignment_number: int) -> None:
        """Send a heartbeat and plan the next one, if ``assignment_number`` is still that of the present assignment."""
        if assignment_number != self._assignment_number:
            return
        request = partial(Heartbeat, member_id=self.member_id, generation=self.generation, instance_id=self.instance_id)
        self._send_request("heartbeat", request, partial(self._handle_heartbeat_response, assignment_number))
        self.call_after(HEARTBEAT_INTERVAL_MS, partial(self._send_heartbeat_and_plan_next, assignment_number))

    def _handle_heartbeat_response(self, assignment_number: int, response: Response) -> None:
        """Join again if the response to a heartbeat has an error: after REBALANCE_IN_PROGRESS at once, otherwise as
        :meth:`_join_later_or_end_process` does. Ignored if the heartbeat was sent with an earlier assignment."""
        assert isinstance(response, HeartbeatResponse)
        if assignment_number != self._assignment_number or response.error is ErrorCode.none:
            return
        if response.error is ErrorCode.rebalance_in_progress:
            self._release_and_send_join()
        else:
            self._join_later_or_end_process(response.error)

    def _send_commit_and_plan_next(self, assignment_number: int) -> None:
        """Commit an offset for each owned partition and plan the next commit, if ``assignment_number`` is still that of
        the present assignment."""
        if assignment_number != self._assignment_number:
            return
        offsets = tuple(self.play.next_offset_to_commit(partition, self.name) for partition in self.owned)
        request = partial(
            OffsetCommit,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.generation,
            retention_ms=None,
            offsets=offsets,
        )
        self._send_request("commit", request, partial(self._handle_commit_response, assignment_number))
        self.call_after(COMMIT_INTERVAL_MS, partial(self._send_commit_and_plan_next, assignment_number))

    def _handle_commit_response(self, assignment_number: int, response: Response) -> None:
        """Join again if the response to a commit has an error other than REBALANCE_IN_PROGRESS. Ignored if the commit
        was sent with an earlier assignment."""
        assert isinstance(response, OffsetCommitResponse)
        ignored_errors = (ErrorCode.none, ErrorCode.rebalance_in_progress)
        if assignment_number == self._assignment_number and response.error not in ignored_errors:
            self._join_later_or_end_process(response.error)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _send_request(
        self,
        kind: _RequestKind,
        make_request: Callable[..., Request],
        on_response: Callable[[Response], None],
        *,
        late_max_if_broken_ms: int = REQUEST_DELAY_MAX_MS,
    ) -> None:
        """Send the request that ``make_request`` builds from its ``reply_to``, and call ``on_response`` with its
        response. The response is ignored if a newer request of the same ``kind`` was sent. If JoinGroup or SyncGroup
        fails, or has no response after `_JOIN_AGAIN_AFTER_MS`, the client joins again; other requests are not sent
        again. ``late_max_if_broken_ms``: by how much the request may arrive late if its connection breaks."""
        token = self._pending_tokens[kind] = object()
        if kind != "heartbeat":
            self.play.world.add_record(RecordKind.SENDS, self.name, kind)

        def run_if_pending(callback: Callable[[], None]) -> None:
            if self._pending_tokens.get(kind) is token:
                del self._pending_tokens[kind]
                callback()

        def record_and_handle_response(response: object) -> None:
            assert isinstance(response, Response)
            if kind != "heartbeat" or response.error is not ErrorCode.none:
                self.play.world.add_record(RecordKind.HEARS, self.name, kind, response.error.name)
            on_response(response)

        def join_later_if_round() -> None:
            if kind == "round":
                self._join_later_or_end_process(ErrorCode.network_exception)

        self.play.network.send_request(
            self.service,
            lambda call: self.play.coordinator.serve_or_fail_call(
                call, lambda reply_to: make_request(reply_to=reply_to)
            ),
            on_response=lambda response: self.call_now_or_on_resume(
                lambda: run_if_pending(lambda: record_and_handle_response(response))
            ),
            on_failure=lambda _: self.call_now_or_on_resume(lambda: run_if_pending(join_later_if_round)),
            late_max_if_broken_ms=late_max_if_broken_ms,
        )
        if kind == "round":
            self.call_after(_JOIN_AGAIN_AFTER_MS, lambda: run_if_pending(join_later_if_round))
