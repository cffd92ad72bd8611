"""One worker of the simulation: the real `herder` and the real `member`, and tasks whose starts and stops take time.

A worker is a name; its processes replace each other. Responses, events and timers of a paused process are delivered
when it resumes; those of a process that has ended are lost.
"""

from collections.abc import Iterator
from json import loads

from coterie.engine.log import NewTopicRecord
from coterie.herder import messages as herder
from coterie.herder.requests import RequestRefused
from coterie.herder.state import Herder, HerderSettings
from coterie.herder.timers import Timer
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.config_client import ConfigClient
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.rest import RestEndpoints
from coterie.lab.simulator.fleet.runtime import SimTaskRuntime
from coterie.lab.simulator.fleet.settings import (
    GROUP_ID,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_DELAY_MAX_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STOP_GRACE_MS,
    url_of,
    worker_name_of,
)
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.records import RecordKind, RecordValue, jobs_text, recorded_name
from coterie.lab.simulator.sim_process import newest_process, sorted_by_name
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
from coterie.nouns.ids import ConfigOffset, Generation, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    InstallTarget,
    Leave,
    LeaveAndRejoin,
    MembershipLost,
    MembershipRefused,
    MemberStateChanged,
    PlaceHandover,
    Rejoin,
    RequestDescription,
    SendAssignments,
    SetConfiguredJobs,
    SetWorkerState,
    StopAllBeforeJoin,
    SuspendMembership,
)
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundResult, RoundToken
from coterie.wire.errors import ErrorCode


class WorkerProcess(Process):
    """One process of a worker."""

    def __init__(
        self,
        cluster: Cluster,
        live_processes: "dict[str, WorkerProcess]",
        service: str,
        handover: PlaceHandover | None = None,
    ) -> None:
        """``handover`` is the membership that the process continues, as the next process after a relaunch; otherwise
        None."""
        setup = cluster.worker_setups[service]
        url = url_of(service)
        herder_state = Herder(
            HerderSettings(
                worker_id=WorkerId(service),
                url=url,
                version="0",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                stop_grace_ms=STOP_GRACE_MS,
                instance_id=setup.instance_id,
                policy=cluster.policy,
                session_keys=cluster.session_keys,
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
        super().__init__(cluster.world, live_processes, service, herder_state, member, handover)
        self.cluster = cluster
        self.rest = RestEndpoints(self, cluster, self.feed_herder, self._rest_of_url)
        self.runtime = SimTaskRuntime(self, cluster.checker, self.feed_herder)
        self.config_client = ConfigClient(self, cluster, self.feed_herder, self._wake_readers)
        self.herder_timers = SimTimers[Timer](
            self.world, lambda timer: self.deliver(lambda: self.feed_herder(herder.TimerFired(timer=timer)))
        )
        self.member_timers = SimTimers[member_messages.Timer](
            self.world, lambda timer: self.deliver(lambda: self.feed_member(events.TimerFired(timer=timer)))
        )
        self.world.add_record(
            RecordKind.STARTS if handover is None else RecordKind.CONTINUES,
            self.name,
            setup.protocol.setting,
            setup.instance_id,
            f"claims {jobs_text(setup.claims)}" if setup.claims is not None else None,
        )
        if handover is not None:
            self.feed_member(events.MemberStarted())
        self.config_client.read_new_lines()
        self.call_after(
            self.world.rng.randint(50, 1_500), lambda: self.feed_herder(herder.RuntimeOpened(wall_ms=self.world.now_ms))
        )

    def _record(self, kind: RecordKind, *values: RecordValue) -> None:
        """Add a record with the process's name as its first value."""
        self.world.add_record(kind, self.name, *values)

    # -- resume and end ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """End the pause; what came meanwhile is delivered in a random order."""
        self.resumed_at_ms = self.world.now_ms
        # Responses in sockets and due timers are handled in any order.
        self.world.rng.shuffle(self._missed_callbacks)
        super().resume()

    def kill(self, kind: RecordKind, *values: RecordValue) -> None:
        super().kill(kind, *values)
        self.running_tasks.clear()
        self.herder_timers.close()
        self.member_timers.close()

    def shut_down(self) -> None:
        """Order a clean shutdown, as SIGTERM does."""
        self.is_ending = True
        self._record(RecordKind.SHUT_DOWN)
        self.deliver(lambda: self.feed_herder(herder.ShutdownOrdered(reason="SIGTERM")))

    # -- other workers ------------------------------------------------------------------------------------------------

    def _rest_of_url(self, url: WorkerUrl) -> RestEndpoints | None:
        """The REST endpoints of the worker with this URL; None if it does not run."""
        process = newest_process(self._live_processes, worker_name_of(url))
        return process.rest if process is not None else None

    def _wake_readers(self) -> None:
        """Let every process poll the config log, which has new lines."""
        for process in sorted_by_name(self._live_processes):
            process.config_client.poll_config_log()

    # -- the herder --------------------------------------------------------------------------------------------------

    def feed_herder(self, event: herder.Event) -> None:
        """Step the herder with ``event``, and perform its effects."""
        with MachineCheck("herder"):
            output = self.cluster.steps.step_herder(self.herder, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.is_alive:
                self._perform_herder_effect(effect)

    def _perform_herder_effect(self, effect: herder.Effect) -> None:
        """Perform one effect of the herder."""
        match effect:
            case herder.SetTimer() | herder.CancelTimer() | herder.WriteLogMessage() | herder.StopConnector():
                self._perform_instant_effect(effect)
            case herder.Reply(id=id_, answer=answer):
                self._record(RecordKind.REPLIES, id_, answer.problem if isinstance(answer, RequestRefused) else "done")
                self.rest.deliver_answer(effect)
            case SetWorkerState(config_offset=config_offset, owned=owned, draining=draining):
                self._record(RecordKind.SUBSCRIBES, config_offset, jobs_text(owned), draining)
                self.feed_member(effect)
            case Rejoin():
                self._record(RecordKind.REJOINS)
                self.feed_member(effect)
            case LeaveAndRejoin():
                self._record(RecordKind.ABANDONS)
                self.feed_member(effect)
            case SendAssignments(token=token, computed=computed):
                self._record(RecordKind.DEALS, RoundToken.checked(token).generation, *_round_values(computed))
                if self.requested_round is not None and self.requested_round.token == token:
                    self.cluster.checker.on_round_computed(self, self.requested_round, computed)
                self.feed_member(effect)
            case Leave(is_permanent=is_permanent):
                self._record(RecordKind.LEAVES, is_permanent)
                self.feed_member(effect)
            case SetConfiguredJobs() | InstallTarget() | RequestDescription() | SuspendMembership():
                raise AssertionError(f"{type(effect).__name__} is an order to the member of a connect group")
            case herder.TellListeners():
                raise AssertionError("classic groups have no listeners")
            case herder.Exit():
                self._exit_process(effect)
            case chore:
                self._begin_chore(chore)

    def _perform_instant_effect(
        self, effect: herder.SetTimer | herder.CancelTimer | herder.WriteLogMessage | herder.StopConnector
    ) -> None:
        """Perform an effect that takes no time and is not recorded."""
        match effect:
            case herder.SetTimer(timer=timer, at_ms=at_ms):
                self.herder_timers.set(timer, at_ms)
            case herder.CancelTimer(timer=timer):
                self.herder_timers.cancel(timer)
            case herder.WriteLogMessage(text=text):
                self.world.add_to_trace(f"{self.name}: {text}")
            case herder.StopConnector():
                pass  # In this simulation a split keeps no state.

    def _exit_process(self, exit_order: herder.Exit) -> None:
        """End the process as the herder orders. A process that relaunches itself is followed by another one."""
        self.cluster.checker.on_exit(self, exit_order.code)
        self.kill(RecordKind.EXITS, exit_order.code, exit_order.relaunches)
        self.world.add_to_trace(f"{self.name} exits: {exit_order.reason}")
        if exit_order.relaunches:
            handover = exit_order.handover
            assert handover is None or isinstance(handover, PlaceHandover), "a membership of a classic group"
            self.world.call_after(
                self.world.rng.randint(1, 1_500), lambda: self.cluster.relaunch(self.service, handover)
            )
        elif self.is_draining and not exit_order.code:
            self.cluster.on_worker_drained(self.service)
        elif exit_order.code:
            self.cluster.on_process_failed(self.service)

    def _begin_chore(self, chore: herder.Chore) -> None:
        """Begin a chore of the herder: an effect that takes time and whose result is an event."""
        rng = self.world.rng
        match chore:
            case herder.StartTask() | herder.RestartTask() | herder.StopTask():
                self.runtime.begin_chore(chore)
            case herder.SplitConnector(connector=connector, config=config, config_line_offset=config_line_offset):
                self._record(RecordKind.SPLITS, connector, config_line_offset)
                task_configs = [{"task": str(number), "of": config["of"]} for number in range(int(config["tasks.max"]))]
                connector_split = herder.ConnectorSplit(
                    connector=connector, config_line_offset=config_line_offset, configs=task_configs
                )
                self.call_after(rng.randint(5, 300), lambda: self.feed_herder(connector_split))
            case herder.ValidateConfig(id=request_id):
                self.call_after(
                    rng.randint(1, 50), lambda: self.feed_herder(herder.ConfigValidated(id=request_id, errors={}))
                )
            case herder.PublishTaskConfigs(
                connector=connector, leader_url=url, configs=configs, signing_key=signing_key
            ):
                self._record(RecordKind.PUBLISHES, connector, url, len(configs), signing_key is not None)
                self.rest.publish(chore)
            case herder.MakeSessionKey(size_bytes=size_bytes):
                self._record(RecordKind.SESSION_KEY, size_bytes)
                key = rng.randbytes(size_bytes)
                self.call_after(
                    rng.randint(1, 20),
                    lambda: self.feed_herder(herder.SessionKeyMade(key=key, wall_ms=self.world.now_ms)),
                )
            case herder.FindConfigEnd():
                self.config_client.find_end(chore)
            case herder.AppendConfig():
                self.config_client.append_lines(chore)
            case herder.AppendStatuses(lines=lines):
                self._record(RecordKind.STATUSES, *map(_status_text, lines))
                self.call_after(rng.randint(1, 50), lambda: self.feed_herder(herder.StatusesAppended()))
            case herder.CloseRuntime():
                self._record(RecordKind.CLOSES_RUNTIME)
                self.runtime.close()
                self.call_after(rng.randint(1, 500), lambda: self.feed_herder(herder.RuntimeClosed()))
            case Leave() | herder.ComputeTarget() | herder.FinishCheckpointGeneration():
                raise AssertionError(
                    f"{type(chore).__name__}: Leave goes to the member, a classic group computes no target assignment, "
                    "and no checkpoint generation is closed in this simulation"
                )

    # -- the member --------------------------------------------------------------------------------------------------

    def feed_member(self, event: member_messages.Event) -> None:
        """Step the member with ``event``, and perform its effects."""
        with MachineCheck("member"):
            output = self.cluster.steps.step_member(self.member, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.is_alive:
                self._perform_member(effect)

    def _perform_member(self, effect: member_messages.Effect) -> None:
        """Perform one effect of the member; most are passed to the herder."""
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
                self._note_assignment(effect)
                self.feed_herder(effect)
            case AssignmentsRequested(token=token, members=members):
                round_ = RoundToken.checked(token)
                self._record(RecordKind.ASSIGNMENT_WANTED, round_.generation, round_.protocol.setting, *sorted(members))
                self.requested_round = effect
                self.feed_herder(effect)
            case MemberStateChanged(state=MemberState.PREPARING_REBALANCE) | StopAllBeforeJoin():
                all_tasks_stop = isinstance(effect, StopAllBeforeJoin)
                self._record(RecordKind.REBALANCE_STARTED, all_tasks_stop)
                if all_tasks_stop and self.elected_protocol == ConnectProtocol.EAGER.wire_name:
                    self.assigned_jobs = NO_JOBS
                self.feed_herder(effect)
            case MembershipLost():
                self._record(RecordKind.MEMBERSHIP_LOST)
                self.assigned_jobs, self.received_generation = NO_JOBS, None
                self.feed_herder(effect)
            case MembershipRefused():
                self._record(RecordKind.MEMBERSHIP_REFUSED)
                self.is_ending = True
                self.feed_herder(effect)
            case events.LeaveCompleted():
                self._record(RecordKind.LEFT)
                self.feed_herder(herder.GroupLeft())
            case notification:
                self.feed_herder(notification)

    def _note_assignment(self, assigned: Assigned) -> None:
        """Record an assignment, and take note of the jobs that the worker owns with it."""
        result = RoundResult.checked(assigned.token)
        assignment = AssignmentChange(assigned=assigned.jobs, revoked=assigned.revoked)
        self._record(
            RecordKind.ASSIGNED,
            assigned.epoch,
            *_assignment_values(result.error, assigned.config_offset, assignment, result.delay_ms),
        )
        self.received_generation, self.protocol = Generation(assigned.epoch), result.protocol
        if result.error is AssignmentError.NO_ERROR:
            kept_jobs = NO_JOBS if result.protocol is ConnectProtocol.EAGER else self.assigned_jobs - assigned.revoked
            self.assigned_jobs = kept_jobs | assigned.jobs

    def _send_request(self, send_effect: events.Send[Request]) -> None:
        """Send a request of the member to the coordinator; the member receives the response or the failure."""
        sent_at_ms = self.world.now_ms
        if not isinstance(send_effect.request, HeartbeatRequest):
            self._record(RecordKind.SENDS, recorded_name(send_effect.request))
        if isinstance(send_effect.request, JoinRequest):
            self.cluster.checker.on_join(self)

        def on_response(response: object) -> None:
            self.deliver(lambda: self._handle_response(send_effect.id, to_member_response(response), sent_at_ms))

        def on_failure(reason: str) -> None:
            self.deliver(lambda: self.feed_member(events.RequestFailed(id=send_effect.id, reason=reason)))

        coordinator = self.cluster.coordinator
        # A JoinGroup contains no generation, so the coordinator accepts a late one, as Kafka does: the broker must not
        # read it from a closed connection. All other requests may arrive late.
        request_delay_max_ms = 0 if isinstance(send_effect.request, JoinRequest) else REQUEST_DELAY_MAX_MS
        self.cluster.network.send_request(
            self.service,
            lambda call: coordinator.serve_call(
                call,
                lambda reply_to: to_group_request(
                    self.service, reply_to, send_effect.request, fresh_member_id=coordinator.fresh_member_id
                ),
            ),
            on_response=on_response,
            on_failure=on_failure,
            late_max_ms=request_delay_max_ms,
            is_response_large=not isinstance(send_effect.request, HeartbeatRequest),
        )

    def _handle_response(self, id_: events.RequestId, response: Response, sent_at_ms: int) -> None:
        """Pass a response to the member, and take note of what it proves: that the coordinator had this member at
        ``sent_at_ms``, or which protocol the group has."""
        if not isinstance(response, HeartbeatResponse) or response.error is not ErrorCode.none:
            self._record(RecordKind.HEARS, recorded_name(response), response.error.name)
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


def _round_values(computed: ComputedAssignments) -> Iterator[RecordValue]:
    """The values of a computed round in a record."""
    error = AssignmentError.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentError.NO_ERROR
    for member_id, assignment in sorted(computed.assignments.items()):
        yield member_id
        yield from _assignment_values(error, computed.config_offset, assignment, computed.delay_ms)


def _assignment_values(
    error: AssignmentError, config_offset: ConfigOffset, assignment: AssignmentChange, delay_ms: int
) -> tuple[RecordValue, ...]:
    """The values of one assignment in a record."""
    return (error.name, config_offset, jobs_text(assignment.assigned), jobs_text(assignment.revoked), delay_ms)


def _status_text(line: NewTopicRecord) -> str:
    """The key and the state of a status line, for a record; None as the state of a tombstone."""
    return f"{line.key.decode()}={loads(line.value)['state'] if line.value is not None else None}"
