"""A member of a connect group that uses almost no resources: one TCP connection, and jobs that stop at once."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.light_member import LightConnection, error_of_heartbeat
from coterie.assignors.connect.cooperative import cooperative_target
from coterie.assignors.members import RebalancePolicy
from coterie.kafka.connect_group_values import (
    heartbeat_request_values,
    install_request_values,
    prepare_request_values,
    to_heartbeat_response,
    to_install_response,
    to_prepare_response,
)
from coterie.member.connect.messages import HeartbeatRequest, InstallAssignmentRequest, PrepareAssignmentRequest
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN, ConfiguredJobs, HeartbeatResponse, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.wire.kio_entities import build_request

HOLD_MS = 1_000
"""How long the coordinator may hold a response, as with the default connection grace."""
CONFIG_OFFSET = ConfigOffset(1)
_ASSIGNOR = SupportedAssignor(name="cooperative", minimum_version=0, maximum_version=3, version=3)
_HEARTBEAT, _PREPARE, _INSTALL = 10000, 10001, 10002
_REBALANCE_TIMEOUT_MS = 300_000
_RESPONSE_TIMEOUT_MS = 60_000
_NUMBER = 0x7BADBEEF5CAFE123
"""A request number whose bytes occur nowhere else in a heartbeat."""
_POLICY = RebalancePolicy(max_delay_ms=0)


class LightConnectMember(LightConnection):
    """One member. ``on_change`` is called with the member when its jobs or its epoch have changed, or it has failed."""

    def __init__(
        self, group_id: str, number: int, *, configured: Jobs, on_change: Callable[["LightConnectMember"], None]
    ) -> None:
        """``configured`` are the configured jobs, which the leader reports."""
        super().__init__(f"light-{number}")
        self.member_id = MemberId(f"light-{number:05}")
        self.epoch = JOIN
        self.owned = NO_JOBS
        self.heartbeats = 0
        self.moves = 0
        """How many jobs this member has received and given back."""
        self.computed = 0
        """How many target assignments this member has computed."""
        self.failure: BaseException | None = None
        """Why this member has ended by itself."""
        self._configured = configured
        self._group_id = GroupId(group_id)
        self._on_change = on_change
        self._reported = NO_JOBS
        self._knows_group = False
        self._has_to_report_jobs = False
        self._ends = False
        self._loop_of_heartbeats: asyncio.Task[None] | None = None
        self._settled: dict[int, bytearray] = {}
        """The bytes of a settled member's heartbeat by its ``max_wait_ms``; only the request number changes."""

    # -- heartbeats that are held -------------------------------------------------------------------------------------

    def start(self, when_sent: Callable[[], None] | None = None) -> None:
        """Join, and send a heartbeat after each response until :meth:`stop`. ``when_sent`` is called after the join."""
        self._ends = False
        self._loop_of_heartbeats = asyncio.create_task(self._run(when_sent))
        self._loop_of_heartbeats.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """Send no further heartbeat; returns when the last response has arrived."""
        self._ends = True
        if self._loop_of_heartbeats is not None:
            await self._loop_of_heartbeats

    def _note_end(self, loop_of_heartbeats: asyncio.Task[None]) -> None:
        if not loop_of_heartbeats.cancelled() and (failure := loop_of_heartbeats.exception()) is not None:
            self.failure = failure
            self._on_change(self)

    async def _run(self, when_sent: Callable[[], None] | None) -> None:
        while not self._ends:
            response = await self._beat(max_wait_ms=HOLD_MS if self._knows_group else 0, when_sent=when_sent)
            when_sent = None
            self._knows_group = True
            self._take(response)
            if response.error is ConnectErrorCode.COMPUTE_ASSIGNMENT:
                await self._compute()

    async def _beat(self, *, max_wait_ms: int, when_sent: Callable[[], None] | None = None) -> HeartbeatResponse:
        self.heartbeats += 1
        reported = self.owned
        request = self._heartbeat_request(max_wait_ms)
        entity = await self.ask(build_request(_HEARTBEAT, 0, heartbeat_request_values(request)), when_sent)
        response = to_heartbeat_response(entity)
        assert response.error in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT), response
        self._reported = reported
        return response

    def _heartbeat_request(self, max_wait_ms: int) -> HeartbeatRequest:
        further: Mapping[str, Any] = {}
        if self.epoch == JOIN:
            further = {
                "rebalance_timeout_ms": _REBALANCE_TIMEOUT_MS,
                "client_assignors": (_ASSIGNOR,),
                "url": WorkerUrl(f"http://{self.member_id}"),
                "name": "",
                "config_offset": CONFIG_OFFSET,
                "config_topic_id": bytes(16),
                "draining": False,
                "connection_grace_ms": 0,
            }
        if self._has_to_report_jobs:
            configured = ConfiguredJobs(config_offset=CONFIG_OFFSET, jobs=self._configured)
            further = {**further, "configured": configured}
            self._has_to_report_jobs = False
        is_new = self.owned != self._reported or self.epoch == JOIN
        return HeartbeatRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            request_number=self.heartbeats,
            owned=self.owned if is_new else None,
            max_wait_ms=max_wait_ms,
            response_timeout_ms=_RESPONSE_TIMEOUT_MS,
            **further,
        )

    def _take(self, response: HeartbeatResponse) -> None:
        before = (self.epoch, self.owned)
        if response.leader is not None and response.leader.member_id == self.member_id:
            self._has_to_report_jobs = True
        self.epoch = response.member_epoch
        if response.assignment is not None:
            jobs = response.assignment.jobs
            self.moves += len(self.owned - jobs) + len(jobs - self.owned)
            self.owned = jobs
        if before != (self.epoch, self.owned):
            self._on_change(self)

    async def _compute(self) -> None:
        """Compute the target assignment with Coterie's own assignor, and install it."""
        prepare = PrepareAssignmentRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            response_timeout_ms=_RESPONSE_TIMEOUT_MS,
        )
        prepared = to_prepare_response(await self.ask(build_request(_PREPARE, 0, prepare_request_values(prepare))))
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
        installed = to_install_response(await self.ask(build_request(_INSTALL, 0, install_request_values(install))))
        assert installed.error is ConnectErrorCode.NONE, installed
        self.computed += 1

    # -- heartbeats of a settled member -------------------------------------------------------------------------------

    def send_heartbeat(self, on_error: Callable[[int], None], *, max_wait_ms: int = 0) -> None:
        """Send a heartbeat of a settled member; ``on_error`` is called with the response's error code."""
        frame = self._settled.get(max_wait_ms)
        if frame is None:
            request = replace(self._heartbeat_request(max_wait_ms), request_number=_NUMBER)
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
