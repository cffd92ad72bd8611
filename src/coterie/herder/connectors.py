"""The connectors that are assigned to this worker: each is split into task configs at its start, change and resume.

A split is a chore without a time limit. Its result is used only if the config that was split is still current; when the
config changes, the split is ended. If a split fails because a server cannot be reached, or because the split was ended
(all tasks here were stopped, or another worker has taken the split over), it is retried with back-off. After any other
failure, only a new config, a restart by an operator, or a new checkpoint generation after a closed one starts a new
split. The resulting task configs are compared with the committed ones. Unless the last commit contains them for the
present config, they are published through the leader, and the publication is retried with back-off until the leader
accepts it or a newer config replaces it.
"""

from dataclasses import replace

from coterie.engine.backoff import doubled_delay_ms
from coterie.herder import signing, statuses
from coterie.herder.config_state import Connector
from coterie.herder.messages import (
    SendTaskConfigsToLeader,
    SetTimer,
    SplitConnector,
    SplitFailed,
    SplitSucceeded,
    StopConnector,
    TaskConfigsPublicationEnded,
    WriteLogMessage,
)
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.herder.seams import SourcePartsChanged, TaskSpec
from coterie.herder.state import Herder, Turn
from coterie.herder.timers import ConnectorRetryDue
from coterie.herder.work import (
    AffectedConnectors,
    LocalConnector,
    NotSplit,
    PublishedTaskConfigs,
    SplitComplete,
    SplitRetryPending,
    Splitting,
    TaskConfigsPublicationInProgress,
    TaskConfigsPublishRetryPending,
    UnpublishedTaskConfigs,
    Unsplittable,
)
from coterie.herder.writes import submit_own_write_as_leader
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import JobState, TargetState

RETRY_FIRST_MS = 250
"""The wait before the first retry of a split or a publication. It doubles with each further retry."""
RETRY_MAX_MS = 60_000
"""The longest wait before a retry."""
REPORTED_REFUSALS_MIN = 7
"""From this number of refusals in a row, about 16 s after the first, the connector's status contains the reason. After
a crash of the leader there are fewer, since another leader is found within a session timeout of 10 s."""


def reconcile(turn: Turn, affected: AffectedConnectors = None) -> None:
    """Split those of the ``affected`` connectors that are assigned to this worker, publish their task configs, and
    report their statuses; end the splits of those that are no longer assigned to it. A newly assigned connector is only
    noticed if ``affected`` is None, which means all connectors."""
    herder, local_connectors = turn.herder, turn.herder.work.local_connectors
    if affected is None:
        for name in herder.place.assigned.connectors - local_connectors.keys():
            local_connectors[name] = LocalConnector()
    for name in sorted(local_connectors if affected is None else local_connectors.keys() & frozenset(affected)):
        if name in herder.place.assigned:
            _reconcile_assigned_connector(turn, name, local_connectors[name])
        else:
            if name in herder.work.last_reported:
                statuses.report_release_or_deletion(turn, name)
            _discard_split_and_stop(turn, name, local_connectors[name])
            # During a split the entry stays until the chore ends, so that the connector never has two split chores.
            if not isinstance(local_connectors[name].state, Splitting):
                del local_connectors[name]


def _reconcile_assigned_connector(turn: Turn, name: ConnectorName, local_connector: LocalConnector) -> None:
    """Start, continue or end the split of one assigned connector, as its config and its target state require, and
    report its status. Does nothing while the config log is behind the last assignment, the runtime is not open, or the
    worker is leaving or relaunching."""
    herder = turn.herder
    connector = herder.config.connector(name)
    if (
        not herder.is_caught_up
        or not herder.lifecycle.is_runtime_open
        or herder.lifecycle.is_relaunching
        or herder.lifecycle.is_shutting_down
    ):
        return
    if connector is None:
        _discard_split_and_stop(turn, name, local_connector)
        statuses.report_deleted_job(turn, name)
        return
    match herder.config.target_state(name):
        case TargetState.PAUSED:
            _discard_split_and_stop(turn, name, local_connector)
            statuses.report_status(turn, name, JobState.PAUSED)
        case TargetState.STOPPED:
            _discard_split_and_stop(turn, name, local_connector)
            statuses.report_status(turn, name, JobState.STOPPED)
        case TargetState.STARTED:
            _reconcile_connector_to_be_started(turn, name, local_connector, connector)


def _discard_split_and_stop(turn: Turn, name: ConnectorName, local_connector: LocalConnector) -> None:
    """Discard the result of the last split, and order the runtime to stop the connector, which ends a running split. If
    the connector is started then or later, it is split again. Does nothing if it was not split, or its split has
    already been ended."""
    match local_connector.state:
        case NotSplit() | Splitting(config_line_offset=None):
            return
        case Splitting():
            local_connector.state = Splitting(config_line_offset=None)
        case SplitRetryPending() | Unsplittable() | SplitComplete():
            local_connector.state = NotSplit()
    turn.emit(StopConnector(connector=name))


def _reconcile_connector_to_be_started(
    turn: Turn, name: ConnectorName, local_connector: LocalConnector, connector: Connector
) -> None:
    """Split the connector if its current config is not split and the lease is valid, or publish its task configs if
    they are not published, and report its status. A split of an older config that is still in progress is ended
    first."""
    herder = turn.herder
    match local_connector.state:
        case Splitting(config_line_offset=written_at):
            if written_at != connector.config_line_offset:
                _discard_split_and_stop(turn, name, local_connector)
        case Unsplittable(config_line_offset=written_at, commit_line_offset=committed_at, trace=trace) if (
            written_at == connector.config_line_offset and committed_at == connector.commit_line_offset
        ):
            statuses.report_status(turn, name, JobState.FAILED, trace)
        case SplitRetryPending(config_line_offset=written_at) as waits if (
            written_at == connector.config_line_offset and turn.now_ms < waits.retry_at_ms
        ):
            statuses.report_status(turn, name, JobState.RESTARTING, waits.trace)
        case SplitComplete() as state if _is_split_up_to_date(herder, name, state, connector):
            if state.commit_line_offset != connector.commit_line_offset:
                # The task configs were committed again, for example by a stop that was followed by a resume before this
                # worker read either of them.
                retries = isinstance(state.publication, TaskConfigsPublishRetryPending)
                publication = state.publication if retries else UnpublishedTaskConfigs()
                state = replace(state, commit_line_offset=connector.commit_line_offset, publication=publication)
                local_connector.state = state
            if isinstance(state.publication, UnpublishedTaskConfigs) and local_connector.publishing is None:
                _publish_task_configs_unless_committed(turn, name, local_connector, state, connector)
            _report_running_or_restarting(turn, name, local_connector)
        case NotSplit() if (
            reason := herder.lifecycle.no_new_jobs_reason
        ) is not None and not herder.has_started_connector_here(name):
            statuses.report_status(turn, name, JobState.UNASSIGNED, reason)
        case NotSplit() | SplitRetryPending() | Unsplittable() | SplitComplete():
            if herder.place.has_valid_lease(turn.now_ms):
                _start_split(turn, name, local_connector, connector)


def _report_running_or_restarting(turn: Turn, name: ConnectorName, local_connector: LocalConnector) -> None:
    """Report the status of a connector that is split. It is RESTARTING, with the reason, in two cases: the leader has
    repeatedly not accepted the task configs (:data:`REPORTED_REFUSALS_MIN`), or the connector must be split again but a
    failing task prevents this. Otherwise it is RUNNING. While task configs that were repeatedly refused are being sent
    again, the last reported status stays."""
    state = local_connector.state
    assert isinstance(state, SplitComplete)
    is_refused = state.failed_publications >= REPORTED_REFUSALS_MIN
    if is_refused and isinstance(state.publication, TaskConfigsPublishRetryPending):
        refusal = state.publication.refusal
        trace = f"The leader has not accepted the connector's task configs; they are sent again: {refusal}"
        statuses.report_status(turn, name, JobState.RESTARTING, trace)
    elif not is_refused or isinstance(state.publication, PublishedTaskConfigs):
        is_postponed = state.kept_source_parts_reason is not None
        statuses.report_status(
            turn, name, JobState.RESTARTING if is_postponed else JobState.RUNNING, state.kept_source_parts_reason
        )


def _start_split(turn: Turn, name: ConnectorName, local_connector: LocalConnector, connector: Connector) -> None:
    """Start a split: let this worker's runtime compute the task configs of the connector's current config. If a task of
    the connector is failing, the new task configs keep the present distribution of the source parts (for Kafka:
    partitions) among the tasks, as far as the new config permits this."""
    attempts = 0
    if (
        isinstance(local_connector.state, SplitRetryPending)
        and local_connector.state.config_line_offset == connector.config_line_offset
    ):
        attempts = local_connector.state.failed_attempts
    local_connector.state = Splitting(
        config_line_offset=connector.config_line_offset,
        commit_line_offset=connector.commit_line_offset,
        failed_attempts=attempts,
    )
    turn.emit(
        SplitConnector(
            connector=name,
            incarnation=connector.incarnation,
            config=connector.config,
            configs_of_checkpointed_tasks=connector.configs_of_checkpointed_tasks,
            config_line_offset=connector.config_line_offset,
            keeps_source_parts=_has_failed_or_restarting_task(turn.herder, name),
        )
    )


def _is_split_up_to_date(herder: Herder, name: ConnectorName, state: SplitComplete, connector: Connector) -> bool:
    """Whether the split has the connector's current config, and :func:`_is_postponed_resplit_due` does not require
    another one."""
    return state.config_line_offset == connector.config_line_offset and not _is_postponed_resplit_due(
        herder, name, state
    )


def _is_postponed_resplit_due(herder: Herder, name: ConnectorName, state: SplitComplete) -> bool:
    """Whether the connector must be split again: its tasks kept their source parts, although the config requires
    others, because a task was failing; and no task is failing any more."""
    return state.kept_source_parts_reason is not None and not _has_failed_or_restarting_task(herder, name)


def _has_failed_or_restarting_task(herder: Herder, name: ConnectorName) -> bool:
    """Whether a task of the connector, on any worker, is failing
    (:func:`statuses.is_failed_or_restarting_after_error`). A re-split would stop all tasks until the batch in flight of
    this task has succeeded."""
    known = (herder.statuses.get(task) for task in herder.config.committed_tasks(name))
    return any(status is not None and statuses.is_failed_or_restarting_after_error(status) for status in known)


def _publish_task_configs_unless_committed(
    turn: Turn, name: ConnectorName, local_connector: LocalConnector, state: SplitComplete, connector: Connector
) -> None:
    """Send the task configs to the leader, or, if this worker is the leader, submit the write here; unless the last
    commit already contains them for this config. Does nothing while there is no leader, or no key to sign the request
    with; a later reconciliation tries again."""
    herder = turn.herder
    committed = not connector.has_incomplete_commit and connector.task_configs == state.task_configs
    if committed and connector.config_at_last_commit == connector.config:
        local_connector.state = replace(state, publication=PublishedTaskConfigs())
        return
    if not herder.place.has_current_assignment:
        return  # There is no leader now; the next assignment contains the leader.
    if herder.place.is_leader_with_current_assignment:
        local_connector.publishing = TaskConfigsPublicationInProgress(commit_line_offset=connector.commit_line_offset)
        request = PutTaskConfigs(connector=name, configs=state.task_configs, incarnation=connector.incarnation)
        submit_own_write_as_leader(turn, request)
        return
    if signing.awaits_session_key(herder):
        return  # The leader accepts only signed requests, and will write a key.
    local_connector.publishing = TaskConfigsPublicationInProgress(commit_line_offset=connector.commit_line_offset)
    if state.first_sent_at_ms is None:
        local_connector.state = replace(state, first_sent_at_ms=turn.now_ms)
    turn.emit(
        SendTaskConfigsToLeader(
            leader_url=herder.place.leader_url,
            connector=name,
            incarnation=connector.incarnation,
            config_line_offset=connector.config_line_offset,
            configs=state.task_configs,
            signing_key=signing.signing_key(herder),
        )
    )


def restart(turn: Turn, name: ConnectorName, *, only_failed: bool) -> None:
    """Let the next reconciliation split the connector again, because an operator has ordered its restart, and report it
    as RESTARTING. With ``only_failed``, do so only if its config could not be split, which is its state FAILED. Does
    nothing for a connector that is not assigned to this worker, or whose target state is not STARTED."""
    local_connector = turn.herder.work.local_connectors.get(name)
    if local_connector is None or name not in turn.herder.place.assigned:
        return
    is_started = turn.herder.config.target_state(name) is TargetState.STARTED
    if is_started and (isinstance(local_connector.state, Unsplittable) or not only_failed):
        _discard_split_and_stop(turn, name, local_connector)
        statuses.report_status(turn, name, JobState.RESTARTING)


# -- results of splits and publications -------------------------------------------------------------------------------


def on_split_ended(turn: Turn, event: SplitSucceeded | SplitFailed) -> None:
    """A split has ended. Store its result; but if the config has changed since the split began, split the connector
    again. A failure that may be temporary is retried with back-off; after any other failure the connector is FAILED."""
    local_connector = turn.herder.work.local_connectors[event.connector]
    splitting = local_connector.state
    assert isinstance(splitting, Splitting), f"{event.connector} was split, but no split was ordered"
    match event:
        case _ if splitting.config_line_offset != event.config_line_offset:
            local_connector.state = NotSplit()
        case SplitSucceeded(
            config_line_offset=written_at, task_configs=configs, kept_source_parts_reason=kept_source_parts_reason
        ):
            local_connector.state = SplitComplete(
                config_line_offset=written_at,
                task_configs=tuple(configs),
                kept_source_parts_reason=kept_source_parts_reason,
            )
        case SplitFailed(is_transient=True):
            _schedule_retry_of_transient_failure(turn, event, local_connector, splitting)
        case SplitFailed(config_line_offset=written_at, trace=trace):
            local_connector.state = Unsplittable(
                config_line_offset=written_at, commit_line_offset=splitting.commit_line_offset, trace=trace
            )


def _schedule_retry_of_transient_failure(
    turn: Turn, event: SplitFailed, local_connector: LocalConnector, splitting: Splitting
) -> None:
    """Set the time of the next attempt to split the connector, and log it."""
    wait_ms = doubled_delay_ms(RETRY_FIRST_MS, splitting.failed_attempts, RETRY_MAX_MS)
    at_ms = turn.now_ms + wait_ms
    local_connector.state = SplitRetryPending(
        config_line_offset=event.config_line_offset,
        trace=event.trace,
        failed_attempts=splitting.failed_attempts + 1,
        retry_at_ms=at_ms,
    )
    turn.emit(SetTimer(timer=ConnectorRetryDue(connector=event.connector), at_ms=at_ms))
    turn.emit(
        WriteLogMessage(
            text=f"Connector {event.connector} could not be split into tasks; the next attempt is in {wait_ms} ms, and "
            "the connector's status contains the error"
        )
    )


def resplit_if_tasks_no_longer_fail(turn: Turn) -> None:
    """Statuses were read. Split those connectors again whose tasks kept their source parts because a task was failing,
    when no task of the connector is failing any more."""
    local_connectors = turn.herder.work.local_connectors.items()
    if any(
        isinstance(one.state, SplitComplete) and _is_postponed_resplit_due(turn.herder, name, one.state)
        for name, one in local_connectors
    ):
        reconcile(turn)


def on_source_parts_changed(turn: Turn, event: SourcePartsChanged) -> None:
    """Let the next reconciliation split the connector again, because its source parts (for Kafka: partitions) have
    changed. A connector that is being split, or is no longer assigned here, needs no action."""
    local_connector = turn.herder.work.local_connectors.get(event.connector)
    if local_connector is not None and isinstance(local_connector.state, SplitComplete):
        turn.emit(
            WriteLogMessage(
                text=f"The source partitions of connector {event.connector} have changed: it is split into tasks again"
            )
        )
        local_connector.state = NotSplit()


def resplit_if_config_is_of_last_split(turn: Turn, spec: TaskSpec) -> None:
    """The checkpoint generation of a task's config is closed. If the config is from this worker's last split of the
    connector, another worker has closed the checkpoint generation, possibly the former owner of the connector: split
    the connector again."""
    local_connector = turn.herder.work.local_connectors.get(spec.task.connector)
    if (
        local_connector is not None
        and isinstance(local_connector.state, SplitComplete)
        and spec.config in local_connector.state.task_configs
    ):
        local_connector.state = NotSplit()


def resplit_if_unsplittable(turn: Turn, name: ConnectorName) -> None:
    """The checkpoint generation that follows a closed one exists. If the connector's config could not be split, let the
    next reconciliation split it again: the cause may be removed."""
    local_connector = turn.herder.work.local_connectors.get(name)
    if local_connector is not None and isinstance(local_connector.state, Unsplittable):
        local_connector.state = NotSplit()


def on_publication_ended(turn: Turn, event: TaskConfigsPublicationEnded) -> None:
    """The leader has accepted or refused the task configs, or could not be reached. If it has not accepted them, they
    are sent again with back-off, and the reason is logged, except for a refused signature that may have been made just
    before a new key was read. A result for an older config is ignored."""
    local_connector = turn.herder.work.local_connectors.get(event.connector)
    if local_connector is None:
        return
    publishing, local_connector.publishing = local_connector.publishing, None
    state = local_connector.state
    if not isinstance(state, SplitComplete) or state.config_line_offset != event.config_line_offset:
        return  # A newer config or split replaced it before the leader responded.
    if event.refusal is None:
        if publishing is not None and publishing.commit_line_offset == state.commit_line_offset:
            local_connector.state = replace(state, publication=PublishedTaskConfigs(), failed_publications=0)
        return
    wait_ms = doubled_delay_ms(RETRY_FIRST_MS, state.failed_publications, RETRY_MAX_MS)
    at_ms = turn.now_ms + wait_ms
    local_connector.state = replace(
        state,
        failed_publications=state.failed_publications + 1,
        publication=TaskConfigsPublishRetryPending(retry_at_ms=at_ms, refusal=event.refusal),
    )
    turn.emit(SetTimer(timer=ConnectorRetryDue(connector=event.connector), at_ms=at_ms))
    if event.is_signature_refused and signing.may_predate_new_key(state.first_sent_at_ms, turn.now_ms):
        return  # A new key was being written; the next request is signed with the new key.
    text = (
        f"The leader has not accepted the task configs of connector {event.connector}; they are sent again in "
        f"{wait_ms} ms: {event.refusal}"
    )
    turn.emit(WriteLogMessage(text=text, is_error=event.is_signature_refused))


def on_own_write_answered(turn: Turn, request: PutTaskConfigs, answer: Answer) -> None:
    """This worker is the leader and owns the connector, and its own write of the task configs has completed or was
    refused: continue as after the response of a leader on another worker (:func:`on_publication_ended`). If a newer
    split has replaced the written task configs meanwhile, only clear ``publishing``."""
    local_connector = turn.herder.work.local_connectors.get(request.connector)
    if local_connector is None:
        return
    if (
        not isinstance(local_connector.state, SplitComplete)
        or request.configs is not local_connector.state.task_configs
    ):
        local_connector.publishing = None
        return  # A newer config or split replaced it before the write completed.
    refusal = answer.message if isinstance(answer, RequestRefused) else None
    written_at = local_connector.state.config_line_offset
    on_publication_ended(
        turn, TaskConfigsPublicationEnded(connector=request.connector, config_line_offset=written_at, refusal=refusal)
    )


def on_retry_due(turn: Turn, timer: ConnectorRetryDue) -> None:
    """A back-off is over. If the task configs had to be published again, mark them as unpublished: the next
    reconciliation, which follows, sends them. If a split had to be repeated, nothing is done here: the next
    reconciliation starts it."""
    local_connector = turn.herder.work.local_connectors.get(timer.connector)
    if local_connector is None or not isinstance(state := local_connector.state, SplitComplete):
        return
    if isinstance(state.publication, TaskConfigsPublishRetryPending) and turn.now_ms >= state.publication.retry_at_ms:
        local_connector.state = replace(state, publication=UnpublishedTaskConfigs())
