"""The connectors that are assigned to this worker: each is split into task configs at its start, change and resume.

A split is a chore without a time limit. Its result is used only if the config that was split is still current; when the
config changes, the split is ended. A split that fails because a server cannot be reached, or because all tasks here
were stopped, is retried with back-off; after another failure only a new config starts a new split. The resulting task
configs are compared with the committed ones. If they differ, they are published through the leader, and the publication
is retried with back-off until the leader accepts it or a newer config replaces it.
"""

from dataclasses import replace

from coterie.herder import signing, statuses
from coterie.herder.config_state import Connector
from coterie.herder.messages import (
    ConnectorSplit,
    ForgetConnector,
    PublishTaskConfigs,
    Say,
    SetTimer,
    SplitConnector,
    SplitFailed,
    TaskConfigsPublished,
)
from coterie.herder.requests import Answer, PutTaskConfigs, RequestRefused
from coterie.herder.seams import PartsChanged, TaskStart
from coterie.herder.state import Herder, Turn
from coterie.herder.timers import RetryDue
from coterie.herder.work import (
    Published,
    PublishRequest,
    Split,
    Splitting,
    SplitUp,
    Unpublished,
    Unsplit,
    Unsplittable,
    WaitsToPublish,
    WaitsToSplit,
)
from coterie.herder.writes import own_write
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import State, TargetState

RETRY_FIRST_MS = 250
RETRY_MAX_MS = 60_000


def reconcile(turn: Turn) -> None:
    herder, splits = turn.herder, turn.herder.work.splits
    for name in herder.place.assigned.connectors - splits.keys():
        splits[name] = Split()
    for name in sorted(splits):
        if name in herder.place.assigned:
            _reconcile_one(turn, name, splits[name])
        else:
            if name in herder.work.shown:
                statuses.part(turn, name)
            _forget(turn, name, splits[name])
            # During a split the entry stays until the chore ends, so that the connector never has two split chores.
            if not isinstance(splits[name].state, Splitting):
                del splits[name]


def _reconcile_one(turn: Turn, name: ConnectorName, split: Split) -> None:
    herder = turn.herder
    connector = herder.config.connector(name)
    if not herder.caught_up or not herder.life.is_open or herder.life.is_relaunching or herder.life.is_leaving:
        return
    if connector is None:
        _forget(turn, name, split)
        statuses.forget(turn, name)
        return
    match herder.config.target_state(name):
        case TargetState.PAUSED:
            _forget(turn, name, split)
            statuses.show(turn, name, State.PAUSED)
        case TargetState.STOPPED:
            _forget(turn, name, split)
            statuses.show(turn, name, State.STOPPED)
        case TargetState.STARTED:
            _reconcile_started(turn, name, split, connector)


def _forget(turn: Turn, name: ConnectorName, split: Split) -> None:
    """Discard the result of the last or running split. When the connector is resumed, it is split again."""
    match split.state:
        case Unsplit() | Splitting(written_at=None):
            return
        case Splitting():
            split.state = Splitting(written_at=None)
        case WaitsToSplit() | Unsplittable() | SplitUp():
            split.state = Unsplit()
    turn.order(ForgetConnector(connector=name))


def _reconcile_started(turn: Turn, name: ConnectorName, split: Split, connector: Connector) -> None:
    herder = turn.herder
    match split.state:
        case Splitting(written_at=written_at):
            if written_at != connector.written_at:
                _forget(turn, name, split)
        case Unsplittable(written_at=written_at, trace=trace) if written_at == connector.written_at:
            statuses.show(turn, name, State.FAILED, trace)
        case WaitsToSplit(written_at=written_at) as waits if (
            written_at == connector.written_at and turn.now_ms < waits.until_ms
        ):
            statuses.show(turn, name, State.RESTARTING, waits.trace)
        case SplitUp() as state if _is_current(herder, name, state, connector):
            statuses.show(turn, name, State.RUNNING)
            if state.committed_at != connector.committed_at:
                # The task configs were committed again, for example by a stop that was followed by a resume before this
                # worker read either of them.
                retries = isinstance(state.publication, WaitsToPublish)
                publication = state.publication if retries else Unpublished()
                state = replace(state, committed_at=connector.committed_at, publication=publication)
                split.state = state
            if isinstance(state.publication, Unpublished) and split.publishing is None:
                _publish(turn, name, split, state, connector)
        case Unsplit() | WaitsToSplit() | Unsplittable() | SplitUp():
            if herder.place.is_counted_in(turn.now_ms):
                _split(turn, name, split, connector)


def _split(turn: Turn, name: ConnectorName, split: Split, connector: Connector) -> None:
    attempts = 0
    if isinstance(split.state, WaitsToSplit) and split.state.written_at == connector.written_at:
        attempts = split.state.attempts
    keeps_split = _has_failed(turn.herder, name)
    split.state = Splitting(written_at=connector.written_at, keeps_split=keeps_split, attempts=attempts)
    turn.order(
        SplitConnector(
            connector=name,
            incarnation=connector.incarnation,
            config=connector.config,
            checkpointed=connector.checkpointed,
            written_at=connector.written_at,
            keeps_split=keeps_split,
        )
    )


def _is_current(herder: Herder, name: ConnectorName, state: SplitUp, connector: Connector) -> bool:
    return state.written_at == connector.written_at and not _may_split_anew(herder, name, state)


def _may_split_anew(herder: Herder, name: ConnectorName, state: SplitUp) -> bool:
    """Whether the tasks have kept their source parts because a task was FAILED, and no task is FAILED any more."""
    return state.keeps_split and not _has_failed(herder, name)


def _has_failed(herder: Herder, name: ConnectorName) -> bool:
    """Whether a task of the connector is FAILED, on any worker."""
    said = (herder.statuses.get(task) for task in herder.config.tasks(name))
    return any(status is not None and status.state is State.FAILED for status in said)


def _publish(turn: Turn, name: ConnectorName, split: Split, state: SplitUp, connector: Connector) -> None:
    herder = turn.herder
    committed = not connector.inconsistent and connector.task_configs == state.configs
    if committed and connector.applied_config == connector.config:
        split.state = replace(state, publication=Published())
        return
    if not herder.place.is_settled:
        return  # There is no leader now; the next assignment contains the leader.
    if herder.place.is_leader:
        split.publishing = PublishRequest(after=connector.committed_at)
        own_write(turn, PutTaskConfigs(connector=name, configs=state.configs))
        return
    if signing.awaits_key(herder):
        return  # The leader accepts only signed requests, and will write a key.
    split.publishing = PublishRequest(after=connector.committed_at)
    if state.first_tried_ms is None:
        split.state = replace(state, first_tried_ms=turn.now_ms)
    turn.order(
        PublishTaskConfigs(
            leader_url=herder.place.leader_url,
            connector=name,
            written_at=connector.written_at,
            configs=state.configs,
            signing=signing.signing(herder),
        )
    )


# -- results of splits and publications -------------------------------------------------------------------------------


def on_split(turn: Turn, event: ConnectorSplit | SplitFailed) -> None:
    split = turn.herder.work.splits[event.connector]
    splitting = split.state
    assert isinstance(splitting, Splitting), f"{event.connector} was split, but no split was ordered"
    match event:
        case _ if splitting.written_at != event.written_at:
            split.state = Unsplit()
        case ConnectorSplit(written_at=written_at, configs=configs):
            keeps_split = splitting.keeps_split
            split.state = SplitUp(written_at=written_at, configs=tuple(configs), keeps_split=keeps_split)
        case SplitFailed(is_transient=True):
            _wait_to_split(turn, event, split, splitting)
        case SplitFailed(written_at=written_at, trace=trace):
            split.state = Unsplittable(written_at=written_at, trace=trace)


def _wait_to_split(turn: Turn, event: SplitFailed, split: Split, splitting: Splitting) -> None:
    wait_ms = min(RETRY_FIRST_MS << min(splitting.attempts, 16), RETRY_MAX_MS)
    at_ms = turn.now_ms + wait_ms
    split.state = WaitsToSplit(
        written_at=event.written_at, trace=event.trace, attempts=splitting.attempts + 1, until_ms=at_ms
    )
    turn.order(SetTimer(timer=RetryDue(connector=event.connector), at_ms=at_ms))
    turn.order(Say(text=f"Connector {event.connector} is split again in {wait_ms} ms; its status contains the error"))


def on_statuses(turn: Turn) -> None:
    """Split the connectors again that waited for a FAILED task, when none of their tasks is FAILED any more."""
    splits = turn.herder.work.splits.items()
    if any(isinstance(one.state, SplitUp) and _may_split_anew(turn.herder, name, one.state) for name, one in splits):
        reconcile(turn)


def on_parts_changed(turn: Turn, event: PartsChanged) -> None:
    """Split the connector again. A connector that is not split yet, or no longer assigned here, needs no action."""
    split = turn.herder.work.splits.get(event.connector)
    if split is not None and isinstance(split.state, SplitUp):
        turn.order(Say(text=f"The source parts of connector {event.connector} changed: the connector is split again"))
        split.state = Unsplit()


def on_closed(turn: Turn, start: TaskStart) -> None:
    """The checkpoint generation of a task's config is closed. If this worker made that checkpoint generation, another
    worker closed it, possibly the former owner of the connector: split the connector again."""
    split = turn.herder.work.splits.get(start.task.connector)
    if split is not None and isinstance(split.state, SplitUp) and start.config in split.state.configs:
        split.state = Unsplit()


def on_finished(turn: Turn, name: ConnectorName) -> None:
    """A closed checkpoint generation is finished: the cause of an earlier failed split may be removed."""
    split = turn.herder.work.splits.get(name)
    if split is not None and isinstance(split.state, Unsplittable):
        split.state = Unsplit()


def on_published(turn: Turn, event: TaskConfigsPublished) -> None:
    split = turn.herder.work.splits.get(event.connector)
    if split is None:
        return
    publishing, split.publishing = split.publishing, None
    state = split.state
    if not isinstance(state, SplitUp) or state.written_at != event.written_at:
        return  # A newer config or split replaced it before the leader responded.
    if event.refusal is None:
        if publishing is not None and publishing.after == state.committed_at:
            split.state = replace(state, publication=Published())
        return
    wait_ms = min(RETRY_FIRST_MS << min(state.attempts, 16), RETRY_MAX_MS)
    at_ms = turn.now_ms + wait_ms
    split.state = replace(state, attempts=state.attempts + 1, publication=WaitsToPublish(until_ms=at_ms))
    turn.order(SetTimer(timer=RetryDue(connector=event.connector), at_ms=at_ms))
    if event.forbidden and signing.may_have_raced(state.first_tried_ms, turn.now_ms):
        return  # A new key was being written; the next request is signed with the new key.
    text = f"Task configs of connector {event.connector} are sent to the leader again in {wait_ms} ms: {event.refusal}"
    turn.order(Say(text=text, is_error=event.forbidden))


def on_own_answer(turn: Turn, request: PutTaskConfigs, answer: Answer) -> None:
    """The leader, which owns the connector itself, has written the task configs or refused them."""
    split = turn.herder.work.splits.get(request.connector)
    if split is None:
        return
    if not isinstance(split.state, SplitUp) or request.configs is not split.state.configs:
        split.publishing = None
        return  # A newer config or split replaced it before the write completed.
    refusal = answer.message if isinstance(answer, RequestRefused) else None
    written_at = split.state.written_at
    on_published(turn, TaskConfigsPublished(connector=request.connector, written_at=written_at, refusal=refusal))


def on_retry(turn: Turn, timer: RetryDue) -> None:
    split = turn.herder.work.splits.get(timer.connector)
    if split is None or not isinstance(state := split.state, SplitUp):
        return
    if isinstance(state.publication, WaitsToPublish) and turn.now_ms >= state.publication.until_ms:
        split.state = replace(state, publication=Unpublished())
