"""One worker of a scenario: the real member machine, and of the herder only the parts that a scenario needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from coterie.assignors import eager
from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import RebalancePolicy
from coterie.engine.timers import Timers
from coterie.groups.classic import messages as group_messages
from coterie.herder.place import retained_jobs
from coterie.herder.rounds import rejoin
from coterie.herder.rounds.following import must_rejoin_after_empty_eager_round
from coterie.herder.rounds.leading import (
    cooperative_assignments,
    eager_assignments,
    have_all_jobs_stopped,
    member_spec_of_report,
    remaining_delay_ms,
)
from coterie.lab.scenario.group import GroupScenario
from coterie.lab.scenario.notation import format_jobs
from coterie.lab.translation import to_group_request, to_member_response
from coterie.member.classic.messages import Event, JoinRequest, Request, Timer
from coterie.member.classic.state import Member, MemberSettings
from coterie.member.events import CancelTimer, RequestId, ResponseReceived, Send, SetTimer, TimerFired
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentsRequested,
    MembershipLost,
    MembershipRefused,
    Rejoin,
    SendAssignments,
    SetWorkerState,
    StopAllBeforeJoin,
)
from coterie.wire.connect import ClassicAssignmentDetails, ConnectProtocol, RoundToken
from coterie.wire.connect_bytes import decode_version_and_metadata

GROUP_ID = GroupId("fleet")


ComputedRound: TypeAlias = RoundOutcome | Mapping[MemberId, Jobs]
"""The round that a leader has computed: the outcome of a cooperative round, or the jobs of each member in an eager
round."""


@dataclass(slots=True, kw_only=True)
class SharedScenarioInput:
    """The input of every leader's computation of rounds that all workers share: the configured jobs and the rebalance
    policy. Commands change it."""

    configured_jobs: Jobs
    policy: RebalancePolicy


class ScenarioWorker:
    """One worker. It starts and stops jobs immediately, without simulated time, except its ``slow_jobs``."""

    def __init__(
        self,
        scenario: GroupScenario,
        fleet: SharedScenarioInput,
        name: str,
        protocol: ConnectProtocol,
        claims: Jobs | None,
        *,
        fresh_member_id: MemberId,
        report_round: Callable[[str, ConnectProtocol, ComputedRound], None],
    ) -> None:
        """``claims`` None: the worker may run all jobs that no worker claims. ``report_round`` is called when this
        worker has computed a round as the leader, with the worker's name, the group's protocol and the round."""
        self.scenario = scenario
        self.fleet = fleet
        self.name = name
        self.fresh_member_id = fresh_member_id
        """The member id that the coordinator gives to the worker if it joins without one."""
        self.report_round = report_round
        self.is_draining = False
        self.member = Member(
            MemberSettings(
                group_id=GROUP_ID,
                url=WorkerUrl(f"http://{name}:8083/"),
                protocols=protocol.versions_to_offer,
                claims=claims,
                rebalance_heartbeat_interval_ms=3_000,  # One heartbeat interval keeps transcripts short.
            )
        )
        self.timers = Timers[Timer]()
        self.owned_jobs = NO_JOBS
        """The jobs that the worker owns and runs, without those in ``stopping_jobs``."""
        self.slow_jobs = NO_JOBS
        """The jobs whose stops, if they are revoked from this worker, do not end before
        :meth:`end_slow_stops_and_rejoin`."""
        self.stopping_jobs = NO_JOBS
        """The revoked jobs whose stops have not ended."""
        self.jobs_stopped_before_join = NO_JOBS
        """The jobs that the worker stopped before it joined the present round of an eager group."""
        self.assignor_state = AssignorState()
        """The cooperative assignor's state after the last round that this worker has computed."""
        self.last_completed_generation = GenerationId(-1)
        """The last generation whose assignment the worker has received; -1 if it has received none since it last lost
        its membership."""
        self.group_protocol: ConnectProtocol | None = None
        """The group's protocol in the generation ``last_completed_generation``; None if this is -1."""
        self.rebalance_delay_ends_ms: int | None = None
        """When the scheduled rebalance delay in the worker's last assignment ends, in ms on the scenario's clock; None
        if it has none or has ended."""
        self.next_moves_at_ms: int | None = None
        """When the worker, as the leader, requests the round that makes postponed moves; None if it has postponed no
        moves."""
        self.eager_assigned_jobs: Jobs | None = None
        """The jobs that the worker, as the leader, assigned in the last round, if that round was eager; otherwise
        None."""

    def step_member(self, event: Event) -> None:
        """Step the member with ``event``, and perform its effects: requests are queued, and so are this worker's
        reactions to the member's notifications.

        :raises AssertionError: when the group refuses the worker's membership.
        """
        for effect in self.scenario.steps.step_classic_member(self.member, event, now_ms=self.scenario.now_ms).effects:
            match effect:
                case Send(id=id_, request=request):
                    self.queue_request(id_, request)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case AssignmentsRequested():
                    self.scenario.enqueue_call(partial(self.compute_and_send_round, effect))
                case Assigned():
                    self.scenario.enqueue_call(partial(self.apply_assignment_and_maybe_rejoin, effect))
                case StopAllBeforeJoin():
                    self.scenario.enqueue_call(self.stop_all_before_join)
                case MembershipLost():
                    self.scenario.enqueue_call(self.handle_lost_membership)
                case MembershipRefused(reason=reason):
                    raise AssertionError(
                        f"bug in the scenario or the machines: the group has refused the worker {self.name} "
                        f"permanently: {reason}"
                    )
                case _:
                    pass  # log lines, and states of the member that only a herder needs

    def queue_request(self, id_: RequestId, request: Request) -> None:
        """Queue the member's ``request``, which has the id ``id_``, for the coordinator; the member receives the
        response later."""

        def print_join_and_make_group_request(reply_to: group_messages.ReplyTo) -> group_messages.Request:
            if isinstance(request, JoinRequest) and request.member_id:
                self._print_join(request)
            return to_group_request(self.name, reply_to, request, fresh_member_id=lambda _: self.fresh_member_id)

        self.scenario.queue_request(
            print_join_and_make_group_request,
            lambda response: self.step_member(ResponseReceived(id=id_, response=to_member_response(response))),
        )

    def _print_join(self, request: JoinRequest) -> None:
        """Print that the worker sends JoinGroup, and the owned jobs that it reports."""
        allocation = decode_version_and_metadata(request.protocols[0][1])[1].allocation
        verb = "rejoins" if request.reason == rejoin.RELEASED_REASON else "joins"
        group = self.scenario.group
        if request.member_id not in group.members and group.phase is group_messages.GroupPhase.PREPARING_REBALANCE:
            verb += " while rebalance is still active"
        runs = format_jobs(allocation.assigned if allocation else NO_JOBS)
        self.scenario.add_output_line(f"{self.name} {verb} with assignment: {runs}")

    def report_state_to_member(self) -> None:
        """Give the member the state that it reports in its next JoinGroup: the owned jobs, with those that are still
        stopping, and whether the worker drains."""
        owned = self.owned_jobs | self.stopping_jobs
        self.step_member(SetWorkerState(config_offset=ConfigOffset(1), owned=owned, draining=self.is_draining))

    def stop_all_before_join(self) -> None:
        """Stop all jobs, because the group is eager; then let the member join."""
        self.scenario.add_output_line(f"{self.name} stops everything")
        self.owned_jobs, self.jobs_stopped_before_join = NO_JOBS, self.owned_jobs
        self.report_state_to_member()

    def compute_and_send_round(self, request: AssignmentsRequested) -> None:
        """Compute the round that ``request`` orders: this worker's member is the group's leader. Then let the member
        send the assignments."""
        token = RoundToken.checked_instance(request.token)
        if token.protocol is ConnectProtocol.EAGER:
            self.compute_and_send_eager_round(request)
        else:
            self.compute_and_send_cooperative_round(request, token)

    def compute_and_send_eager_round(self, request: AssignmentsRequested) -> None:
        """Compute an eager round, and let the member send its assignments to the group. The round assigns all
        configured jobs if all members have stopped their jobs, otherwise none."""
        all_stopped = have_all_jobs_stopped(
            request, last_seen_generation=self.last_completed_generation, protocol=self.group_protocol
        )
        self.assignor_state, self.next_moves_at_ms = AssignorState(), None
        self.eager_assigned_jobs = self.fleet.configured_jobs if all_stopped else NO_JOBS
        jobs_by_member = eager.assign(self.eager_assigned_jobs, request.members)
        self.report_round(self.name, ConnectProtocol.EAGER, jobs_by_member)
        self.step_member(
            SendAssignments(
                token=request.token, computed=eager_assignments(request, jobs_by_member, config_offset=ConfigOffset(1))
            )
        )

    def compute_and_send_cooperative_round(self, request: AssignmentsRequested, token: RoundToken) -> None:
        """Compute a cooperative round, and let the member send its assignments to the group. The assignor's state and
        the time of postponed moves are stored for the next round."""
        outcome = assign(
            self.assignor_state,
            configured=self.fleet.configured_jobs,
            members={member_id: member_spec_of_report(report) for member_id, report in request.members.items()},
            generation=token.generation,
            last_completed_generation=self.last_completed_generation,
            now_ms=self.scenario.now_ms,
            policy=self.fleet.policy,
            received_delay_ms=remaining_delay_ms(self.rebalance_delay_ends_ms, self.scenario.now_ms),
        )
        self.assignor_state, self.eager_assigned_jobs = outcome.assignor_state, None
        self.next_moves_at_ms = (
            self.scenario.now_ms + outcome.next_moves_timer_ms if outcome.next_moves_timer_ms else None
        )
        self.report_round(self.name, token.protocol, outcome)
        self.step_member(
            SendAssignments(
                token=request.token, computed=cooperative_assignments(outcome, config_offset=ConfigOffset(1))
            )
        )

    def apply_assignment_and_maybe_rejoin(self, assignment: Assigned) -> None:
        """Start the newly assigned jobs and stop the revoked ones; in an eager round replace all jobs. Let the member
        join again if revoked jobs have stopped, or if this worker is the leader and has assigned nothing in an eager
        round because a member still ran jobs."""
        result = ClassicAssignmentDetails.checked_instance(assignment.protocol_details)
        self.last_completed_generation, self.group_protocol = GenerationId(assignment.epoch), result.protocol
        if assignment.replaces_all and self.owned_jobs:
            self.scenario.add_output_line(f"{self.name} stops everything")
        self.owned_jobs = retained_jobs(self.owned_jobs, assignment) | assignment.jobs
        self.rebalance_delay_ends_ms = self.scenario.now_ms + result.delay_ms if result.delay_ms else None
        if assignment.leader != self.member.member_id:
            self.next_moves_at_ms = self.eager_assigned_jobs = None
        newly_revoked = assignment.revoked - self.stopping_jobs
        self.stopping_jobs |= newly_revoked & self.slow_jobs
        self.report_state_to_member()
        if newly_revoked:
            slow = f", {format_jobs(self.stopping_jobs)} slowly" if self.stopping_jobs else ""
            self.scenario.add_output_line(f"{self.name} stops revoked resources{slow}")
        if newly_revoked - self.stopping_jobs:
            self.step_member(Rejoin(reason=rejoin.RELEASED_REASON))
        if must_rejoin_after_empty_eager_round(self.eager_assigned_jobs, configured=self.fleet.configured_jobs):
            self.step_member(Rejoin(reason="all members have stopped their jobs"))

    def end_slow_stops_and_rejoin(self) -> None:
        """End the stops of all jobs that are still stopping, and let the member join again."""
        self.scenario.add_output_line(f"{self.name} has stopped {format_jobs(self.stopping_jobs)}")
        self.stopping_jobs = NO_JOBS
        self.report_state_to_member()
        self.step_member(Rejoin(reason=rejoin.RELEASED_REASON))

    def handle_lost_membership(self) -> None:
        """Stop all jobs, and forget the state from earlier rounds, because the membership is lost; then let the member
        join."""
        self.owned_jobs = self.stopping_jobs = self.jobs_stopped_before_join = NO_JOBS
        self.assignor_state, self.last_completed_generation, self.group_protocol = (
            AssignorState(),
            GenerationId(-1),
            None,
        )
        self.rebalance_delay_ends_ms = self.next_moves_at_ms = None
        self.report_state_to_member()

    def next_timer_or_rejoin_at_ms(self) -> int | None:
        """The time at which the next timer of the member or of this worker is due; None if no timer is set."""
        times_ms = (self.timers.next_deadline_ms(), self.rebalance_delay_ends_ms, self.next_moves_at_ms)
        return min((at_ms for at_ms in times_ms if at_ms is not None), default=None)

    def fire_due_timer_or_rejoin(self) -> bool:
        """Fire one timer of the member or of this worker that is due now, if there is one. Returns whether there was
        one."""
        now_ms = self.scenario.now_ms
        if self.rebalance_delay_ends_ms is not None and self.rebalance_delay_ends_ms <= now_ms:
            self.rebalance_delay_ends_ms = None
            self.step_member(Rejoin(reason="the scheduled rebalance delay is over"))
            return True
        if self.next_moves_at_ms is not None and self.next_moves_at_ms <= now_ms:
            self.next_moves_at_ms = None
            self.step_member(Rejoin(reason="postponed moves are due"))
            return True
        timer = self.timers.pop_due(now_ms)
        if timer is not None:
            self.step_member(TimerFired(timer=timer))
        return timer is not None
