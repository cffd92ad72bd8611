"""The herder's state machine: all decisions of one worker, without input or output.

    config log ──┐                       ┌─► start and stop tasks, split connectors
    status log ──┤                       ├─► append to the two logs
    membership ──┼──► step(herder, …) ───┼─► orders to the member: worker state, rejoin, assignments, leave
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
    active_topics,
    closed_checkpoints,
    connectors,
    draining,
    leader_log,
    lifecycle,
    logger_levels,
    lost_threads,
    offsets,
    orders,
    place,
    questions,
    reads,
    restarts,
    signing,
    statuses,
    tasks,
    worker_view,
    writes,
)
from coterie.herder.config_records import ConnectorRestartRequested, LoggerLevelWritten
from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import (
    AppendForLoggerLevel,
    AppendForSessionKey,
    AppendForWrites,
    CheckpointGenerationCreationEnded,
    ConfigCouldNotBeValidated,
    ConfigLinesAppended,
    ConfigLinesAppendFailed,
    ConfigLinesRead,
    ConfigLogEndLookupEnded,
    ConfigValidationCompleted,
    Event,
    GroupLeft,
    LeaderLogOpened,
    LeaderLogOpenFailed,
    LogEndLookupForAssignment,
    LogEndLookupForRead,
    LogEndLookupForWrite,
    LogEndLookupOfLaggingWorker,
    LogEndLookupPurpose,
    OffsetChangeEnded,
    OffsetReadEnded,
    PluginQuestionAnswered,
    Reply,
    RequestArrived,
    RequestIntakeClosed,
    RuntimeClosed,
    RuntimeOpened,
    SessionKeyMade,
    ShutdownOrdered,
    SplitFailed,
    SplitSucceeded,
    StatusAppendEnded,
    StatusLinesRead,
    TargetComputationEnded,
    TaskConfigsPublicationEnded,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    TimerFired,
    WriteLogMessage,
)
from coterie.herder.requests.kinds import Request
from coterie.herder.requests.orders import (
    CancelDrain,
    DrainWorker,
    RestartConnectorTask,
    RestartWorker,
    SetGroupLoggerLevel,
)
from coterie.herder.requests.questions import DescribePlugin, ListPlugins, ValidateConnectorConfig
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.signatures import FenceTasks, SignContent, VerifySignature
from coterie.herder.requests.topics import DescribeActiveTopics, ResetActiveTopics
from coterie.herder.requests.views import DescribeWorker, DescribeWorkerGroup
from coterie.herder.requests.writes import (
    ChangeOffsets,
    DeleteConnector,
    PatchConnector,
    PutConnector,
    PutTaskConfigs,
    RestartConnector,
    SetTargetState,
)
from coterie.herder.seams import (
    PluginThreadsLost,
    RuntimeDied,
    SourcePartsChanged,
    TaskCheckpointClosed,
    TaskDied,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
)
from coterie.herder.state import (
    AppendingWrite,
    Herder,
    HerderOutput,
    InRound,
    Lifecycle,
    LostMembership,
    NeverJoined,
    RequestIntakeState,
    RoundCompleted,
    RoundFailed,
    StoppingBeforeJoin,
    Turn,
    WriteAppended,
)
from coterie.herder.targets import computing
from coterie.herder.timers import (
    ClosedCheckpointCheckDue,
    ConfigLogEndLookupDue,
    ConnectorRetryDue,
    RequestTimeoutDue,
    TaskRestartDue,
    Timer,
)
from coterie.herder.work import AffectedConnectors
from coterie.nouns.ids import LogPosition
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    AssignmentsRequested,
    GroupDescribed,
    LeadershipConfirmed,
    LeaseRenewed,
    MembershipLost,
    MembershipRefused,
    MembershipSuspended,
    MemberStateChanged,
    StopAllBeforeJoin,
    TargetRequested,
)

RUNTIME_DIED_GRACE_MS = 1_000
"""The grace period of a shutdown after the runtime died. It is short, because no task can run any more."""


def step(herder: Herder, event: Event, *, now_ms: int) -> HerderOutput:
    """Process one event: change the herder, and return the effects. A herder's step writes no records."""
    turn = Turn(herder, now_ms)
    match event:
        case TaskProgressed() | TaskRetrying() | LeaseRenewed() | StatusLinesRead() | StatusAppendEnded():
            # The frequent events; each changes the state of at most one task, and needs no full reconciliation.
            _on_frequent_event(turn, event)
        case (
            RequestArrived()
            | ConfigValidationCompleted()
            | ConfigCouldNotBeValidated()
            | PluginQuestionAnswered()
            | OffsetReadEnded()
            | OffsetChangeEnded()
            | ConfigLogEndLookupEnded()
            | ConfigLinesAppended()
            | ConfigLinesAppendFailed()
        ):
            _on_request_event(turn, event)
            _advance_requests(turn)
        case ConfigLinesRead():
            _reconcile(turn, _on_config_lines(turn, event))
        case MemberStateChanged(state=MemberState.COMPLETING_REBALANCE):
            protocol_of(herder).on_membership_event(turn, event)
        case (
            MemberStateChanged()
            | StopAllBeforeJoin()
            | AssignmentsRequested()
            | TargetRequested()
            | GroupDescribed()
            | Assigned()
            | MembershipLost()
            | MembershipRefused()
        ):
            _on_membership_event(turn, event)
            _reconcile(turn)
        case TargetComputationEnded():
            computing.send_target_or_failure(turn, event)
        case (
            TaskDied()
            | TaskHaltedWithoutOrder()
            | TaskCheckpointClosed()
            | TaskStarted()
            | TaskStartFailed()
            | TaskStopped()
        ):
            _on_task_event(turn, event)
            _reconcile(turn, (event.task.connector,))
        case (
            SplitSucceeded()
            | SplitFailed()
            | SourcePartsChanged()
            | CheckpointGenerationCreationEnded()
            | TaskConfigsPublicationEnded()
        ):
            _on_connector_event(turn, event)
            _reconcile(turn, (event.connector,))
        case SessionKeyMade() | LeaderLogOpened() | LeaderLogOpenFailed() | LeadershipConfirmed():
            _on_leader_event(turn, event)
            _reconcile(turn)
        case TimerFired(timer=timer):
            _on_timer(turn, timer)
            _reconcile(turn)
        case (
            RuntimeOpened()
            | RuntimeDied()
            | RuntimeClosed()
            | ShutdownOrdered()
            | RequestIntakeClosed()
            | MembershipSuspended()
            | GroupLeft()
            | PluginThreadsLost()
        ):
            _on_lifecycle_event(turn, event)
            _reconcile(turn)
    statuses.append_queued_statuses(turn)
    lifecycle.leave_or_close_runtime_if_ready(turn)
    check(herder)
    return turn.output()


def _reconcile(turn: Turn, affected: AffectedConnectors = None) -> None:
    """Compare the actual state with the target state, and emit the effects that remove the differences. Of the
    connectors and tasks, only those of the ``affected`` connectors are compared; None means all."""
    protocol = protocol_of(turn.herder)
    tasks.reconcile(turn, affected)
    protocol.compute_assignment_if_due(turn)
    writes.abort_forbidden_offset_changes(turn)
    connectors.reconcile(turn, affected)
    leader_log.open_log_if_leader_else_close(turn)
    _advance_requests(turn)
    protocol.notify_rebalance_listeners(turn)
    place.send_changed_worker_state_if_allowed(turn)
    protocol.report_released_jobs(turn)
    signing.rotate_session_key_if_due(turn)
    protocol.report_configured_jobs_if_changed(turn)
    draining.finish_drain_or_request_round_for_changed_state(turn)


def _advance_requests(turn: Turn) -> None:
    """Advance the pending writes and reads, and carry out the orders about tasks that have waited for the config log.
    The result of a write that this leader submitted itself continues the publication of the connector's task
    configs."""
    writes.advance_writes(turn)
    while turn.own_write_answers:
        # The leader published a split as its own write; its response continues the connector's publication.
        request, answer = turn.own_write_answers.pop(0)
        assert isinstance(request, PutTaskConfigs)
        refusal = answer.message if isinstance(answer, RequestRefused) else None
        closed_checkpoints.warn_if_awaited_publication_refused(turn, request.connector, refusal)
        connectors.on_own_write_answered(turn, request, answer)
        connectors.reconcile(turn, (request.connector,))
        writes.advance_writes(turn)
    reads.answer_ready_reads(turn)
    orders.execute_task_orders_after_log_read(turn)


# -- routes -----------------------------------------------------------------------------------------------------------


def _on_frequent_event(
    turn: Turn, event: TaskProgressed | TaskRetrying | LeaseRenewed | StatusLinesRead | StatusAppendEnded
) -> None:
    """Process an event after which a full reconciliation is not needed."""
    match event:
        case TaskProgressed():
            tasks.on_progress(turn, event)
        case TaskRetrying():
            tasks.on_retrying(turn, event)
        case LeaseRenewed():
            held_back = not turn.herder.place.has_valid_lease(turn.now_ms)
            tasks.on_lease_renewed(turn, event)
            if held_back:
                connectors.reconcile(turn)
                protocol_of(turn.herder).notify_rebalance_listeners(turn)
        case StatusLinesRead(lines=lines):
            for line in lines:
                turn.herder.statuses.apply(line)
                active_topics.answer_reset_if_last_tombstone(turn, line)
            connectors.resplit_if_tasks_no_longer_fail(turn)
        case StatusAppendEnded():
            statuses.on_status_append_ended(turn, event)
            place.send_changed_worker_state_if_allowed(turn)
            protocol_of(turn.herder).report_released_jobs(turn)


def _on_config_lines(turn: Turn, event: ConfigLinesRead) -> AffectedConnectors:
    """Apply the lines and the position to the state of the config log, log a message about each unexpected line, and
    carry out the restarts and the levels of loggers that lines request. Returns the connectors that the lines affect.
    None means all: the lines contain a new session key, or jobs may start now because the log is read to the last
    assignment's offset."""
    herder, was_caught_up = turn.herder, turn.herder.is_caught_up
    for line in event.lines:
        match herder.config.apply(line):
            case str() as remark:
                turn.emit(WriteLogMessage(text=remark))
            case ConnectorRestartRequested() as restart:
                restarts.restart_jobs_of_connector(turn, restart)
            case LoggerLevelWritten() as written:
                logger_levels.on_level_written(turn, written)
            case None:
                pass
    if event.completes_first_read:
        herder.lifecycle.is_config_log_read = True
    herder.config.advance_position_to(event.position)
    affected = herder.config.take_affected_or_none_if_all()
    return affected if herder.is_caught_up == was_caught_up else None


def _on_leader_event(
    turn: Turn, event: SessionKeyMade | LeaderLogOpened | LeaderLogOpenFailed | LeadershipConfirmed
) -> None:
    """Process an event about the session key or the leader's log: only a leader makes the key and opens the log."""
    match event:
        case SessionKeyMade():
            signing.on_session_key_made(turn, event)
        case LeaderLogOpened():
            leader_log.confirm_leadership_when_opened(turn, event)
        case LeaderLogOpenFailed():
            leader_log.on_open_failed(turn, event)
        case LeadershipConfirmed():
            leader_log.on_leadership_confirmed(turn, event)


def _on_lifecycle_event(
    turn: Turn,
    event: RuntimeOpened
    | RuntimeDied
    | RuntimeClosed
    | ShutdownOrdered
    | RequestIntakeClosed
    | MembershipSuspended
    | GroupLeft
    | PluginThreadsLost,
) -> None:
    match event:
        case RuntimeOpened(wall_clock_ms=wall_ms):
            signing.store_wall_clock_offset(turn, wall_ms)
            turn.herder.lifecycle.is_runtime_open = True
            logger_levels.set_levels_awaiting_runtime(turn)
            protocol_of(turn.herder).resume_inherited_membership(turn)
        case RuntimeDied(reason=reason):
            lifecycle.begin_shutdown(turn, reason, code=1, grace_ms=RUNTIME_DIED_GRACE_MS)
        case ShutdownOrdered(reason=reason, exit_code=code):
            lifecycle.begin_shutdown(turn, reason, code=code, grace_ms=turn.herder.settings.stop_grace_ms)
        case RequestIntakeClosed():
            lifecycle.on_request_intake_closed(turn)
        case GroupLeft():
            lifecycle.exit_or_relaunch_as_new_member(turn)
        case RuntimeClosed():
            lifecycle.exit_and_hand_over_if_relaunching(turn)
        case MembershipSuspended(handover=handover):
            lifecycle.on_membership_suspended(turn, handover)
        case PluginThreadsLost():
            lost_threads.on_plugin_threads_lost(turn, event)


def _on_membership_event(
    turn: Turn,
    event: MemberStateChanged
    | StopAllBeforeJoin
    | AssignmentsRequested
    | TargetRequested
    | GroupDescribed
    | Assigned
    | MembershipLost
    | MembershipRefused,
) -> None:
    match event:
        case MembershipRefused(reason=reason):
            lifecycle.begin_shutdown(turn, reason, code=1, grace_ms=turn.herder.settings.stop_grace_ms)
        case Assigned():
            protocol_of(turn.herder).on_membership_event(turn, event)
            draining.warn_if_drain_cannot_be_reported(turn)
        case GroupDescribed():
            protocol_of(turn.herder).on_membership_event(turn, event)
            orders.answer_requests_for_group_view(turn)
        case _:
            protocol_of(turn.herder).on_membership_event(turn, event)


def _on_task_event(
    turn: Turn,
    event: TaskDied | TaskHaltedWithoutOrder | TaskCheckpointClosed | TaskStarted | TaskStartFailed | TaskStopped,
) -> None:
    match event:
        case TaskDied():
            tasks.on_died(turn, event)
        case TaskHaltedWithoutOrder():
            tasks.on_halted(turn, event)
        case TaskCheckpointClosed():
            tasks.on_checkpoint_closed(turn, event)
        case TaskStarted():
            tasks.on_started(turn, event)
        case TaskStartFailed():
            tasks.on_start_failed(turn, event)
        case TaskStopped():
            tasks.on_stopped(turn, event)


def _on_connector_event(
    turn: Turn,
    event: SplitSucceeded
    | SplitFailed
    | SourcePartsChanged
    | CheckpointGenerationCreationEnded
    | TaskConfigsPublicationEnded,
) -> None:
    match event:
        case SplitSucceeded() | SplitFailed():
            connectors.on_split_ended(turn, event)
        case SourcePartsChanged():
            connectors.on_source_parts_changed(turn, event)
        case CheckpointGenerationCreationEnded():
            closed_checkpoints.on_generation_creation_ended(turn, event)
        case TaskConfigsPublicationEnded():
            closed_checkpoints.warn_if_awaited_publication_refused(turn, event.connector, event.refusal)
            connectors.on_publication_ended(turn, event)


def _on_request_event(
    turn: Turn,
    event: RequestArrived
    | ConfigValidationCompleted
    | ConfigCouldNotBeValidated
    | PluginQuestionAnswered
    | OffsetReadEnded
    | OffsetChangeEnded
    | ConfigLogEndLookupEnded
    | ConfigLinesAppended
    | ConfigLinesAppendFailed,
) -> None:
    match event:
        case RequestArrived():
            _on_request_arrived(turn, event)
        case (
            ConfigValidationCompleted()
            | ConfigCouldNotBeValidated()
            | PluginQuestionAnswered()
            | OffsetReadEnded()
            | OffsetChangeEnded()
        ):
            _on_runtime_answer(turn, event)
        case ConfigLogEndLookupEnded(purpose=purpose, end_offset=end):
            _on_config_log_end_lookup_ended(turn, purpose, end)
        case ConfigLinesAppended(purpose=purpose, end_offset=end):
            match purpose:
                case AppendForWrites(ids=ids):
                    writes.on_appended(turn, ids, end)
                case AppendForSessionKey(key_number=number):
                    signing.on_session_key_appended(turn, number, end)
                case AppendForLoggerLevel(id=request_id):
                    logger_levels.answer_request_of_durable_level(turn, request_id)
        case ConfigLinesAppendFailed():
            _on_append_failed(turn, event)


def _on_append_failed(turn: Turn, event: ConfigLinesAppendFailed) -> None:
    """Lines could not be appended: pass this to the module that appended them. If they were to be appended as the
    leader, also open the leader's log again."""
    if event.leader_log_opening_number is not None:
        leader_log.on_append_failed(turn, event.leader_log_opening_number)
    match event.purpose:
        case AppendForWrites(ids=ids):
            writes.on_append_failed(turn, ids, is_fenced=event.is_fenced, are_lines_discarded=event.are_lines_discarded)
        case AppendForSessionKey(key_number=number):
            signing.on_session_key_append_failed(turn, number, event.reason)
        case AppendForLoggerLevel(id=request_id):
            logger_levels.on_append_failed(turn, request_id, event.reason)


def _on_runtime_answer(
    turn: Turn,
    event: ConfigValidationCompleted
    | ConfigCouldNotBeValidated
    | PluginQuestionAnswered
    | OffsetReadEnded
    | OffsetChangeEnded,
) -> None:
    """Pass what the runtime has answered for a request to the module of the request."""
    match event:
        case ConfigValidationCompleted() | ConfigCouldNotBeValidated():
            writes.on_validation_ended(turn, event)
            questions.on_validation_ended(turn, event)
        case PluginQuestionAnswered():
            questions.on_answered(turn, event)
        case OffsetReadEnded():
            offsets.on_offset_read_ended(turn, event)
        case OffsetChangeEnded():
            writes.on_offset_change_ended(turn, event)


def _on_config_log_end_lookup_ended(turn: Turn, purpose: LogEndLookupPurpose, end_offset: LogPosition | None) -> None:
    """Pass the result of an end-offset lookup to the module that asked for it."""
    match purpose:
        case LogEndLookupForRead(id=id_):
            reads.on_config_log_end_lookup_ended(turn, id_, end_offset)
        case LogEndLookupForWrite(id=write_id):
            writes.on_config_log_end_lookup_ended(turn, write_id, end_offset)
        case LogEndLookupForAssignment(log_end_lookup_id=log_end_lookup_id):
            protocol_of(turn.herder).on_config_log_end_lookup_ended(turn, log_end_lookup_id, end_offset)
        case LogEndLookupOfLaggingWorker(log_end_lookup_id=log_end_lookup_id):
            place.rejoin_unless_log_ends_here(turn, log_end_lookup_id, end_offset)


def _on_request_arrived(turn: Turn, event: RequestArrived) -> None:
    """Pass a request to the module that answers it, or refuse it because the worker ends
    (:func:`_is_refused_while_ending`)."""
    if _is_refused_while_ending(turn.herder.lifecycle, event.request):
        refusal = lifecycle.ending_refusal(turn.herder)
        assert refusal is not None, "it accepts requests as long as it does not end"
        turn.emit(Reply(id=event.id, answer=refusal))
        return
    match event.request:
        case (
            PutConnector()
            | PatchConnector()
            | DeleteConnector()
            | SetTargetState()
            | PutTaskConfigs()
            | RestartConnector()
            | ChangeOffsets()
        ) as request:
            writes.on_request(turn, event, request)
        case ListPlugins() | DescribePlugin() | ValidateConnectorConfig() as question:
            questions.on_request(turn, event, question)
        case DescribeActiveTopics() | ResetActiveTopics() as request:
            active_topics.on_request(turn, event, request)
        case DescribeWorker():
            turn.emit(Reply(id=event.id, answer=worker_view.worker_view(turn.herder)))
        case SignContent() | VerifySignature() | FenceTasks() as request:
            turn.emit(Reply(id=event.id, answer=signing.answer_signature_request(turn.herder, request)))
        case SetGroupLoggerLevel() as request:
            logger_levels.on_request(turn, event.id, request)
        case DescribeWorkerGroup() as request:
            orders.on_request(turn, event.id, request)
        case DrainWorker() | CancelDrain() | RestartWorker() as request:
            orders.on_request(turn, event.id, request)
            _reconcile(turn)
        case request:
            reads.on_request(turn, event, request)


def _is_refused_while_ending(worker: Lifecycle, request: Request) -> bool:
    """Whether a worker refuses the request because it is leaving or relaunching. It refuses orders from the beginning,
    and most other requests when its intake is closed. Requests for its own description and for signatures are never
    refused. Requests for the description of the group are refused only by a worker that is leaving."""
    match request:
        case DescribeWorker() | SignContent() | VerifySignature():
            return False
        case DescribeWorkerGroup():
            return worker.is_shutting_down and worker.intake is RequestIntakeState.CLOSED
        case DrainWorker() | CancelDrain() | RestartWorker() | RestartConnectorTask():
            return worker.is_shutting_down or worker.is_relaunching
        case _:
            return worker.intake is RequestIntakeState.CLOSED


def _on_timer(turn: Turn, timer: Timer) -> None:
    match timer:
        case RequestTimeoutDue() | ConfigLogEndLookupDue():
            _on_request_timer(turn, timer)
        case ConnectorRetryDue():
            connectors.on_retry_due(turn, timer)
        case ClosedCheckpointCheckDue():
            closed_checkpoints.order_next_generation_if_awaited(turn, timer)
        case TaskRestartDue():
            pass  # `_reconcile`, which follows, checks the deadline.
        case "assign" | "changed jobs" | "delay over" | "moves" | "configured end":
            protocol_of(turn.herder).on_timer(turn, timer)
        case "behind":
            place.on_config_lag_timeout(turn)
        case "leader log":
            pass  # `_reconcile`, which follows, checks the deadline.
        case "session key":
            signing.clear_fired_rotation_timer(turn)
        case "statuses":
            statuses.requeue_failed_statuses(turn)
        case "last requests" | "shutdown" | "relaunch":
            lifecycle.on_shutdown_or_relaunch_timer(turn, timer)


def _on_request_timer(turn: Turn, timer: RequestTimeoutDue | ConfigLogEndLookupDue) -> None:
    match timer:
        case RequestTimeoutDue(id=id_):
            reads.answer_read_on_timeout(turn, id_)
            active_topics.on_request_timeout(turn, id_)
            questions.on_request_timeout(turn, id_)
            offsets.on_request_timeout(turn, id_)
            writes.on_request_timeout(turn, id_)
        case ConfigLogEndLookupDue(id=id_):
            writes.repeat_log_end_lookup(turn, id_)


def check(herder: Herder) -> None:
    """Assert invariants that hold after every step. Only those that need constant time.

    :raises AssertionError: when an invariant does not hold, which is a bug in Coterie.
    """
    place = herder.place
    match place.phase:
        case NeverJoined() | LostMembership():
            assert not place.member_id, "a worker that is not a member has a member id"
        case RoundFailed() | RoundCompleted():
            assert place.member_id, "a round has ended for a worker without a member id"
        case InRound() | StoppingBeforeJoin():
            pass
    if place.is_lost or isinstance(place.phase, StoppingBeforeJoin):
        assert not place.assigned, "a worker that must stop all its jobs has assigned jobs"
    assert not herder.lifecycle.is_shutting_down or not place.assigned, "a worker that leaves has assigned jobs"
    assert not herder.work.has_queued_lines or herder.work.is_append_in_progress, (
        "statuses wait and no append is in progress"
    )


def check_all_invariants(herder: Herder) -> None:
    """Assert all invariants, also those that need the whole state: for tests and the simulator.

    :raises AssertionError: when an invariant does not hold.
    """
    check(herder)
    under_way = [write for write in herder.requests.writes.values() if write.has_begun_at_queue_head]
    assert len({write.kind.request.connector for write in under_way}) == len(under_way), (
        "two writes of one connector at the head of the queue"
    )
    assert len(under_way) <= 1 or all(
        write.kind.needs_leader and isinstance(write.phase, AppendingWrite | WriteAppended) for write in under_way
    ), "a write at the head of the queue is neither alone nor appended together with others"
    for task, run in herder.work.local_tasks.items():
        assert run.may_hold_checkpoint or task in herder.place.assigned, (
            f"work.local_tasks contains {task}, which neither runs nor is assigned here"
        )
    assert herder.work.local_tasks.keys() >= herder.place.assigned.tasks, (
        "an assigned task has no entry in work.local_tasks"
    )
