"""The connector instances that this worker has: each is split into tasks when it starts, is changed, or is resumed.

A split runs on its own, however long it takes; its result counts only if the config it was made of is still the
current one, and otherwise the split is ended. One that fails because a server is away, or because everything here was
stopped, is tried again with back-off; of another failure only another config helps. What comes out is compared with
what is committed, and published through the leader when it differs: again and again with back-off until the leader has
it, or a newer config has made it pointless.
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
            # Otherwise it stays until its chore ends, so that there is never a second one.
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
    """Let what was split here, or is, count no more. Resuming splits the connector again."""
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
                # Whoever wrote it: a stop, say, that was taken back before this worker read of either.
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
    """Whether the tasks have kept their parts because one was FAILED, and none is any more."""
    return state.keeps_split and not _has_failed(herder, name)


def _has_failed(herder: Herder, name: ConnectorName) -> bool:
    """Whether a task of the connector is FAILED, here or elsewhere."""
    said = (herder.statuses.get(task) for task in herder.config.tasks(name))
    return any(status is not None and status.state is State.FAILED for status in said)


def _publish(turn: Turn, name: ConnectorName, split: Split, state: SplitUp, connector: Connector) -> None:
    herder = turn.herder
    committed = not connector.inconsistent and connector.task_configs == state.configs
    if committed and connector.applied_config == connector.config:
        split.state = replace(state, publication=Published())
        return
    if not herder.place.is_settled:
        return  # Nobody leads; the next assignment says who does.
    if herder.place.is_leader:
        split.publishing = PublishRequest(after=connector.committed_at)
        own_write(turn, PutTaskConfigs(connector=name, configs=state.configs))
        return
    if signing.awaits_key(herder):
        return  # Its leader takes nothing unsigned, and will write a key.
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


# -- what comes of it -------------------------------------------------------------------------------------------------


def on_split(turn: Turn, event: ConnectorSplit | SplitFailed) -> None:
    split = turn.herder.work.splits[event.connector]
    splitting = split.state
    assert isinstance(splitting, Splitting), f"{event.connector} was split, and was not to be"
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
    turn.order(Say(text=f"Connector {event.connector} is split again in {wait_ms} ms; its status says why"))


def on_statuses(turn: Turn) -> None:
    """Split what has waited for a FAILED task, once none is."""
    splits = turn.herder.work.splits.items()
    if any(isinstance(one.state, SplitUp) and _may_split_anew(turn.herder, name, one.state) for name, one in splits):
        reconcile(turn)


def on_parts_changed(turn: Turn, event: PartsChanged) -> None:
    """Split again what is split; a connector that is not, or that is not here any more, needs nothing."""
    split = turn.herder.work.splits.get(event.connector)
    if split is not None and isinstance(split.state, SplitUp):
        turn.order(Say(text=f"The source of connector {event.connector} has other parts: the connector is split anew"))
        split.state = Unsplit()


def on_closed(turn: Turn, start: TaskStart) -> None:
    """The generation of a task's config is closed. Where this worker has made it, another one has closed it, which had
    the connector before, perhaps."""
    split = turn.herder.work.splits.get(start.task.connector)
    if split is not None and isinstance(split.state, SplitUp) and start.config in split.state.configs:
        split.state = Unsplit()


def on_finished(turn: Turn, name: ConnectorName) -> None:
    """A closed generation is finished: the reason why the connector could not be split may be over."""
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
        return  # Superseded while it was under way.
    if event.refusal is None:
        if publishing is not None and publishing.after == state.committed_at:
            split.state = replace(state, publication=Published())
        return
    wait_ms = min(RETRY_FIRST_MS << min(state.attempts, 16), RETRY_MAX_MS)
    at_ms = turn.now_ms + wait_ms
    split.state = replace(state, attempts=state.attempts + 1, publication=WaitsToPublish(until_ms=at_ms))
    turn.order(SetTimer(timer=RetryDue(connector=event.connector), at_ms=at_ms))
    if event.forbidden and signing.may_have_raced(state.first_tried_ms, turn.now_ms):
        return  # A fresh key was on its way; it is signed with that one next.
    text = f"Task configs of connector {event.connector} go to the leader again in {wait_ms} ms: {event.refusal}"
    turn.order(Say(text=text, is_error=event.forbidden))


def on_own_answer(turn: Turn, request: PutTaskConfigs, answer: Answer) -> None:
    """The leader, which has the connector itself, has written its task configs, or refused to."""
    split = turn.herder.work.splits.get(request.connector)
    if split is None:
        return
    if not isinstance(split.state, SplitUp) or request.configs is not split.state.configs:
        split.publishing = None
        return  # Superseded while it was under way.
    refusal = answer.message if isinstance(answer, RequestRefused) else None
    written_at = split.state.written_at
    on_published(turn, TaskConfigsPublished(connector=request.connector, written_at=written_at, refusal=refusal))


def on_retry(turn: Turn, timer: RetryDue) -> None:
    split = turn.herder.work.splits.get(timer.connector)
    if split is None or not isinstance(state := split.state, SplitUp):
        return
    if isinstance(state.publication, WaitsToPublish) and turn.now_ms >= state.publication.until_ms:
        split.state = replace(state, publication=Unpublished())
