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
from coterie.lab.simulator.fleet.rest import Rest
from coterie.lab.simulator.fleet.runtime import SimTaskRuntime
from coterie.lab.simulator.fleet.settings import (
    GROUP,
    HEARTBEAT_INTERVAL_MS,
    LATE_MAX_MS,
    REBALANCE_TIMEOUT_MS,
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
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    Leave,
    LeaveAndRejoin,
    MembershipLost,
    MembershipRefused,
    MemberState,
    MemberStateChanged,
    PlaceHandover,
    Rejoin,
    SendAssignments,
    SetWorkerState,
    StopAllBeforeJoin,
)
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundResult, RoundToken
from coterie.wire.errors import ErrorCode


class WorkerProcess(Process):
    """One process of a worker."""

    def __init__(
        self, cluster: Cluster, living: "dict[str, WorkerProcess]", service: str, place: PlaceHandover | None = None
    ) -> None:
        """``place`` is the membership that the process continues, as the next process after a relaunch; otherwise
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
            place,
        )
        member = Member(
            MemberSettings(
                group_id=GROUP,
                url=url,
                instance_id=setup.instance_id,
                protocols=setup.protocol.versions_to_offer,
                claims=setup.claims,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            ),
            place,
        )
        super().__init__(cluster.world, living, service, herder_state, member, place)
        self.cluster = cluster
        self.rest = Rest(self, cluster, self.feed_herder, self._rest_at)
        self.runtime = SimTaskRuntime(self, cluster.checker, self.feed_herder)
        self.config_client = ConfigClient(self, cluster, self.feed_herder, self._wake_readers)
        self.herder_timers = SimTimers[Timer](
            self.world, lambda timer: self.deliver(lambda: self.feed_herder(herder.TimerFired(timer=timer)))
        )
        self.member_timers = SimTimers[member_messages.Timer](
            self.world, lambda timer: self.deliver(lambda: self.feed_member(events.TimerFired(timer=timer)))
        )
        self.world.record(
            RecordKind.STARTS if place is None else RecordKind.CONTINUES,
            self.name,
            setup.protocol.setting,
            setup.instance_id,
            f"claims {jobs_text(setup.claims)}" if setup.claims is not None else None,
        )
        if place is not None:
            self.feed_member(events.MemberStarted())
        self.config_client.read()
        self.after(
            self.world.rng.randint(50, 1_500), lambda: self.feed_herder(herder.RuntimeOpened(wall_ms=self.world.now_ms))
        )

    def _record(self, kind: RecordKind, *values: RecordValue) -> None:
        """Add a record with the process's name as its first value."""
        self.world.record(kind, self.name, *values)

    # -- resume and end ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """End the pause; what came meanwhile is delivered in a random order."""
        self.resumed_at_ms = self.world.now_ms
        # Responses in sockets and due timers are handled in any order.
        self.world.rng.shuffle(self._missed)
        super().resume()

    def kill(self, how: RecordKind, *values: RecordValue) -> None:
        super().kill(how, *values)
        self.running_tasks.clear()
        self.herder_timers.close()
        self.member_timers.close()

    def shut_down(self) -> None:
        """Order a clean shutdown, as SIGTERM does."""
        self.is_ending = True
        self._record(RecordKind.SHUT_DOWN)
        self.deliver(lambda: self.feed_herder(herder.ShutdownOrdered(reason="SIGTERM")))

    # -- other workers ------------------------------------------------------------------------------------------------

    def _rest_at(self, url: WorkerUrl) -> Rest | None:
        """The REST endpoints of the worker with this URL; None if it does not run."""
        process = newest_process(self._living, worker_name_of(url))
        return process.rest if process is not None else None

    def _wake_readers(self) -> None:
        """Let every process poll the config log, which has new lines."""
        for process in sorted_by_name(self._living):
            process.config_client.poll()

    # -- the herder --------------------------------------------------------------------------------------------------

    def feed_herder(self, event: herder.Event) -> None:
        """Step the herder with ``event``, and perform its effects."""
        with MachineCheck("herder"):
            output = self.cluster.steps.herder(self.herder, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.alive:
                self._perform(effect)

    def _perform(self, effect: herder.Effect) -> None:
        """Perform one effect of the herder."""
        match effect:
            case herder.SetTimer() | herder.CancelTimer() | herder.WriteLogMessage() | herder.StopConnector():
                self._perform_at_once(effect)
            case herder.Reply(id=id_, answer=answer):
                self._record(RecordKind.REPLIES, id_, answer.problem if isinstance(answer, RequestRefused) else "done")
                self.rest.answer(effect)
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
                self._record(RecordKind.DEALS, RoundToken.of(token).generation, *_dealt(computed))
                if self.requested_round is not None and self.requested_round.token == token:
                    self.cluster.checker.on_round_computed(self, self.requested_round, computed)
                self.feed_member(effect)
            case Leave(is_permanent=is_permanent):
                self._record(RecordKind.LEAVES, is_permanent)
                self.feed_member(effect)
            case herder.Exit():
                self._exit(effect)
            case chore:
                self._begin(chore)

    def _perform_at_once(
        self, effect: herder.SetTimer | herder.CancelTimer | herder.WriteLogMessage | herder.StopConnector
    ) -> None:
        """Perform an effect that takes no time and is not recorded."""
        match effect:
            case herder.SetTimer(timer=timer, at_ms=at_ms):
                self.herder_timers.set(timer, at_ms)
            case herder.CancelTimer(timer=timer):
                self.herder_timers.cancel(timer)
            case herder.WriteLogMessage(text=text):
                self.world.say(f"{self.name}: {text}")
            case herder.StopConnector():
                pass  # In this simulation a split keeps no state.

    def _exit(self, end: herder.Exit) -> None:
        """End the process as the herder orders. A process that relaunches itself is followed by another one."""
        self.cluster.checker.on_exit(self, end.code)
        self.kill(RecordKind.EXITS, end.code, end.relaunches)
        self.world.say(f"{self.name} exits: {end.reason}")
        if end.relaunches:
            self.world.after(
                self.world.rng.randint(1, 1_500), lambda: self.cluster.relaunch(self.service, end.handover)
            )
        elif self.is_draining and not end.code:
            self.cluster.on_drained(self.service)
        elif end.code:
            self.cluster.on_failed(self.service)

    def _begin(self, chore: herder.Chore) -> None:
        """Begin a chore of the herder: an effect that takes time and whose result is an event."""
        rng = self.world.rng
        match chore:
            case herder.StartTask() | herder.RestartTask() | herder.StopTask():
                self.runtime.begin(chore)
            case herder.SplitConnector(connector=connector, config=config, config_line_offset=written_at):
                self._record(RecordKind.SPLITS, connector, written_at)
                split = [{"task": str(number), "of": config["of"]} for number in range(int(config["tasks.max"]))]
                done = herder.ConnectorSplit(connector=connector, config_line_offset=written_at, configs=split)
                self.after(rng.randint(5, 300), lambda: self.feed_herder(done))
            case herder.ValidateConfig(id=id_):
                self.after(rng.randint(1, 50), lambda: self.feed_herder(herder.ConfigValidated(id=id_, errors={})))
            case herder.PublishTaskConfigs(connector=connector, leader_url=url, configs=configs, signing_key=signing):
                self._record(RecordKind.PUBLISHES, connector, url, len(configs), signing is not None)
                self.rest.publish(chore)
            case herder.MakeSessionKey(size_bytes=size_bytes):
                self._record(RecordKind.SESSION_KEY, size_bytes)
                key = rng.randbytes(size_bytes)
                self.after(
                    rng.randint(1, 20),
                    lambda: self.feed_herder(herder.SessionKeyMade(key=key, wall_ms=self.world.now_ms)),
                )
            case herder.FindConfigEnd():
                self.config_client.find_end(chore)
            case herder.AppendConfig():
                self.config_client.append(chore)
            case herder.AppendStatuses(lines=lines):
                self._record(RecordKind.STATUSES, *map(_status, lines))
                self.after(rng.randint(1, 50), lambda: self.feed_herder(herder.StatusesAppended()))
            case herder.CloseRuntime():
                self._record(RecordKind.CLOSES_RUNTIME)
                self.runtime.close()
                self.after(rng.randint(1, 500), lambda: self.feed_herder(herder.RuntimeClosed()))
            case Leave():
                raise AssertionError("`_perform` passes Leave to the member, not to `_begin`")
            case herder.FinishCheckpointGeneration():
                raise AssertionError("no checkpoint generation is closed in this simulation")

    # -- the member --------------------------------------------------------------------------------------------------

    def feed_member(self, event: member_messages.Event) -> None:
        """Step the member with ``event``, and perform its effects."""
        with MachineCheck("member"):
            output = self.cluster.steps.member(self.member, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.alive:
                self._perform_member(effect)

    def _perform_member(self, effect: member_messages.Effect) -> None:
        """Perform one effect of the member; most are passed to the herder."""
        match effect:
            case events.Send():
                self._send(effect)
            case events.SetTimer(timer=timer, at_ms=at_ms):
                self.member_timers.set(timer, at_ms)
            case events.CancelTimer(timer=timer):
                self.member_timers.cancel(timer)
            case events.WriteLogMessage(text=text):
                self.world.say(f"{self.name}: {text}")
            case Assigned():
                self._receive(effect)
                self.feed_herder(effect)
            case AssignmentsRequested(token=token, members=members):
                round_ = RoundToken.of(token)
                self._record(RecordKind.ASSIGNMENT_WANTED, round_.generation, round_.protocol.setting, *sorted(members))
                self.requested_round = effect
                self.feed_herder(effect)
            case MemberStateChanged(state=MemberState.PREPARING_REBALANCE) | StopAllBeforeJoin():
                everything_stops = isinstance(effect, StopAllBeforeJoin)
                self._record(RecordKind.REBALANCE_STARTED, everything_stops)
                if everything_stops and self.elected_protocol == ConnectProtocol.EAGER.wire_name:
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
            case news:
                self.feed_herder(news)

    def _receive(self, received: Assigned) -> None:
        """Record an assignment, and take note of the jobs that the worker owns with it."""
        result = RoundResult.of(received.token)
        assignment = AssignmentChange(assigned=received.jobs, revoked=received.revoked)
        self._record(
            RecordKind.ASSIGNED,
            received.epoch,
            *_values(result.error, received.config_offset, assignment, result.delay_ms),
        )
        self.received_generation, self.protocol = Generation(received.epoch), result.protocol
        if result.error is AssignmentError.NO_ERROR:
            kept = NO_JOBS if result.protocol is ConnectProtocol.EAGER else self.assigned_jobs - received.revoked
            self.assigned_jobs = kept | received.jobs

    def _send(self, send: events.Send[Request]) -> None:
        """Send a request of the member to the coordinator; the member receives the response or the failure."""
        sent_at_ms = self.world.now_ms
        if not isinstance(send.request, HeartbeatRequest):
            self._record(RecordKind.SENDS, recorded_name(send.request))
        if isinstance(send.request, JoinRequest):
            self.cluster.checker.on_join(self)

        def answered(response: object) -> None:
            self.deliver(lambda: self._handle_response(send.id, to_member_response(response), sent_at_ms))

        def failed(reason: str) -> None:
            self.deliver(lambda: self.feed_member(events.RequestFailed(id=send.id, reason=reason)))

        coordinator = self.cluster.coordinator
        # A JoinGroup contains no generation, so the coordinator accepts a late one, as Kafka does: the broker must not
        # read it from a closed connection. All other requests may arrive late.
        late_max_ms = 0 if isinstance(send.request, JoinRequest) else LATE_MAX_MS
        self.cluster.network.call(
            self.service,
            lambda call: coordinator.serve(
                call,
                lambda reply_to: to_group_request(
                    self.service, reply_to, send.request, fresh_member_id=coordinator.fresh_member_id
                ),
            ),
            answered=answered,
            failed=failed,
            late_max_ms=late_max_ms,
            large=not isinstance(send.request, HeartbeatRequest),
        )

    def _handle_response(self, id_: events.RequestId, response: Response, sent_at_ms: int) -> None:
        """Pass a response to the member, and take note of what it proves: that the coordinator had this member at
        ``sent_at_ms``, or which protocol the group has."""
        if not isinstance(response, HeartbeatResponse) or response.error is not ErrorCode.none:
            self._record(RecordKind.HEARS, recorded_name(response), response.error.name)
        beat_goes_on = isinstance(response, HeartbeatResponse) and response.error is ErrorCode.rebalance_in_progress
        if beat_goes_on or response.error is ErrorCode.none:
            self.last_answered_sent_at_ms = max(self.last_answered_sent_at_ms, sent_at_ms)
        if isinstance(response, JoinResponse) and response.error is ErrorCode.none:
            self.elected_protocol = response.protocol
        elif isinstance(response, JoinResponse) and response.error is ErrorCode.inconsistent_group_protocol:
            # The member does not offer eager if it may have missed an election. Then eager is the only protocol that
            # all members support.
            self.elected_protocol = ConnectProtocol.EAGER.wire_name
        self.feed_member(events.ResponseReceived(id=id_, response=response))


def _dealt(computed: ComputedAssignments) -> Iterator[RecordValue]:
    """The values of a computed round in a record."""
    error = AssignmentError.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentError.NO_ERROR
    for member_id, assignment in sorted(computed.assignments.items()):
        yield member_id
        yield from _values(error, computed.config_offset, assignment, computed.delay_ms)


def _values(
    error: AssignmentError, config_offset: ConfigOffset, assignment: AssignmentChange, delay_ms: int
) -> tuple[RecordValue, ...]:
    """The values of one assignment in a record."""
    return (error.name, config_offset, jobs_text(assignment.assigned), jobs_text(assignment.revoked), delay_ms)


def _status(line: NewTopicRecord) -> str:
    """The key and the state of a status line, for a record; None as the state of a tombstone."""
    return f"{line.key.decode()}={loads(line.value)['state'] if line.value is not None else None}"
