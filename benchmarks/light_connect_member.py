"""A member of a connect group that uses almost no resources: one TCP connection, and jobs that stop at once."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.light_job_member import JobMember
from benchmarks.light_member import decoded, error_of_heartbeat
from coterie.assignors.connect.cooperative import cooperative_target
from coterie.assignors.members import RebalancePolicy
from coterie.kafka.connect_group_values import (
    heartbeat_request_values,
    install_assignment_request_values,
    prepare_assignment_request_values,
    to_heartbeat_response,
    to_install_assignment_response,
    to_prepare_assignment_response,
)
from coterie.member.connect.messages import HeartbeatRequest, InstallAssignmentRequest, PrepareAssignmentRequest
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, LEAVE_EPOCH, ConfiguredJobs, HeartbeatResponse, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.wire.kio_entities import build_request
from coterie.wire.schemas import request_schema

HOLD_MS = 1_000
"""How long the coordinator may hold a response, as with the default connection grace."""
_ASSIGNOR = SupportedAssignor(name="cooperative", minimum_version=0, maximum_version=3, version=3)
_HEARTBEAT, _PREPARE, _INSTALL = 10000, 10001, 10002
_REBALANCE_TIMEOUT_MS = 300_000
_RESPONSE_TIMEOUT_MS = 60_000
_NUMBER = 0x7BADBEEF5CAFE123
"""A request number whose bytes occur nowhere else in a heartbeat."""
_POLICY = RebalancePolicy(max_delay_ms=0)
_ACCEPTED = (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT)


class LightConnectMember(JobMember):
    """One member of a connect group."""

    def __init__(
        self,
        group_id: str,
        number: int,
        *,
        configured: Jobs,
        on_change: Callable[[JobMember], None],
        server_assignor: str | None = None,
        connection_grace_ms: int = 0,
        predecessor: "LightConnectMember | None" = None,
    ) -> None:
        """``configured`` are the configured jobs, which the leader reports. ``server_assignor`` is the coordinator's
        assignor that computes; None: the leader computes. ``predecessor`` is the same member before a restart in place:
        this one continues its membership on a new connection."""
        super().__init__(number, on_change)
        self.member_id = MemberId(f"light-{number:05}")
        self.heartbeats = 0
        """The number of heartbeats sent, those of the predecessors included."""
        self._configured = ConfiguredJobs(config_offset=ConfigOffset(1), jobs=configured)
        self._group_id = GroupId(group_id)
        self._server_assignor = server_assignor
        self._connection_grace_ms = connection_grace_ms
        self._reported = NO_JOBS
        self._knows_group = False
        self._is_leader = False
        self._has_to_report_jobs = False
        self._has_to_report_all = True
        """Whether the next heartbeat has all fields: it is a join, or the first one on this connection."""
        self._newest = 0
        """The number of the newest heartbeat: only its response counts."""
        self._answer: asyncio.Future[bytes] | None = None
        """The response to the newest heartbeat."""
        self._settled: dict[int, bytearray] = {}
        """The bytes of a settled member's heartbeat by its ``max_wait_ms``; only the request number changes."""
        if predecessor is not None:
            self.epoch, self.owned, self.heartbeats = predecessor.epoch, predecessor.owned, predecessor.heartbeats
            self.stopped = predecessor.stopped
            self._configured, self._is_leader = predecessor._configured, predecessor._is_leader

    # -- heartbeats that are held -------------------------------------------------------------------------------------

    async def leave(self) -> None:
        self._end_heartbeats()
        self.heartbeats += 1
        request = HeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH,
            request_number=self.heartbeats,
            owned=NO_JOBS,
            response_timeout_ms=_RESPONSE_TIMEOUT_MS,
        )
        response = to_heartbeat_response(
            await self.ask(build_request(_HEARTBEAT, 0, heartbeat_request_values(request)))
        )
        assert response.error is ConnectErrorCode.NONE, response
        self.close()

    async def suspend(self) -> None:
        self._end_heartbeats()
        request = self._heartbeat_request(0, has_all_fields=True, resumes=True)
        response = to_heartbeat_response(
            await self.ask(build_request(_HEARTBEAT, 0, heartbeat_request_values(request)))
        )
        assert response.error in _ACCEPTED, response
        self._take(response)
        self.close()

    def drain(self) -> None:
        self.draining = True
        self._report_now()

    def configure(self, jobs: Jobs) -> None:
        """Note the configured jobs, which have changed; the leader reports them at once."""
        self._configured = ConfiguredJobs(config_offset=ConfigOffset(self._configured.config_offset + 1), jobs=jobs)
        if self._is_leader:
            self._has_to_report_jobs = True
            self._report_now()

    def _end_heartbeats(self) -> None:
        super()._end_heartbeats()
        self._answer = None

    def _report_now(self) -> None:
        """Send a heartbeat with all fields at once, also while another one is unanswered, as real members do; without a
        heartbeat in flight, the next one has all fields."""
        if self._answer is None or self._answer.done():
            self._has_to_report_all = True
        else:
            self._send(HOLD_MS, has_all_fields=True)

    async def _run(self, when_sent: Callable[[], None] | None) -> None:
        while not self._ends:
            response = await self._beat(when_sent)
            when_sent = None
            self._knows_group = True
            self._take(response)
            if response.error is ConnectErrorCode.COMPUTE_ASSIGNMENT:
                await self._compute()

    async def _beat(self, when_sent: Callable[[], None] | None = None) -> HeartbeatResponse:
        """Send a heartbeat; returns its response, or that of a later one that was sent meanwhile."""
        reported = self.owned
        self._answer = asyncio.get_running_loop().create_future()
        has_all_fields, self._has_to_report_all = self._has_to_report_all, False
        self._send(HOLD_MS if self._knows_group else 0, has_all_fields=has_all_fields)
        if when_sent is not None:
            when_sent()
        response = to_heartbeat_response(decoded(await self._answer, request_schema(_HEARTBEAT, 0)))
        assert response.error in _ACCEPTED, response
        self._reported = reported
        return response

    def _send(self, max_wait_ms: int, *, has_all_fields: bool) -> None:
        request = self._heartbeat_request(max_wait_ms, has_all_fields=has_all_fields)
        number = self._newest = request.request_number
        frame = self.frame_of(build_request(_HEARTBEAT, 0, heartbeat_request_values(request)), correlation_id=number)
        self.send(frame, lambda response: self._on_response(number, response))

    def _on_response(self, number: int, frame: bytes) -> None:
        # Real members drop the response to an older heartbeat, too: it contains nothing new.
        if number == self._newest and self._answer is not None and not self._answer.done():
            self._answer.set_result(frame)

    def _heartbeat_request(
        self, max_wait_ms: int, *, has_all_fields: bool = False, resumes: bool = False
    ) -> HeartbeatRequest:
        """The next heartbeat, with a new request number."""
        self.heartbeats += 1
        has_all_fields = has_all_fields or self.epoch == JOIN_EPOCH
        further: Mapping[str, Any] = {}
        if has_all_fields:
            further = {
                "rebalance_timeout_ms": _REBALANCE_TIMEOUT_MS,
                "url": WorkerUrl(f"http://{self.member_id}"),
                "name": "",
                "config_offset": self._configured.config_offset,
                "config_topic_id": bytes(16),
                "draining": self.draining,
                "connection_grace_ms": self._connection_grace_ms,
                "resumes": resumes,
            }
            if self._server_assignor is None:
                further = {**further, "client_assignors": (_ASSIGNOR,)}
            else:
                further = {**further, "server_assignor": self._server_assignor}
        if self._has_to_report_jobs:
            further = {**further, "configured": self._configured}
            self._has_to_report_jobs = False
        return HeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            request_number=self.heartbeats,
            owned=self.owned if has_all_fields or self.owned != self._reported else None,
            max_wait_ms=max_wait_ms,
            response_timeout_ms=_RESPONSE_TIMEOUT_MS,
            **further,
        )

    def _take(self, response: HeartbeatResponse) -> None:
        if response.leader is not None:
            self._is_leader = response.leader.member_id == self.member_id
            self._has_to_report_jobs |= self._is_leader
        self._note(response.member_epoch, self.owned if response.assignment is None else response.assignment.jobs)

    async def _compute(self) -> None:
        """Compute the target assignment with Coterie's own assignor, and install it."""
        prepare = PrepareAssignmentRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            response_timeout_ms=_RESPONSE_TIMEOUT_MS,
        )
        prepared = to_prepare_assignment_response(
            await self.ask(build_request(_PREPARE, 0, prepare_assignment_request_values(prepare)))
        )
        if prepared.error is not ConnectErrorCode.NONE:
            return  # the next response to a heartbeat has the new epoch, and orders again
        assert prepared.snapshot is not None
        install = InstallAssignmentRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            group_epoch=prepared.snapshot.group_epoch,
            assignor_error=0,
            target=cooperative_target(prepared.snapshot, _POLICY),
            response_timeout_ms=_RESPONSE_TIMEOUT_MS,
        )
        installed = to_install_assignment_response(
            await self.ask(build_request(_INSTALL, 0, install_assignment_request_values(install)))
        )
        assert installed.error is ConnectErrorCode.NONE, installed
        self.computed += 1

    # -- heartbeats of a settled member -------------------------------------------------------------------------------

    def send_heartbeat(self, on_error: Callable[[int], None], *, max_wait_ms: int = 0) -> None:
        """Send a heartbeat of a settled member; ``on_error`` is called with the response's error code."""
        frame = self._settled.get(max_wait_ms)
        if frame is None:
            request = replace(self._heartbeat_request(max_wait_ms), request_number=_NUMBER)
            self.heartbeats -= 1
            frame = bytearray(self.frame_of(build_request(_HEARTBEAT, 0, heartbeat_request_values(request))))
            assert frame.index(_NUMBER.to_bytes(8)) == len(frame) - 8, "the request number is the last field"
            self._settled[max_wait_ms] = frame
        self.heartbeats += 1
        frame[-8:] = self.heartbeats.to_bytes(8)
        self.send(bytes(frame), lambda frame: on_error(error_of_heartbeat(frame)))

    async def heartbeat(self, *, max_wait_ms: int = 0) -> int:
        """Send a heartbeat; returns the response's error code."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.send_heartbeat(answer.set_result, max_wait_ms=max_wait_ms)
        return await answer
