"""One worker in a classic group: the real `herder` and the real `member` (`workers.worker`)."""

from collections.abc import Iterator

from coterie.herder import messages as herder
from coterie.herder.rounds.rejoin import RELEASED_IN_PART_REASON, RELEASED_REASON
from coterie.herder.state import Herder, HerderSettings
from coterie.lab.simulator.fleet.cluster import SharedByClassicWorkers
from coterie.lab.simulator.fleet.process import ClassicWorkerProcess
from coterie.lab.simulator.invariants import AssertionsAsViolations
from coterie.lab.simulator.records import RecordKind, RecordValue, jobs_text, recorded_name
from coterie.lab.simulator.workers.settings import (
    GROUP_ID,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_DELAY_MAX_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STOP_GRACE_MS,
    url_of_worker,
)
from coterie.lab.simulator.world import SimTimers
from coterie.lab.translation import to_group_request, to_member_response
from coterie.member import events
from coterie.member.classic import messages as member_messages
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    Request,
    Response,
)
from coterie.member.classic.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, GenerationId, WorkerId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ClassicMembershipHandover,
    ComputedAssignments,
    InstallTarget,
    MembershipLost,
    MembershipOrder,
    MembershipRefused,
    MemberStateChanged,
    Rejoin,
    RequestGroupDescription,
    SendAssignments,
    SetConfiguredJobs,
    StopAllBeforeJoin,
    SuspendMembership,
)
from coterie.wire.connect import AssignmentErrorCode, ClassicAssignmentDetails, ConnectProtocol, RoundToken
from coterie.wire.errors import ErrorCode


class ClassicGroupWorker(ClassicWorkerProcess):
    """One process of a worker in a classic group: its herder and its member. What a herder orders only in a connect
    group (for example targets, and news for rebalance listeners) raises an AssertionError."""

    cluster: SharedByClassicWorkers

    def __init__(
        self,
        cluster: SharedByClassicWorkers,
        live_processes: "dict[str, ClassicGroupWorker]",
        service: str,
        handover: ClassicMembershipHandover | None = None,
    ) -> None:
        """``handover`` is the membership that the process continues, as the next process after a relaunch; otherwise
        None."""
        setup = cluster.worker_setups[service]
        url = url_of_worker(service)
        herder_state = Herder(
            HerderSettings(
                worker_id=WorkerId(service),
                url=url,
                coterie_version="0",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                stop_grace_ms=STOP_GRACE_MS,
                instance_id=setup.instance_id,
                rebalance_policy=cluster.policy,
                session_key_settings=cluster.session_keys,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
            ),
            handover,
        )
        member = Member(
            MemberSettings(
                group_id=GROUP_ID,
                url=url,
                instance_id=setup.instance_id,
                protocols=setup.protocol.versions_to_offer,
                claims=setup.claims,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            ),
            handover,
        )
        super().__init__(cluster, live_processes, service, herder_state, setup, member, handover)
        self.member_timers = SimTimers[member_messages.Timer](
            self.world,
            lambda timer: self.call_now_or_on_resume(lambda: self.feed_member(events.TimerFired(timer=timer))),
        )
        self._add_process_record(
            RecordKind.STARTS if handover is None else RecordKind.CONTINUES,
            setup.protocol.setting,
            setup.instance_id,
            f"claims {jobs_text(setup.claims)}" if setup.claims is not None else None,
        )
        if handover is not None:
            self.feed_member(events.MemberStarted())
        self._feed_log_and_open_runtime_later()

    def kill(self, kind: RecordKind, *values: RecordValue) -> None:
        super().kill(kind, *values)
        self.member_timers.close()

    # -- orders of the herder ----------------------------------------------------------------------------------------

    def _pass_order_to_member(self, order: MembershipOrder) -> None:
        match order:
            case Rejoin(reason=reason):
                self._add_process_record(RecordKind.REJOINS)
                self.cluster.checker.rejoin_after_release_count += reason in (RELEASED_REASON, RELEASED_IN_PART_REASON)
            case SendAssignments(token=token, computed=computed):
                self._add_process_record(
                    RecordKind.DEALS,
                    RoundToken.checked_instance(token).generation,
                    *_recorded_values_of_round(computed),
                )
                if self.requested_round is not None and self.requested_round.token == token:
                    self.cluster.checker.check_deferrals_in_round(self, self.requested_round, computed)
            case SetConfiguredJobs() | InstallTarget() | RequestGroupDescription() | SuspendMembership():
                raise AssertionError(
                    f"bug in the herder: in a classic group it orders {type(order).__name__}, which only connect "
                    "groups have"
                )
            case _:
                pass
        self.feed_member(order)

    def _compute_target(self, chore: herder.ComputeTarget) -> None:
        raise AssertionError(
            "bug in the herder: in a classic group it orders ComputeTarget, which only connect groups have"
        )

    def _check_listener_news(self, effect: herder.NotifyRebalanceListeners) -> None:
        raise AssertionError(
            "bug in the herder: in a classic group it orders NotifyRebalanceListeners, which only connect groups have"
        )

    # -- the member --------------------------------------------------------------------------------------------------

    def feed_member(self, event: member_messages.Event) -> None:
        """Step the member with ``event``, and perform its effects."""
        with AssertionsAsViolations("member"):
            output = self.cluster.steps.step_classic_member(self.member, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.is_alive:
                self._perform_member_effect(effect)

    def _perform_member_effect(self, effect: member_messages.Effect) -> None:
        """Perform one effect of the member. A notification is passed to the herder; before that, the parts of the
        notification that the checks read are stored."""
        match effect:
            case events.Send():
                self._send_request(effect)
            case events.SetTimer(timer=timer, at_ms=at_ms):
                self.member_timers.set(timer, at_ms)
            case events.CancelTimer(timer=timer):
                self.member_timers.cancel(timer)
            case events.WriteLogMessage(text=text):
                self.world.add_to_trace(f"{self.name}: {text}")
            case Assigned():
                self._record_and_store_assignment(effect)
                self.feed_herder(effect)
            case AssignmentsRequested(token=token, members=members):
                round_ = RoundToken.checked_instance(token)
                self._add_process_record(
                    RecordKind.ASSIGNMENT_WANTED, round_.generation, round_.protocol.setting, *sorted(members)
                )
                self.requested_round = effect
                self.feed_herder(effect)
            case MemberStateChanged(state=MemberState.PREPARING_REBALANCE) | StopAllBeforeJoin():
                all_tasks_stop = isinstance(effect, StopAllBeforeJoin)
                self._add_process_record(RecordKind.REBALANCE_STARTED, all_tasks_stop)
                if all_tasks_stop and self.elected_protocol == ConnectProtocol.EAGER.wire_name:
                    self.assigned_jobs = NO_JOBS
                self.feed_herder(effect)
            case MembershipLost():
                self._add_process_record(RecordKind.MEMBERSHIP_LOST)
                self.assigned_jobs, self.received_generation = NO_JOBS, None
                self.cluster.checker.forget_last_computed_round(self)
                self.feed_herder(effect)
            case MembershipRefused():
                self._add_process_record(RecordKind.MEMBERSHIP_REFUSED)
                self.is_ending = True
                self.feed_herder(effect)
            case events.MemberEnded():
                self._add_process_record(RecordKind.LEFT)
                self.feed_herder(herder.GroupLeft())
            case notification:
                self.feed_herder(notification)

    def _record_and_store_assignment(self, assigned: Assigned) -> None:
        """Record an assignment that the member has received, and store its generation, the group's protocol and, if the
        assignment has no error, the jobs that the worker owns with it."""
        result = ClassicAssignmentDetails.checked_instance(assigned.protocol_details)
        assignment = AssignmentChange(assigned=assigned.jobs, revoked=assigned.revoked)
        self._add_process_record(
            RecordKind.ASSIGNED,
            assigned.epoch,
            *_recorded_values_of_assignment(result.error, assigned.config_offset, assignment, result.delay_ms),
        )
        self.received_generation, self.protocol = GenerationId(assigned.epoch), result.protocol
        if result.error is AssignmentErrorCode.NO_ERROR:
            kept_jobs = NO_JOBS if result.protocol is ConnectProtocol.EAGER else self.assigned_jobs - assigned.revoked
            self.assigned_jobs = kept_jobs | assigned.jobs

    def _send_request(self, send_effect: events.Send[Request]) -> None:
        """Send a request of the member to the coordinator; the member receives the response or the failure as an event
        later."""
        sent_at_ms = self.world.now_ms
        if not isinstance(send_effect.request, HeartbeatRequest):
            self._add_process_record(RecordKind.SENDS, recorded_name(send_effect.request))
        if isinstance(send_effect.request, JoinRequest):
            self.cluster.checker.check_eager_join_without_tasks(self)

        def on_response(response: object) -> None:
            self.call_now_or_on_resume(
                lambda: self._handle_response(send_effect.id, to_member_response(response), sent_at_ms)
            )

        def on_failure(reason: str) -> None:
            self.call_now_or_on_resume(lambda: self.feed_member(events.RequestFailed(id=send_effect.id, reason=reason)))

        coordinator = self.cluster.coordinator
        # A JoinGroup contains no generation, so the coordinator accepts a late one, as Kafka does: the broker must not
        # read it from a closed connection. All other requests may arrive late.
        request_delay_max_ms = 0 if isinstance(send_effect.request, JoinRequest) else REQUEST_DELAY_MAX_MS
        self.cluster.network.send_request(
            self.service,
            lambda call: coordinator.serve_or_fail_call(
                call,
                lambda reply_to: to_group_request(
                    self.service, reply_to, send_effect.request, fresh_member_id=coordinator.fresh_member_id
                ),
            ),
            on_response=on_response,
            on_failure=on_failure,
            late_max_if_broken_ms=request_delay_max_ms,
            is_response_large=not isinstance(send_effect.request, HeartbeatRequest),
        )

    def _handle_response(self, id_: events.RequestId, response: Response, sent_at_ms: int) -> None:
        """Pass the response to a request that was sent at ``sent_at_ms`` to the member. Before, store what the response
        shows: that the coordinator had this member at a time after ``sent_at_ms``, and which protocol the group has."""
        if not isinstance(response, HeartbeatResponse) or response.error is not ErrorCode.none:
            self._add_process_record(RecordKind.HEARS, recorded_name(response), response.error.name)
        is_membership_confirmed = (
            isinstance(response, HeartbeatResponse) and response.error is ErrorCode.rebalance_in_progress
        )
        if is_membership_confirmed or response.error is ErrorCode.none:
            self.last_answered_sent_at_ms = max(self.last_answered_sent_at_ms, sent_at_ms)
        if isinstance(response, JoinResponse) and response.error is ErrorCode.none:
            self.elected_protocol = response.protocol
        elif isinstance(response, JoinResponse) and response.error is ErrorCode.inconsistent_group_protocol:
            # The member does not offer eager if it may have missed an election. Then eager is the only protocol that
            # all members support.
            self.elected_protocol = ConnectProtocol.EAGER.wire_name
        self.feed_member(events.ResponseReceived(id=id_, response=response))


def _recorded_values_of_round(computed: ComputedAssignments) -> Iterator[RecordValue]:
    """The values of the computed round in its record."""
    error = AssignmentErrorCode.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentErrorCode.NO_ERROR
    for member_id, assignment in sorted(computed.assignments.items()):
        yield member_id
        yield from _recorded_values_of_assignment(error, computed.config_offset, assignment, computed.delay_ms)


def _recorded_values_of_assignment(
    error: AssignmentErrorCode, config_offset: ConfigOffset, assignment: AssignmentChange, delay_ms: int
) -> tuple[RecordValue, ...]:
    """The values of one assignment in its record."""
    return (error.name, config_offset, jobs_text(assignment.assigned), jobs_text(assignment.revoked), delay_ms)
