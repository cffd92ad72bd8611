"""One worker of the simulation: the real `herder` and the real `member`, and tasks that take their time.

A worker is a name; its processes come and go. What a paused process is told waits until it goes on, its deadlines too;
what a dead one is told is lost.
"""

from collections.abc import Callable

from coterie.assignors.members import Policy
from coterie.herder import machine as herder_machine
from coterie.herder import messages as herder
from coterie.herder.requests import Answer, Done, Problem, PutTaskConfigs, Refused
from coterie.herder.state import Herder, HerderSettings
from coterie.lab.simulator.cluster import (
    DELAY_MAX_MS,
    GROUP,
    HEARTBEAT_INTERVAL_MS,
    LATE_MAX_MS,
    REBALANCE_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    STOP_GRACE_MS,
    Cluster,
)
from coterie.lab.simulator.invariants import machine_check
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.watch import told
from coterie.lab.simulator.world import Alarms
from coterie.lab.translation import as_asked, as_heard
from coterie.member import classic, events
from coterie.member.messages import HeartbeatResponse, JoinRequest, Response
from coterie.member.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, Incarnation, InstanceId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorTaskId
from coterie.wire.connect_events import AssignmentReceived
from coterie.wire.errors import ErrorCode


class Process:
    """One life of a worker."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.name = self.home = name
        url = WorkerUrl(f"http://{name}/")
        self.herder = Herder(
            HerderSettings(
                worker_id=WorkerId(name),
                url=url,
                version="0",
                connector_type=lambda _: "source",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                stop_grace_ms=STOP_GRACE_MS,
                policy=Policy(max_delay_ms=DELAY_MAX_MS),
                request_timeout_ms=REQUEST_TIMEOUT_MS,
            )
        )
        self.member = Member(
            MemberSettings(
                group_id=GROUP,
                url=url,
                instance_id=InstanceId(f"place-{name}") if name in cluster.static else None,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
            )
        )
        self.herder_alarms = Alarms[herder.Timer](
            self.world, lambda timer: self.soon(lambda: self.tell(herder.TimerFired(timer=timer)))
        )
        self.member_alarms = Alarms[events.Timer](
            self.world, lambda timer: self.soon(lambda: self.feed_member(events.TimerFired(timer=timer)))
        )
        self.active: set[ConnectorTaskId] = set()
        """Tasks of which something runs: from the order to start until the stop has returned."""
        self.alive = True
        self.paused = False
        self.resumed_at_ms = 0
        self.answered_sent_ms = self.world.now_ms
        """When the last request was sent that the coordinator answered as one to a member."""
        self._waiting: list[Callable[[], None]] = []
        self._asked: dict[herder.RequestId, Callable[[Answer], None]] = {}
        self._requests = 0
        cluster.processes[name] = self
        self.world.say(f"{name} starts")
        self.read_config()
        self.after(
            self.world.rng.randint(50, 1_500), lambda: self.tell(herder.RuntimeOpened(wall_ms=self.world.now_ms))
        )

    # -- life and death ----------------------------------------------------------------------------------------------

    def soon(self, happens: Callable[[], None]) -> None:
        """Now, if the process runs; when it goes on, if it is paused; never, if it is dead."""
        if not self.alive:
            return
        if self.paused:
            self._waiting.append(happens)
        else:
            happens()

    def after(self, ms: int, happens: Callable[[], None]) -> None:
        self.world.after(ms, lambda: self.soon(happens))

    def pause(self) -> None:
        self.world.say(f"{self.name} is paused")
        self.paused = True

    def resume(self) -> None:
        if not (self.alive and self.paused):
            return
        self.world.say(f"{self.name} goes on")
        self.paused = False
        self.resumed_at_ms = self.world.now_ms
        waiting, self._waiting = self._waiting, []
        # What lay in sockets and in timers comes in any order.
        self.world.rng.shuffle(waiting)
        for happens in waiting:
            self.soon(happens)

    def kill(self, why: str) -> None:
        self.world.say(f"{self.name} {why}")
        self.alive = False
        self.active.clear()
        self.herder_alarms.off()
        self.member_alarms.off()
        if self.cluster.processes.get(self.name) is self:
            del self.cluster.processes[self.name]

    def shut_down(self) -> None:
        self.world.say(f"{self.name} is told to end")
        self.soon(lambda: self.tell(herder.ShutdownOrdered(reason="SIGTERM")))

    # -- the herder --------------------------------------------------------------------------------------------------

    def tell(self, event: herder.Event) -> None:
        with machine_check("herder"):
            output = herder_machine.step(self.herder, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.alive:
                self._perform(effect)

    def _perform(self, effect: herder.Effect) -> None:
        match effect:
            case herder.SetTimer(timer=timer, at_ms=at_ms):
                self.herder_alarms.set(timer, at_ms)
            case herder.CancelTimer(timer=timer):
                self.herder_alarms.cancel(timer)
            case herder.Say(text=text):
                self.world.say(f"{self.name}: {text}")
            case herder.Reply(id=id_, answer=answer):
                self._asked.pop(id_)(answer)
            case herder.Subscribe(config_offset=config_offset, owned=owned, draining=draining):
                self.feed_member(events.Subscribed(config_offset=config_offset, owned=owned, draining=draining))
            case herder.Rejoin(reason=reason):
                self.feed_member(events.RejoinWanted(reason=reason))
            case herder.Abandon(reason=reason):
                self.feed_member(events.AbandonWanted(reason=reason))
            case herder.Install(generation=generation, assignments=assignments):
                self.feed_member(events.Installed(generation=generation, assignments=assignments))
            case herder.LeaveGroup(reason=reason, for_good=for_good):
                self.feed_member(events.LeaveWanted(reason=reason, for_good=for_good))
            case herder.Exit(reason=reason):
                self.kill(f"ends: {reason}")
            case chore:
                self._begin(chore)

    def _begin(self, chore: herder.Chore) -> None:
        rng = self.world.rng
        match chore:
            case herder.StartTask(start=start):
                self.active.add(start.task)
                self.world.say(f"{self.name} starts {start.task}")
                self.cluster.watch.on_start(self, start.task)
                self.after(rng.randint(20, 600), lambda: self.tell(herder.TaskStarted(task=start.task)))
            case herder.StopTask(task=task, grace_ms=grace_ms):
                self.after(rng.randint(5, max(grace_ms, 5)), lambda: self._stopped(task))
            case herder.SplitConnector(connector=connector, config=config, written_at=written_at):
                split = [{"task": str(number)} for number in range(int(config["tasks.max"]))]
                done = herder.ConnectorSplit(connector=connector, written_at=written_at, configs=split)
                self.after(rng.randint(5, 300), lambda: self.tell(done))
            case herder.ValidateConfig(id=id_):
                self.after(rng.randint(1, 50), lambda: self.tell(herder.ConfigValidated(id=id_, errors={})))
            case herder.PublishTaskConfigs():
                self._publish(chore)
            case herder.MakeSessionKey(size_bytes=size_bytes):
                made = herder.SessionKeyMade(key=rng.randbytes(size_bytes))
                self.after(rng.randint(1, 20), lambda: self.tell(made))
            case herder.FindConfigEnd(id=id_):
                self._ask_log(
                    lambda: self.cluster.config_log.end,
                    lambda end: self.tell(herder.ConfigEndFound(id=id_, end=end)),
                    lambda _: self.tell(herder.ConfigEndFound(id=id_, end=None)),
                )
            case herder.AppendConfig(id=id_, lines=lines):
                self._ask_log(
                    lambda: self.cluster.config_log.append(lines, self.world.now_ms),
                    lambda end: self.tell(herder.ConfigAppended(id=id_, end=end)),
                    lambda reason: self.tell(herder.ConfigAppendFailed(id=id_, reason=reason)),
                )
            case herder.AppendStatuses():
                self.after(rng.randint(1, 50), lambda: self.tell(herder.StatusesAppended()))
            case herder.CloseRuntime():
                raise AssertionError("nobody here orders a worker to restart")
            case herder.LeaveGroup():
                raise AssertionError("the membership's business")

    def _stopped(self, task: ConnectorTaskId) -> None:
        self.active.discard(task)
        self.world.say(f"{self.name} has stopped {task}")
        self.tell(herder.TaskStopped(task=task))

    def _publish(self, chore: herder.PublishTaskConfigs) -> None:
        """To the leader's internal endpoint: over the leader's own link, which may be as bad as any."""

        def published(refusal: str | None, *, forbidden: bool = False) -> None:
            done = herder.TaskConfigsPublished(
                connector=chore.connector, written_at=chore.written_at, refusal=refusal, forbidden=forbidden
            )
            self.soon(lambda: self.tell(done))

        leader = self.cluster.by_url(chore.leader_url)
        if leader is None:
            self.after(50, lambda: published("connection refused"))
            return

        def serve(call: Call) -> None:
            signature = chore.signing.signature(b"as sent") if chore.signing is not None else None
            request = PutTaskConfigs(connector=chore.connector, configs=chore.configs, signature=signature)
            leader.soon(lambda: leader.ask(request, call.answer))

        def answered(answer: object) -> None:
            assert isinstance(answer, Done | Refused)
            if isinstance(answer, Refused):
                published(answer.message, forbidden=answer.problem is Problem.FORBIDDEN)
            else:
                published(None)

        call_ends = [False]

        def once(then: Callable[[], None]) -> None:
            if not call_ends[0]:
                call_ends[0] = True
                then()

        self.cluster.network.call(
            leader.name,
            serve,
            answered=lambda answer: once(lambda: answered(answer)),
            failed=lambda reason: once(lambda: published(reason)),
        )
        self.after(REQUEST_TIMEOUT_MS + 5_000, lambda: once(lambda: published("no answer")))

    def ask(self, request: PutTaskConfigs, answered: Callable[[Answer], None]) -> None:
        id_ = herder.RequestId(self._requests)
        self._requests += 1
        self._asked[id_] = answered
        self.tell(herder.RequestArrived(id=id_, request=request, fresh_incarnation=Incarnation("")))

    # -- the config log ----------------------------------------------------------------------------------------------

    def _ask_log(
        self,
        serve: Callable[[], ConfigOffset],
        answered: Callable[[ConfigOffset], None],
        failed: Callable[[str], None],
    ) -> None:
        def served(call: Call) -> None:
            before = self.cluster.config_log.end
            call.answer(serve())
            if self.cluster.config_log.end > before:
                self.cluster.read_config()

        def heard(end: object) -> None:
            assert isinstance(end, int)
            self.soon(lambda: answered(ConfigOffset(end)))

        self.cluster.network.call(
            self.name, served, answered=heard, failed=lambda reason: self.soon(lambda: failed(reason))
        )

    def read_config_soon(self) -> None:
        """Following the log is a long poll that tries again until it is answered."""

        def failed(_: str) -> None:
            self.after(500, self.read_config_soon)

        self.cluster.network.call(
            self.name,
            lambda call: call.answer(None),
            answered=lambda _: self.soon(self.read_config),
            failed=failed,
        )

    def read_config(self) -> None:
        lines = self.cluster.config_log.lines[max(self.herder.config.offset, 0) :]
        if lines:
            self.tell(herder.ConfigLinesRead(lines=lines))

    # -- the member --------------------------------------------------------------------------------------------------

    def feed_member(self, event: events.Event) -> None:
        with machine_check("member"):
            output = classic.step(self.member, event, now_ms=self.world.now_ms)
        for effect in output.effects:
            if self.alive:
                self._perform_member(effect)

    def _perform_member(self, effect: events.Effect) -> None:
        match effect:
            case events.Send():
                self._send(effect)
            case events.SetTimer(timer=timer, at_ms=at_ms):
                self.member_alarms.set(timer, at_ms)
            case events.CancelTimer(timer=timer):
                self.member_alarms.cancel(timer)
            case events.Say(text=text):
                self.world.say(f"{self.name}: {text}")
            case AssignmentReceived(generation=generation, assignment=assignment):
                self.world.say(f"{self.name} in {generation}: +{told(assignment.assigned)} -{told(assignment.revoked)}")
                self.tell(effect)
            case events.Left():
                self.tell(herder.GroupLeft())
            case news:
                self.tell(news)

    def _send(self, send: events.Send) -> None:
        sent_at_ms = self.world.now_ms

        def answered(response: object) -> None:
            self.soon(lambda: self._hear(send.id, as_heard(response), sent_at_ms))

        def failed(reason: str) -> None:
            self.soon(lambda: self.feed_member(events.Failed(id=send.id, reason=reason)))

        coordinator = self.cluster.coordinator
        # A JoinGroup names no generation, so whoever gets one late believes it, as Kafka does: a broker must not take
        # it from a connection that is gone. All else may come as late as it likes.
        late_max_ms = 0 if isinstance(send.request, JoinRequest) else LATE_MAX_MS
        self.cluster.network.call(
            self.name,
            lambda call: coordinator.serve(
                call,
                lambda reply_to: as_asked(
                    self.name, reply_to, send.request, fresh_member_id=coordinator.fresh_member_id
                ),
            ),
            answered=answered,
            failed=failed,
            late_max_ms=late_max_ms,
        )

    def _hear(self, id_: events.RequestId, response: Response, sent_at_ms: int) -> None:
        beat_goes_on = isinstance(response, HeartbeatResponse) and response.error is ErrorCode.rebalance_in_progress
        if beat_goes_on or response.error is ErrorCode.none:
            self.answered_sent_ms = max(self.answered_sent_ms, sent_at_ms)
        self.feed_member(events.Answered(id=id_, response=response))
