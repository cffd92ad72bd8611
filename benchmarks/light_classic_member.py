"""A member of a classic group that runs jobs and uses almost no resources: Connect's embedded protocol, with Coterie's
cooperative assignor in the leader."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.heartbeat.v4 import request as heartbeat
from kio.schema.join_group.v9 import request as join_group
from kio.schema.join_group.v9 import response as joined
from kio.schema.leave_group.v5 import request as leave_group
from kio.schema.sync_group.v5 import request as sync_group
from kio.schema.types import GroupId
from kio.static.primitive import i32, i32Timedelta

from benchmarks.light_job_member import JobMember
from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.cooperative import assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.config import defaults
from coterie.nouns.ids import ConfigOffset, GenerationId, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import (
    decode_version_and_assignment,
    decode_version_and_metadata,
    encode_assignment,
    encode_metadata,
)
from coterie.wire.errors import ErrorCode

HEARTBEAT_INTERVAL_S = 3.0
AFTER_REBALANCE_INTERVAL_S = defaults.REBALANCE_HEARTBEAT_INTERVAL_MS / 1000
AFTER_REBALANCE_S = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS / 1000 + 1
"""How long after an assignment a worker sends heartbeats at the shorter interval."""
_SESSION_TIMEOUT, _REBALANCE_TIMEOUT = timedelta(seconds=10), timedelta(seconds=300)
_PROTOCOL = ConnectProtocol.STATIC
_PROTOCOL_TYPE = "connect"
_CONFIG_OFFSET = ConfigOffset(1)
_POLICY = RebalancePolicy(max_delay_ms=0)
_REJOIN_ERRORS = (ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation)


class LightClassicMember(JobMember):
    """One member of a classic group."""

    def __init__(
        self,
        group_id: str,
        number: int,
        *,
        configured: Jobs,
        on_change: Callable[[JobMember], None],
        predecessor: "LightClassicMember | None" = None,
    ) -> None:
        """``predecessor`` is the same member before a restart in place."""
        super().__init__(number, on_change)
        self.member_id = ""
        self._group_id = GroupId(group_id)
        self._configured = configured
        self._url = WorkerUrl(f"http://light-{number:05}")
        self._assignor_state = AssignorState()
        self._is_leader = False
        self._completed = GenerationId(-1)
        """The last generation whose assignment this member has received."""
        self._must_join = asyncio.Event()
        self._must_join.set()
        self._assigned_s = 0.0
        """When the last assignment arrived."""
        if predecessor is not None:
            self.member_id, self.epoch = predecessor.member_id, predecessor.epoch
            self.owned, self.stopped = predecessor.owned, predecessor.stopped
            if not predecessor._is_leader:  # a leader that has lost its state asks for a rebalance, as a worker does
                self._must_join.clear()

    async def leave(self) -> None:
        self._end_heartbeats()
        leaving = leave_group.MemberIdentity(member_id=self.member_id)
        answer = await self.ask(leave_group.LeaveGroupRequest(group_id=self._group_id, members=(leaving,)))
        assert answer.error_code == ErrorCode.none, answer
        self.close()

    async def suspend(self) -> None:
        """Close the connection: a classic group does not notice that."""
        self.crash()

    def drain(self) -> None:
        self.draining = True
        self._must_join.set()

    def configure(self, jobs: Jobs) -> None:
        """Note the configured jobs, which have changed; every member asks for the rebalance itself."""
        self._configured = jobs
        self._must_join.set()

    async def _run(self, when_sent: Callable[[], None] | None) -> None:
        is_first = True
        while not self._ends:
            if self._must_join.is_set():
                self._must_join.clear()
                await self._join_and_sync(when_sent)
                when_sent = None
            elif is_first or not await self._has_to_join_soon():
                await self._heartbeat()
            is_first = False

    async def _has_to_join_soon(self) -> bool:
        """Wait until the next heartbeat is due, or this member must join; returns whether it must."""
        is_soon_after = time.monotonic() - self._assigned_s < AFTER_REBALANCE_S
        try:
            async with asyncio.timeout(AFTER_REBALANCE_INTERVAL_S if is_soon_after else HEARTBEAT_INTERVAL_S):
                await self._must_join.wait()
        except TimeoutError:
            return False
        return True

    async def _heartbeat(self) -> None:
        request = heartbeat.HeartbeatRequest(
            group_id=self._group_id, generation_id=i32(self.epoch), member_id=self.member_id
        )
        answer = await self.ask(request)
        if answer.error_code in _REJOIN_ERRORS:
            self._must_join.set()
            return
        assert answer.error_code == ErrorCode.none, answer
        self._note(self.epoch, self.owned)

    async def _join_and_sync(self, when_sent: Callable[[], None] | None = None) -> None:
        """Join and sync until this member has an assignment; if jobs were revoked, join again next."""
        while True:
            answer = await self.ask(self._join_request(), when_sent)
            if answer.error_code == ErrorCode.member_id_required:
                self.member_id = answer.member_id
                continue
            assert answer.error_code == ErrorCode.none, answer
            self.member_id = answer.member_id
            synced = await self.ask(self._sync_request(answer))
            if synced.error_code == ErrorCode.rebalance_in_progress:
                continue
            assert synced.error_code == ErrorCode.none, synced
            self._completed = GenerationId(answer.generation_id)
            self._assigned_s = time.monotonic()
            assignment = decode_version_and_assignment(synced.assignment)[1]
            if assignment.revoked:
                self._must_join.set()
            self._note(MemberEpoch(answer.generation_id), (self.owned - assignment.revoked) | assignment.assigned)
            return

    def _join_request(self) -> Any:
        allocation = WorkerAssignment(
            leader=MemberId(""), leader_url=self._url, config_offset=_CONFIG_OFFSET, assigned=self.owned
        )
        metadata = WorkerMetadata(
            url=self._url, config_offset=_CONFIG_OFFSET, allocation=allocation, draining=self.draining
        )
        return join_group.JoinGroupRequest(
            group_id=self._group_id,
            session_timeout=i32Timedelta.parse(_SESSION_TIMEOUT),
            rebalance_timeout=i32Timedelta.parse(_REBALANCE_TIMEOUT),
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type=_PROTOCOL_TYPE,
            protocols=(
                join_group.JoinGroupRequestProtocol(
                    name=_PROTOCOL.wire_name, metadata=encode_metadata(_PROTOCOL, metadata)
                ),
            ),
        )

    def _sync_request(self, answer: joined.JoinGroupResponse) -> Any:
        self._is_leader = answer.leader == self.member_id
        return sync_group.SyncGroupRequest(
            group_id=self._group_id,
            generation_id=i32(answer.generation_id),
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=_PROTOCOL.wire_name,
            assignments=self._assignments(answer) if self._is_leader else (),
        )

    def _assignments(self, answer: joined.JoinGroupResponse) -> tuple[sync_group.SyncGroupRequestAssignment, ...]:
        """The assignments of all members of the generation in ``answer``, as their leader computes them."""
        members: dict[MemberId, MemberSpec] = {}
        for one in answer.members:
            metadata = decode_version_and_metadata(one.metadata)[1]
            owned = NO_JOBS if metadata.allocation is None else metadata.allocation.assigned
            members[MemberId(one.member_id)] = MemberSpec(owned=owned, is_draining=metadata.draining)
        outcome = assign(
            self._assignor_state,
            configured=self._configured,
            members=members,
            generation=GenerationId(answer.generation_id),
            last_completed_generation=self._completed,
            now_ms=round(1000 * time.monotonic()),
            policy=_POLICY,
        )
        self._assignor_state = outcome.assignor_state
        self.computed += 1
        return tuple(
            sync_group.SyncGroupRequestAssignment(
                member_id=member,
                assignment=encode_assignment(
                    _PROTOCOL,
                    WorkerAssignment(
                        leader=MemberId(self.member_id),
                        leader_url=self._url,
                        config_offset=_CONFIG_OFFSET,
                        assigned=one.assigned,
                        revoked=one.revoked,
                        delay_ms=outcome.delay_ms,
                    ),
                ),
            )
            for member, one in outcome.assignments.items()
        )
