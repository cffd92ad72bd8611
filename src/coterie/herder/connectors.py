"""The connector instances that this worker has: each is split into tasks when it starts, is changed, or is resumed.

A split runs on its own, however long it takes; its result counts only if the config it was made of is still the
current one. What comes out is compared with what is committed, and published through the leader when it differs:
again and again with back-off until the leader has it, or a newer config has made it pointless.
"""

from collections.abc import Mapping

from coterie.herder import signing, statuses
from coterie.herder.config_state import Connector
from coterie.herder.messages import (
    ConnectorSplit,
    PublishTaskConfigs,
    Say,
    SetTimer,
    SplitConnector,
    SplitFailed,
    TaskConfigsPublished,
)
from coterie.herder.requests import Answer, PutTaskConfigs, Refused
from coterie.herder.state import Split, Turn
from coterie.herder.timers import RetryDue
from coterie.herder.writes import own_write
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import State, TargetState

RETRY_FIRST_MS = 250
RETRY_MAX_MS = 60_000


def reconcile(turn: Turn) -> None:
    herder = turn.herder
    for name in herder.place.assigned.connectors - herder.splits.keys():
        herder.splits[name] = Split()
    for name in sorted(herder.splits):
        split = herder.splits[name]
        if name in herder.place.assigned:
            _reconcile_one(turn, name, split)
        else:
            if name in herder.shown:
                statuses.part(turn, name)
            if not split.splitting:  # Otherwise it stays until its chore ends, so that there is never a second one.
                del herder.splits[name]


def _reconcile_one(turn: Turn, name: ConnectorName, split: Split) -> None:
    herder = turn.herder
    connector = herder.config.connector(name)
    if not herder.caught_up or not herder.is_open or herder.restarting or herder.leaving is not None:
        return
    if connector is None:
        statuses.forget(turn, name)
        return
    match herder.config.target_state(name):
        case TargetState.PAUSED:
            split.written_at = None  # Resuming splits it again.
            statuses.show(turn, name, State.PAUSED)
        case TargetState.STOPPED:
            split.written_at = None
            statuses.show(turn, name, State.STOPPED)
        case TargetState.STARTED:
            _reconcile_started(turn, name, split, connector)


def _reconcile_started(turn: Turn, name: ConnectorName, split: Split, connector: Connector) -> None:
    if split.splitting:
        return
    if split.written_at != connector.written_at:
        split.written_at = connector.written_at
        split.splitting = True
        split.configs = split.trace = split.retry_at_ms = None
        split.published = False
        split.attempts = 0
        split.first_tried_ms = None
        turn.order(
            SplitConnector(
                connector=name,
                config=connector.config,
                checkpointed=connector.checkpointed,
                written_at=connector.written_at,
            )
        )
    elif split.trace is not None:
        statuses.show(turn, name, State.FAILED, split.trace)
    elif split.configs is not None:
        statuses.show(turn, name, State.RUNNING)
        if split.committed_at != connector.committed_at:
            # Whoever wrote it: a stop, say, that was taken back before this worker read of either.
            split.committed_at = connector.committed_at
            split.published = False
        if not split.published and not split.publishing and split.retry_at_ms is None:
            _publish(turn, name, split, connector, split.configs)


def _publish(
    turn: Turn, name: ConnectorName, split: Split, connector: Connector, configs: tuple[Mapping[str, str], ...]
) -> None:
    herder = turn.herder
    committed = not connector.inconsistent and connector.task_configs == configs
    if committed and connector.applied_config == connector.config:
        split.published = True
        return
    if not herder.place.is_settled:
        return  # Nobody leads; the next assignment says who does.
    split.published_after = connector.committed_at
    if herder.place.is_leader:
        split.publishing = True
        own_write(turn, PutTaskConfigs(connector=name, configs=configs))
        return
    if signing.awaits_key(herder):
        return  # Its leader takes nothing unsigned, and will write a key.
    split.publishing = True
    if split.first_tried_ms is None:
        split.first_tried_ms = turn.now_ms
    turn.order(
        PublishTaskConfigs(
            leader_url=herder.place.leader_url,
            connector=name,
            written_at=connector.written_at,
            configs=configs,
            signing=signing.signing(herder),
        )
    )


# -- what comes of it -------------------------------------------------------------------------------------------------


def on_split(turn: Turn, event: ConnectorSplit) -> None:
    split = turn.herder.splits[event.connector]
    split.splitting = False
    if split.written_at == event.written_at:
        split.configs = tuple(event.configs)


def on_split_failed(turn: Turn, event: SplitFailed) -> None:
    split = turn.herder.splits[event.connector]
    split.splitting = False
    if split.written_at == event.written_at:
        split.trace = event.trace


def on_published(turn: Turn, event: TaskConfigsPublished) -> None:
    split = turn.herder.splits.get(event.connector)
    if split is None:
        return
    split.publishing = False
    if split.written_at != event.written_at:
        return  # Superseded while it was under way.
    if event.refusal is None:
        split.published = split.published_after == split.committed_at
        return
    wait_ms = min(RETRY_FIRST_MS << min(split.attempts, 16), RETRY_MAX_MS)
    split.attempts += 1
    split.retry_at_ms = turn.now_ms + wait_ms
    turn.order(SetTimer(timer=RetryDue(connector=event.connector), at_ms=split.retry_at_ms))
    if event.forbidden and signing.may_have_raced(split.first_tried_ms, turn.now_ms):
        return  # A fresh key was on its way; it is signed with that one next.
    text = f"Task configs of connector {event.connector} go to the leader again in {wait_ms} ms: {event.refusal}"
    turn.order(Say(text=text, is_error=event.forbidden))


def on_own_answer(turn: Turn, request: PutTaskConfigs, answer: Answer) -> None:
    """The leader, which has the connector itself, has written its task configs, or refused to."""
    split = turn.herder.splits.get(request.connector)
    if split is None:
        return
    split.publishing = False
    if split.written_at is None or request.configs is not split.configs:
        return  # Superseded while it was under way.
    refusal = answer.message if isinstance(answer, Refused) else None
    on_published(turn, TaskConfigsPublished(connector=request.connector, written_at=split.written_at, refusal=refusal))


def on_retry(turn: Turn, timer: RetryDue) -> None:
    split = turn.herder.splits.get(timer.connector)
    if split is not None and split.retry_at_ms is not None and turn.now_ms >= split.retry_at_ms:
        split.retry_at_ms = None
