"""One worker in a connect group: the real `herder` and the real `member` (`workers.worker`), and its connections to the
coordinator."""

from collections import deque
from collections.abc import Callable

from coterie.herder import messages as herder
from coterie.herder.seams import JobsAssigned, JobsLost, JobsRevoked
from coterie.herder.state import Herder, HerderSettings
from coterie.lab.simulator.connect.cluster import SharedByConnectWorkers
from coterie.lab.simulator.connect.connections import SimConnection
from coterie.lab.simulator.connect.process import ConnectWorkerProcess
from coterie.lab.simulator.connect.settings import ASSIGNOR_NAME
from coterie.lab.simulator.invariants import AssertionsAsViolations
from coterie.lab.simulator.records import RecordKind, RecordValue, jobs_text, recorded_name
from coterie.lab.simulator.workers.settings import (
    GROUP_ID,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STOP_GRACE_MS,
    url_of_worker,
)
from coterie.lab.simulator.world import SimTimers
from coterie.member import events
from coterie.member.connect import messages as member_messages
from coterie.member.connect.messages import HeartbeatRequest
from coterie.member.connect.state import Member, MemberSettings, OfferedAssignor
from coterie.nouns.ids import WorkerId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Assigned,
    ConnectAssignmentDetails,
    ConnectMembershipHandover,
    GroupProtocolName,
    InstallTarget,
    LeaseRenewed,
    MembershipLost,
    MembershipOrder,
    MembershipRefused,
    MembershipSuspended,
    Rejoin,
    SendAssignments,
    SetConfiguredJobs,
    SuspendMembership,
    TargetRequested,
)

_OFFERED_ASSIGNOR = OfferedAssignor(name=ASSIGNOR_NAME, minimum_version=0, maximum_version=3, metadata_version=3)


class ConnectGroupWorker(ConnectWorkerProcess):
    """One process of a worker in a connect group: its herder, its member and its connection to the coordinator."""

    cluster: SharedByConnectWorkers

    def __init__(
        self,
        cluster: SharedByConnectWorkers,
        live_processes: "dict[str, ConnectGroupWorker]",
        service: str,
        handover: ConnectMembershipHandover | None = None,
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
                group_protocol=GroupProtocolName.CONNECT,
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
                member_id=cluster.fresh_member_id(service),
                url=url,
                instance_id=setup.instance_id,
                claims=setup.claims,
                assignors=() if setup.uses_server_assignor else (_OFFERED_ASSIGNOR,),
                server_assignor=ASSIGNOR_NAME if setup.uses_server_assignor else None,
                rebalance_timeout_ms=setup.rebalance_timeout_ms,
                config_topic_id=bytes(16),
                connection_grace_ms=setup.connection_grace_ms,
                coordinator_hold_max_ms=setup.coordinator_hold_max_ms,
            ),
            handover,
        )
        self._inbox = deque[Callable[[], None]]()
        """The steps of the two machines that wait until the effects of the present step have been performed."""
        self._is_stepping = False
        self._announced = NO_JOBS
        """The jobs that were announced to the listeners of this process as assigned, and not as revoked or lost
        since."""
        super().__init__(cluster, live_processes, service, herder_state, setup, member, handover)
        self.connection: SimConnection | None = None
        """The connection to the coordinator that the process uses or used last; None before the first request."""
        self.member_timers = SimTimers[member_messages.Timer](
            self.world,
            lambda timer: self.call_now_or_on_resume(lambda: self.feed_member(events.TimerFired(timer=timer))),
        )
        self._add_process_record(
            RecordKind.STARTS if handover is None else RecordKind.CONTINUES,
            self.member_id,
            "server" if setup.uses_server_assignor else "client",
            setup.instance_id,
            f"claims {jobs_text(setup.claims)}" if setup.claims is not None else None,
        )
        self.feed_member(events.MemberStarted())
        self._feed_log_and_open_runtime_later()

    def kill(self, kind: RecordKind, *values: RecordValue) -> None:
        super().kill(kind, *values)
        self.member_timers.close()
        if self.connection is not None:
            # A host resets the connection of a process that has not read all data.
            self.connection.close_with_process(is_orderly=self.world.draw_bool(0.8))

    # -- orders of the herder ----------------------------------------------------------------------------------------

    def _pass_order_to_member(self, order: MembershipOrder) -> None:
        match order:
            case SetConfiguredJobs(config_offset=config_offset, jobs=jobs):
                self._add_process_record(RecordKind.CONFIGURES, config_offset, jobs_text(jobs))
                self.cluster.checker.check_leader_read_log_before_report(self, config_offset)
            case InstallTarget(target=target):
                self._add_process_record(RecordKind.INSTALLS, target is not None)
            case SuspendMembership():
                self._add_process_record(RecordKind.SUSPENDS)
            case Rejoin() | SendAssignments():
                raise AssertionError(
                    f"bug in the herder: in a connect group it orders {type(order).__name__}, which only classic "
                    "groups have"
                )
            case _:
                pass
        self.feed_member(order)

    def _compute_target(self, chore: herder.ComputeTarget) -> None:
        duration_ms, target = self.cluster.assignor.compute_duration_and_target(chore.snapshot)
        self._add_process_record(RecordKind.COMPUTES, chore.snapshot.group_epoch, target is not None)
        computed = herder.TargetComputationEnded(
            token=chore.token, target=target, error="" if target is not None else "the assignor failed"
        )
        self.call_after(duration_ms, lambda: self.feed_herder(computed))

    def _check_listener_news(self, effect: herder.NotifyRebalanceListeners) -> None:
        """Check what the listeners receive: no job as assigned twice without a stop between, and no job as revoked or
        lost that they have not received as assigned.

        :raises Violation: MACHINE_CHECK.
        """
        with AssertionsAsViolations("herder"):
            match effect.news:
                case JobsAssigned(jobs=jobs):
                    assert not jobs & self._announced, (
                        "the listeners receive a job as assigned twice, without a stop between"
                    )
                    self._announced |= jobs
                case JobsRevoked(jobs=jobs) | JobsLost(jobs=jobs):
                    assert jobs <= self._announced, (
                        "the listeners receive a job as stopped that they have not received as assigned"
                    )
                    self._announced -= jobs

    # -- the two machines --------------------------------------------------------------------------------------------

    def feed_herder(self, event: herder.Event) -> None:
        """Step the herder with ``event`` and perform its effects: at once if no step is in progress, otherwise when all
        effects of the present step have been performed. Does nothing after the process has ended."""
        self._run_now_or_after_present_step(lambda: super(ConnectGroupWorker, self).feed_herder(event))

    def feed_member(self, event: member_messages.Event) -> None:
        """Step the member with ``event`` and perform its effects: at once if no step is in progress, otherwise when all
        effects of the present step have been performed. Does nothing after the process has ended."""
        self._run_now_or_after_present_step(lambda: self._step_member(event))

    def _run_now_or_after_present_step(self, take_step: Callable[[], None]) -> None:
        """Call ``take_step`` when all effects of the present step have been performed, or now if no step is in
        progress. Without this order, a heartbeat could be sent before an earlier heartbeat, but the numbers of
        heartbeats must rise on a connection."""
        self._inbox.append(take_step)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._inbox and self.is_alive:
                self._inbox.popleft()()
        finally:
            self._is_stepping = False

    def _step_member(self, event: member_messages.Event) -> None:
        with AssertionsAsViolations("member"):
            output = self.cluster.steps.step_connect_member(self.member, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.is_alive:
                self._perform_member_effect(effect)

    def _perform_member_effect(self, effect: member_messages.Effect) -> None:
        """Perform one effect of the member. A notification is passed to the herder, and the parts of the notification
        that the checks read are stored."""
        match effect:
            case events.Send():
                self._send_request(effect)
            case events.SetTimer(timer=timer, at_ms=at_ms):
                self.member_timers.set(timer, at_ms)
            case events.CancelTimer(timer=timer):
                self.member_timers.cancel(timer)
            case events.WriteLogMessage(text=text):
                self.world.add_to_trace(f"{self.name}: {text}")
            case LeaseRenewed(lease_ends_ms=lease_ends_ms, session_timeout_ms=session_timeout_ms):
                self._lease_ends_ms = lease_ends_ms
                self._session_ends_ms = lease_ends_ms + session_timeout_ms - session_timeout_ms * 2 // 3
                self.feed_herder(effect)
            case Assigned():
                # With the herder's step: until then the herder acts by the assignment before.
                self._run_now_or_after_present_step(lambda: self._record_and_store_assignment(effect))
                self.feed_herder(effect)
            case TargetRequested(snapshot=snapshot):
                self._add_process_record(RecordKind.TARGET_WANTED, snapshot.group_epoch, len(snapshot.members))
                self.feed_herder(effect)
            case MembershipLost():
                self._add_process_record(RecordKind.MEMBERSHIP_LOST)
                self._run_now_or_after_present_step(self._forget_assignment)
                self.feed_herder(effect)
            case MembershipRefused():
                self._add_process_record(RecordKind.MEMBERSHIP_REFUSED)
                self.is_ending = True
                self.feed_herder(effect)
            case MembershipSuspended():
                self._add_process_record(RecordKind.SUSPENDED)
                self.feed_herder(effect)
            case events.MemberEnded():
                self._add_process_record(RecordKind.LEFT)
                self.feed_herder(herder.GroupLeft())
            case notification:
                self.feed_herder(notification)

    def _forget_assignment(self) -> None:
        """Store that the worker owns no job any more."""
        self.assigned_jobs = NO_JOBS

    def _record_and_store_assignment(self, assigned: Assigned) -> None:
        """Record an assignment that the member has received, check its member epoch, and store its jobs, its epochs and
        whether this process is the leader."""
        details = assigned.protocol_details
        assert isinstance(details, ConnectAssignmentDetails), (
            "the member of a connect group reports an assignment without the details of one"
        )
        self._add_process_record(
            RecordKind.ASSIGNED,
            assigned.epoch,
            details.assignment_epoch,
            assigned.config_offset,
            jobs_text(assigned.jobs),
            jobs_text(assigned.revoked),
        )
        self.cluster.checker.check_member_epoch_not_lower(self, assigned.epoch)
        self.received_epoch = assigned.epoch
        self.assigned_jobs = assigned.jobs
        led_epoch = details.leader_epoch if assigned.leader == self.member_id else None
        if led_epoch is not None and led_epoch != self.led_epoch:
            self.config_log_end_when_led = self.cluster.config_log.end_offset
        self.led_epoch = led_epoch
        self.job_epochs = {job: epoch for epoch, jobs in details.jobs_by_assignment_epoch.items() for job in jobs}

    def _send_request(self, send_effect: events.Send[member_messages.Request]) -> None:
        """Send a request of the member to the coordinator, on a new connection if no connection is open."""
        if not isinstance(send_effect.request, HeartbeatRequest):
            self._add_process_record(RecordKind.SENDS, recorded_name(send_effect.request))
        if self.connection is None or not self.connection.is_open:
            self.connection = SimConnection(
                self.world,
                self.cluster.network,
                self.cluster.coordinator,
                self.cluster.repeated_request_faults,
                self,
                self.feed_member,
            )
            self.cluster.add_connection_and_drop_ended(self.connection)
        self.connection.send_request_with_timeout(send_effect)
