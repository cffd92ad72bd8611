"""One worker of the simulation: the real `herder` and the real `member`, and tasks whose starts and stops take time.

A worker is a name; it has one process after the other. Responses, events and timers of a paused process are delivered
when it resumes; those of an ended process are lost.
"""

from collections.abc import Iterator
from json import loads

from coterie.engine.log import NewLine
from coterie.herder import messages as herder
from coterie.herder.requests import RequestRefused
from coterie.herder.state import Herder, HerderSettings
from coterie.herder.timers import Timer
from coterie.lab.simulator.actor import by_name, youngest
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
    home_of,
    url_of,
)
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.records import RecordKind, RecordValue, name_of, texts
from coterie.lab.simulator.world import Alarms
from coterie.lab.translation import as_asked, as_heard
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
    Abandon,
    Assigned,
    AssignmentWanted,
    Computed,
    Install,
    Leave,
    Lost,
    MemberAssignment,
    MembershipRefused,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
    PlaceHandover,
    Rejoin,
    Subscribe,
)
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundResult, RoundToken
from coterie.wire.errors import ErrorCode


class WorkerProcess(Process):
    """One process of a worker."""

    def __init__(
        self, cluster: Cluster, living: "dict[str, WorkerProcess]", home: str, place: PlaceHandover | None = None
    ) -> None:
        """``place`` is the membership that the relaunched process had, if this process continues it; else None."""
        setup = cluster.homes[home]
        url = url_of(home)
        herder_state = Herder(
            HerderSettings(
                worker_id=WorkerId(home),
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
                protocols=setup.protocol.offered,
                claims=setup.claims,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            ),
            place,
        )
        super().__init__(cluster.world, living, home, herder_state, member, place)
        self.cluster = cluster
        self.rest = Rest(self, cluster, self.tell, self._rest_at)
        self.runtime = SimTaskRuntime(self, cluster.watch, self.tell)
        self.config_client = ConfigClient(self, cluster, self.tell, self._wake_readers)
        self.herder_alarms = Alarms[Timer](
            self.world, lambda timer: self.soon(lambda: self.tell(herder.TimerFired(timer=timer)))
        )
        self.member_alarms = Alarms[member_messages.Timer](
            self.world, lambda timer: self.soon(lambda: self.feed_member(events.TimerFired(timer=timer)))
        )
        self.world.record(
            RecordKind.STARTS if place is None else RecordKind.CONTINUES,
            self.name,
            setup.protocol.setting,
            setup.instance_id,
            f"claims {texts(setup.claims)}" if setup.claims is not None else None,
        )
        if place is not None:
            self.feed_member(events.Began())
        self.config_client.read()
        self.after(
            self.world.rng.randint(50, 1_500), lambda: self.tell(herder.RuntimeOpened(wall_ms=self.world.now_ms))
        )

    def _record(self, kind: RecordKind, *values: RecordValue) -> None:
        self.world.record(kind, self.name, *values)

    # -- resume and end ----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        self.resumed_at_ms = self.world.now_ms
        # Responses in sockets and due timers are handled in any order.
        self.world.rng.shuffle(self._missed)
        super().resume()

    def kill(self, how: RecordKind, *values: RecordValue) -> None:
        super().kill(how, *values)
        self.active.clear()
        self.herder_alarms.off()
        self.member_alarms.off()

    def shut_down(self) -> None:
        self.ending = True
        self._record(RecordKind.SHUT_DOWN)
        self.soon(lambda: self.tell(herder.ShutdownOrdered(reason="SIGTERM")))

    # -- other workers ------------------------------------------------------------------------------------------------

    def _rest_at(self, url: WorkerUrl) -> Rest | None:
        process = youngest(self._living, home_of(url))
        return process.rest if process is not None else None

    def _wake_readers(self) -> None:
        """The config log has new lines: every process reads them, each after its own delay."""
        for process in by_name(self._living):
            process.config_client.soon()

    # -- the herder --------------------------------------------------------------------------------------------------

    def tell(self, event: herder.Event) -> None:
        with MachineCheck("herder"):
            output = self.cluster.steps.herder(self.herder, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.alive:
                self._perform(effect)

    def _perform(self, effect: herder.Effect) -> None:
        match effect:
            case herder.SetTimer() | herder.CancelTimer() | herder.Say() | herder.ForgetConnector():
                self._perform_at_once(effect)
            case herder.Reply(id=id_, answer=answer):
                self._record(RecordKind.REPLIES, id_, answer.problem if isinstance(answer, RequestRefused) else "done")
                self.rest.answer(effect)
            case Subscribe(config_offset=config_offset, owned=owned, draining=draining):
                self._record(RecordKind.SUBSCRIBES, config_offset, texts(owned), draining)
                self.feed_member(effect)
            case Rejoin():
                self._record(RecordKind.REJOINS)
                self.feed_member(effect)
            case Abandon():
                self._record(RecordKind.ABANDONS)
                self.feed_member(effect)
            case Install(token=token, computed=computed):
                self._record(RecordKind.DEALS, RoundToken.of(token).generation, *_dealt(computed))
                if self.wanted is not None and self.wanted.token == token:
                    self.cluster.watch.on_dealt(self, self.wanted, computed)
                self.feed_member(effect)
            case Leave(for_good=for_good):
                self._record(RecordKind.LEAVES, for_good)
                self.feed_member(effect)
            case herder.Exit():
                self._exit(effect)
            case chore:
                self._begin(chore)

    def _perform_at_once(
        self, effect: herder.SetTimer | herder.CancelTimer | herder.Say | herder.ForgetConnector
    ) -> None:
        match effect:
            case herder.SetTimer(timer=timer, at_ms=at_ms):
                self.herder_alarms.set(timer, at_ms)
            case herder.CancelTimer(timer=timer):
                self.herder_alarms.cancel(timer)
            case herder.Say(text=text):
                self.world.say(f"{self.name}: {text}")
            case herder.ForgetConnector():
                pass  # In this simulation a split keeps no state.

    def _exit(self, end: herder.Exit) -> None:
        self.cluster.watch.on_exit(self, end.code)
        self.kill(RecordKind.EXITS, end.code, end.restarts)
        self.world.say(f"{self.name} exits: {end.reason}")
        if end.restarts:
            self.world.after(self.world.rng.randint(1, 1_500), lambda: self.cluster.go_on(self.home, end.place))
        elif self.drains and not end.code:
            self.cluster.on_drained(self.home)
        elif end.code:
            self.cluster.on_failed(self.home)

    def _begin(self, chore: herder.Chore) -> None:
        rng = self.world.rng
        match chore:
            case herder.StartTask() | herder.RestartTask() | herder.StopTask():
                self.runtime.begin(chore)
            case herder.SplitConnector(connector=connector, config=config, written_at=written_at):
                self._record(RecordKind.SPLITS, connector, written_at)
                split = [{"task": str(number), "of": config["of"]} for number in range(int(config["tasks.max"]))]
                done = herder.ConnectorSplit(connector=connector, written_at=written_at, configs=split)
                self.after(rng.randint(5, 300), lambda: self.tell(done))
            case herder.ValidateConfig(id=id_):
                self.after(rng.randint(1, 50), lambda: self.tell(herder.ConfigValidated(id=id_, errors={})))
            case herder.PublishTaskConfigs(connector=connector, leader_url=url, configs=configs, signing=signing):
                self._record(RecordKind.PUBLISHES, connector, url, len(configs), signing is not None)
                self.rest.publish(chore)
            case herder.MakeSessionKey(size_bytes=size_bytes):
                self._record(RecordKind.SESSION_KEY, size_bytes)
                key = rng.randbytes(size_bytes)
                self.after(
                    rng.randint(1, 20),
                    lambda: self.tell(herder.SessionKeyMade(key=key, wall_ms=self.world.now_ms)),
                )
            case herder.FindConfigEnd():
                self.config_client.find_end(chore)
            case herder.AppendConfig():
                self.config_client.append(chore)
            case herder.AppendStatuses(lines=lines):
                self._record(RecordKind.STATUSES, *map(_status, lines))
                self.after(rng.randint(1, 50), lambda: self.tell(herder.StatusesAppended()))
            case herder.CloseRuntime():
                self._record(RecordKind.CLOSES_RUNTIME)
                self.runtime.close()
                self.after(rng.randint(1, 500), lambda: self.tell(herder.RuntimeClosed()))
            case Leave():
                raise AssertionError("`_perform` passes Leave to the member")
            case herder.FinishGeneration():
                raise AssertionError("no task is closed in this simulation")

    # -- the member --------------------------------------------------------------------------------------------------

    def feed_member(self, event: member_messages.Event) -> None:
        with MachineCheck("member"):
            output = self.cluster.steps.member(self.member, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.alive:
                self._perform_member(effect)

    def _perform_member(self, effect: member_messages.Effect) -> None:
        match effect:
            case events.Send():
                self._send(effect)
            case events.SetTimer(timer=timer, at_ms=at_ms):
                self.member_alarms.set(timer, at_ms)
            case events.CancelTimer(timer=timer):
                self.member_alarms.cancel(timer)
            case events.Say(text=text):
                self.world.say(f"{self.name}: {text}")
            case Assigned():
                self._receive(effect)
                self.tell(effect)
            case AssignmentWanted(token=token, members=members):
                round_ = RoundToken.of(token)
                self._record(RecordKind.ASSIGNMENT_WANTED, round_.generation, round_.protocol.setting, *sorted(members))
                self.wanted = effect
                self.tell(effect)
            case MemberStateChanged(state=MemberState.PREPARING_REBALANCE) | MustReleaseAll():
                everything_stops = isinstance(effect, MustReleaseAll)
                self._record(RecordKind.REBALANCE_STARTED, everything_stops)
                if everything_stops and self.voted == ConnectProtocol.EAGER.wire_name:
                    self.given = NO_JOBS
                self.tell(effect)
            case Lost():
                self._record(RecordKind.MEMBERSHIP_LOST)
                self.given, self.received = NO_JOBS, None
                self.tell(effect)
            case MembershipRefused():
                self._record(RecordKind.MEMBERSHIP_REFUSED)
                self.ending = True
                self.tell(effect)
            case events.Left():
                self._record(RecordKind.LEFT)
                self.tell(herder.GroupLeft())
            case news:
                self.tell(news)

    def _receive(self, received: Assigned) -> None:
        result = RoundResult.of(received.token)
        assignment = MemberAssignment(assigned=received.jobs, revoked=received.revoked)
        self._record(
            RecordKind.ASSIGNED,
            received.epoch,
            *_values(result.error, received.config_offset, assignment, result.delay_ms),
        )
        self.received, self.protocol = Generation(received.epoch), result.protocol
        if result.error is AssignmentError.NO_ERROR:
            kept = NO_JOBS if result.protocol is ConnectProtocol.EAGER else self.given - received.revoked
            self.given = kept | received.jobs

    def _send(self, send: events.Send[Request]) -> None:
        sent_at_ms = self.world.now_ms
        if not isinstance(send.request, HeartbeatRequest):
            self._record(RecordKind.SENDS, name_of(send.request))
        if isinstance(send.request, JoinRequest):
            self.cluster.watch.on_join(self)

        def answered(response: object) -> None:
            self.soon(lambda: self._hear(send.id, as_heard(response), sent_at_ms))

        def failed(reason: str) -> None:
            self.soon(lambda: self.feed_member(events.Unanswered(id=send.id, reason=reason)))

        coordinator = self.cluster.coordinator
        # A JoinGroup contains no generation, so the coordinator accepts a late one, as Kafka does: the broker must not
        # read it from a closed connection. All other requests may arrive late.
        late_max_ms = 0 if isinstance(send.request, JoinRequest) else LATE_MAX_MS
        self.cluster.network.call(
            self.home,
            lambda call: coordinator.serve(
                call,
                lambda reply_to: as_asked(
                    self.home, reply_to, send.request, fresh_member_id=coordinator.fresh_member_id
                ),
            ),
            answered=answered,
            failed=failed,
            late_max_ms=late_max_ms,
            large=not isinstance(send.request, HeartbeatRequest),
        )

    def _hear(self, id_: events.RequestId, response: Response, sent_at_ms: int) -> None:
        if not isinstance(response, HeartbeatResponse) or response.error is not ErrorCode.none:
            self._record(RecordKind.HEARS, name_of(response), response.error.name)
        beat_goes_on = isinstance(response, HeartbeatResponse) and response.error is ErrorCode.rebalance_in_progress
        if beat_goes_on or response.error is ErrorCode.none:
            self.answered_sent_ms = max(self.answered_sent_ms, sent_at_ms)
        if isinstance(response, JoinResponse) and response.error is ErrorCode.none:
            self.voted = response.protocol
        elif isinstance(response, JoinResponse) and response.error is ErrorCode.inconsistent_group_protocol:
            # The member does not offer eager if it may have missed an election. Then eager is the only protocol that
            # all members support.
            self.voted = ConnectProtocol.EAGER.wire_name
        self.feed_member(events.Answered(id=id_, response=response))


def _dealt(computed: Computed) -> Iterator[RecordValue]:
    error = AssignmentError.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentError.NO_ERROR
    for member_id, assignment in sorted(computed.assignments.items()):
        yield member_id
        yield from _values(error, computed.config_offset, assignment, computed.delay_ms)


def _values(
    error: AssignmentError, config_offset: ConfigOffset, assignment: MemberAssignment, delay_ms: int
) -> tuple[RecordValue, ...]:
    return (error.name, config_offset, texts(assignment.assigned), texts(assignment.revoked), delay_ms)


def _status(line: NewLine) -> str:
    """Key and state of a status line, without the error's text."""
    return f"{line.key.decode()}={loads(line.value)['state'] if line.value is not None else None}"
