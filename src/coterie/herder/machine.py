"""The herder's state machine: all decisions of one worker, without input or output.

    config log ──┐                       ┌─► start and stop tasks, split connectors
    status log ──┤                       ├─► append to the two logs
    membership ──┼──► step(herder, …) ───┼─► subscribe, rejoin, install, leave
    tasks ───────┤                       ├─► replies
    REST, timers ┘                       └─► timers

An event changes the herder's state; then the same few reconcilers compare the actual state with the target state, and
emit the effects that remove the difference. Therefore most event handlers are only one or two lines.

The herder has no separate log. It appends lasting changes to the config log or the status log, and applies them when
it reads the lines back; so the leader, its followers, and workers that start later apply the same lines in the same
way. All effects that take time are chores, whose results are events: a plug-in that blocks delays one chore of one
connector, never a step.
"""

from coterie.herder import (
    closed,
    connectors,
    draining,
    ending,
    orders,
    place,
    reads,
    signing,
    statuses,
    tasks,
    writes,
)
from coterie.herder.messages import (
    ConfigAppended,
    ConfigAppendFailed,
    ConfigEndFound,
    ConfigLinesRead,
    ConfigValidated,
    ConnectorSplit,
    EndPurpose,
    Event,
    ForPlace,
    ForRead,
    ForRound,
    ForSessionKey,
    ForWrite,
    GenerationFinished,
    GroupLeft,
    Reply,
    RequestArrived,
    RuntimeClosed,
    RuntimeOpened,
    Say,
    SessionKeyMade,
    ShutdownOrdered,
    SplitFailed,
    StatusesAppended,
    StatusLinesRead,
    TaskConfigsPublished,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    TimerFired,
)
from coterie.herder.requests import (
    DeleteConnector,
    DescribeWorker,
    DescribeWorkerGroup,
    DrainWorker,
    Problem,
    PutConnector,
    PutTaskConfigs,
    RequestRefused,
    RestartWorker,
    SetTargetState,
    UncordonWorker,
)
from coterie.herder.rounds import asking, bursts, following, leading
from coterie.herder.seams import (
    PartsChanged,
    RuntimeDied,
    TaskClosed,
    TaskDied,
    TaskHalted,
    TaskProgressed,
    TaskWaiting,
)
from coterie.herder.state import (
    Herder,
    HerderOutput,
    InRound,
    LostPlace,
    NeverJoined,
    ReleasesBeforeJoin,
    RoundCompleted,
    RoundFailed,
    Turn,
)
from coterie.herder.timers import ClosedDue, LookDue, RequestDue, RestartDue, RetryDue, Timer
from coterie.nouns.ids import ConfigOffset
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Lost,
    MembershipRefused,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
    ProvedUntil,
)

RUNTIME_DIED_GRACE_MS = 1_000
"""The grace is short because no task can run any more."""


def step(herder: Herder, event: Event, *, now_ms: int) -> HerderOutput:
    turn = Turn(herder, now_ms)
    match event:
        case TaskProgressed() | TaskWaiting() | ProvedUntil() | StatusLinesRead() | StatusesAppended():
            # The frequent events; each changes the state of at most one task, and needs no full reconciliation.
            _on_news(turn, event)
        case RequestArrived() | ConfigValidated() | ConfigEndFound() | ConfigAppended() | ConfigAppendFailed():
            _on_request(turn, event)
            _advance_requests(turn)
        case ConfigLinesRead():
            _on_config_lines(turn, event)
            _reconcile(turn)
        case MemberStateChanged(state=MemberState.COMPLETING_REBALANCE as state):
            place.begin_round(turn, state)
        case MemberStateChanged() | MustReleaseAll() | AssignmentWanted() | Assigned() | Lost() | MembershipRefused():
            _on_membership(turn, event)
            _reconcile(turn)
        case TaskDied() | TaskHalted() | TaskClosed() | TaskStarted() | TaskStartFailed() | TaskStopped():
            _on_task(turn, event)
            _reconcile(turn)
        case ConnectorSplit() | SplitFailed() | PartsChanged() | GenerationFinished() | TaskConfigsPublished():
            _on_connector(turn, event)
            _reconcile(turn)
        case SessionKeyMade():
            signing.on_made(turn, event)
            signing.advance(turn)
        case TimerFired(timer=timer):
            _on_timer(turn, timer)
            _reconcile(turn)
        case RuntimeOpened() | RuntimeDied() | RuntimeClosed() | ShutdownOrdered() | GroupLeft():
            _on_life(turn, event)
            _reconcile(turn)
    statuses.flush(turn)
    ending.advance(turn)
    check(herder)
    return turn.output()


def _reconcile(turn: Turn) -> None:
    """Compare the whole actual state with the target state."""
    tasks.reconcile(turn)
    leading.advance(turn)
    connectors.reconcile(turn)
    _advance_requests(turn)
    place.advance(turn)
    asking.advance(turn)
    signing.advance(turn)
    bursts.advance(turn)
    draining.advance(turn)


def _advance_requests(turn: Turn) -> None:
    writes.advance(turn)
    while turn.own_answers:
        # The leader published a split as its own write; its response continues the connector's publication.
        request, answer = turn.own_answers.pop(0)
        assert isinstance(request, PutTaskConfigs)
        connectors.on_own_answer(turn, request, answer)
        connectors.reconcile(turn)
        writes.advance(turn)
    reads.advance(turn)


# -- routes -----------------------------------------------------------------------------------------------------------


def _on_news(
    turn: Turn, event: TaskProgressed | TaskWaiting | ProvedUntil | StatusLinesRead | StatusesAppended
) -> None:
    match event:
        case TaskProgressed():
            tasks.on_progress(turn, event)
        case TaskWaiting():
            tasks.on_waiting(turn, event)
        case ProvedUntil():
            held_back = not turn.herder.place.is_counted_in(turn.now_ms)
            tasks.on_proved(turn, event)
            if held_back:
                connectors.reconcile(turn)
        case StatusLinesRead(lines=lines):
            for line in lines:
                turn.herder.statuses.apply(line)
            connectors.on_statuses(turn)
        case StatusesAppended():
            statuses.on_appended(turn, event)
            place.advance(turn)
            asking.advance(turn)


def _on_config_lines(turn: Turn, event: ConfigLinesRead) -> None:
    for line in event.lines:
        if (remark := turn.herder.config.apply(line)) is not None:
            turn.order(Say(text=remark))


def _on_life(turn: Turn, event: RuntimeOpened | RuntimeDied | RuntimeClosed | ShutdownOrdered | GroupLeft) -> None:
    match event:
        case RuntimeOpened(wall_ms=wall_ms):
            signing.on_opened(turn, wall_ms)
            turn.herder.life.is_open = True
            following.on_opened(turn)
        case RuntimeDied(reason=reason):
            ending.leave(turn, reason, code=1, grace_ms=RUNTIME_DIED_GRACE_MS)
        case ShutdownOrdered(reason=reason, code=code):
            ending.leave(turn, reason, code=code, grace_ms=turn.herder.settings.stop_grace_ms)
        case GroupLeft():
            ending.on_left(turn)
        case RuntimeClosed():
            ending.on_closed(turn)


def _on_membership(
    turn: Turn,
    event: MemberStateChanged | MustReleaseAll | AssignmentWanted | Assigned | Lost | MembershipRefused,
) -> None:
    match event:
        case MemberStateChanged(state=state):
            following.on_round(turn, state)
        case MustReleaseAll():
            following.on_must_release_all(turn)
        case AssignmentWanted():
            leading.on_wanted(turn, event)
        case Assigned():
            following.on_assigned(turn, event)
            draining.on_assignment(turn)
        case Lost():
            following.on_lost(turn, event)
        case MembershipRefused(reason=reason):
            ending.leave(turn, reason, code=1, grace_ms=turn.herder.settings.stop_grace_ms)


def _on_task(
    turn: Turn, event: TaskDied | TaskHalted | TaskClosed | TaskStarted | TaskStartFailed | TaskStopped
) -> None:
    match event:
        case TaskDied():
            tasks.on_died(turn, event)
        case TaskHalted():
            tasks.on_halted(turn, event)
        case TaskClosed():
            tasks.on_closed(turn, event)
        case TaskStarted():
            tasks.on_started(turn, event)
        case TaskStartFailed():
            tasks.on_start_failed(turn, event)
        case TaskStopped():
            tasks.on_stopped(turn, event)


def _on_connector(
    turn: Turn, event: ConnectorSplit | SplitFailed | PartsChanged | GenerationFinished | TaskConfigsPublished
) -> None:
    match event:
        case ConnectorSplit() | SplitFailed():
            connectors.on_split(turn, event)
        case PartsChanged():
            connectors.on_parts_changed(turn, event)
        case GenerationFinished():
            closed.on_finished(turn, event)
        case TaskConfigsPublished():
            connectors.on_published(turn, event)


def _on_request(
    turn: Turn, event: RequestArrived | ConfigValidated | ConfigEndFound | ConfigAppended | ConfigAppendFailed
) -> None:
    match event:
        case RequestArrived():
            _on_arrival(turn, event)
        case ConfigValidated():
            writes.on_validated(turn, event)
        case ConfigEndFound(purpose=purpose, end=end):
            _on_end_found(turn, purpose, end)
        case ConfigAppended(purpose=purpose, end=end):
            match purpose:
                case ForWrite(id=id_):
                    writes.on_appended(turn, id_, end)
                case ForSessionKey(number=number):
                    signing.on_appended(turn, number, end)
        case ConfigAppendFailed(purpose=purpose, reason=reason):
            match purpose:
                case ForWrite(id=id_):
                    writes.on_append_failed(turn, id_, reason)
                case ForSessionKey(number=number):
                    signing.on_append_failed(turn, number, reason)


def _on_end_found(turn: Turn, purpose: EndPurpose, end: ConfigOffset | None) -> None:
    match purpose:
        case ForRead(id=id_):
            reads.on_end_found(turn, id_, end)
        case ForWrite(id=write_id):
            writes.on_end_found(turn, write_id, end)
        case ForRound(look=look):
            leading.on_end_found(turn, look, end)
        case ForPlace(look=look):
            place.on_end_found(turn, look, end)


def _on_arrival(turn: Turn, event: RequestArrived) -> None:
    leaves, relaunches = turn.herder.life.is_leaving, turn.herder.life.is_relaunching
    if leaves or (relaunches and not isinstance(event.request, DescribeWorker | DescribeWorkerGroup)):
        doing = "shutting down" if leaves else "restarting"
        refusal = RequestRefused(problem=Problem.SHUTTING_DOWN, message=f"Worker is {doing}")
        turn.order(Reply(id=event.id, answer=refusal))
        return
    match event.request:
        case PutConnector() | DeleteConnector() | SetTargetState() | PutTaskConfigs() as request:
            writes.on_request(turn, event, request)
        case DescribeWorkerGroup():
            orders.on_describe(turn, event)
        case DrainWorker() | UncordonWorker() | RestartWorker() as order:
            orders.on_order(turn, event, order)
            _reconcile(turn)
        case request:
            reads.on_request(turn, event, request)


def _on_timer(turn: Turn, timer: Timer) -> None:
    match timer:
        case RequestDue() | LookDue():
            _on_request_timer(turn, timer)
        case RetryDue():
            connectors.on_retry(turn, timer)
        case ClosedDue():
            closed.on_due(turn, timer)
        case "changed jobs" | RestartDue():
            pass  # `_reconcile`, which follows, checks the deadlines.
        case "assign":
            leading.on_patience_over(turn)
        case "behind":
            place.on_behind(turn)
        case "delay over" | "moves":
            following.on_due(turn)
        case "session key":
            signing.on_due(turn)
        case "statuses":
            statuses.on_retry(turn)
        case "shutdown":
            ending.on_shutdown_due(turn)
        case "relaunch":
            ending.on_relaunch_due(turn)


def _on_request_timer(turn: Turn, timer: RequestDue | LookDue) -> None:
    match timer:
        case RequestDue(id=id_):
            reads.on_due(turn, id_)
            writes.on_due(turn, id_)
        case LookDue(id=id_):
            writes.on_look_due(turn, id_)


def check(herder: Herder) -> None:
    """Assert what is always true, as far as the check takes constant time."""
    place = herder.place
    match place.standing:
        case NeverJoined() | LostPlace():
            assert not place.member_id, "a worker that is not a member has a member id"
        case RoundFailed() | RoundCompleted():
            assert place.member_id, "a round has ended for a worker without a member id"
        case InRound() | ReleasesBeforeJoin():
            pass
    if place.is_lost or isinstance(place.standing, ReleasesBeforeJoin):
        assert not place.assigned, "a worker that must stop all its jobs has assigned jobs"
    assert not herder.life.is_leaving or not place.assigned, "a worker that leaves has assigned jobs"
    assert not herder.work.unwritten or herder.work.writing, "statuses wait and no append is in progress"


def check_all(herder: Herder) -> None:
    """Assert what is always true of the whole state: for tests and the simulator."""
    check(herder)
    under_way = [write for write in herder.requests.writes.values() if write.is_under_way]
    assert len(under_way) <= 1, "two writes at the head of the queue"
    for task, run in herder.work.runs.items():
        assert run.is_active or task in herder.place.assigned, f"{task} is kept, but neither runs nor is assigned here"
    assert herder.work.runs.keys() >= herder.place.assigned.tasks, "an assigned task has no entry in runs"
