"""Tasks that wait while their connector is split again, when the worker that started the split may have ended.

The worker that owns the connector closes a checkpoint generation, makes the next one and publishes its task configs.
When the task configs do not arrive in time, each worker with a waiting task checks whether another worker is finishing
the closed checkpoint generation. If not, it finishes the checkpoint generation and publishes the task configs of the
next one.
"""

from coterie.herder import connectors, signing
from coterie.herder.messages import FinishGeneration, GenerationFinished, PublishTaskConfigs, Say, SetTimer
from coterie.herder.requests import PutTaskConfigs
from coterie.herder.state import Turn
from coterie.herder.timers import ClosedDue
from coterie.herder.work import Closed
from coterie.herder.writes import own_write
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState

CLOSED_PATIENCE_MS = 10_000
"""How long tasks wait before a worker that does not own the connector checks whether another worker is finishing the
closed checkpoint generation."""


def watch(turn: Turn, connector: ConnectorName) -> None:
    """A task of ``connector`` waits: set the timer of the check."""
    turn.order(SetTimer(timer=ClosedDue(connector=connector), at_ms=turn.now_ms + CLOSED_PATIENCE_MS))


def on_due(turn: Turn, timer: ClosedDue) -> None:
    herder, name = turn.herder, timer.connector
    if not _waits(turn, name):
        return
    watch(turn, name)
    connector = herder.config.connector(name)
    # The worker that owns the connector splits it and publishes the task configs, unless the config cannot be split.
    is_at_work = name in herder.work.finishing or _is_split_here(turn, name)
    if connector is None or is_at_work or not herder.life.is_open or herder.life.is_leaving:
        return
    if herder.place.is_counted_in(turn.now_ms):
        herder.work.finishing.add(name)
        turn.order(FinishGeneration(connector=name, incarnation=connector.incarnation))


def on_finished(turn: Turn, event: GenerationFinished) -> None:
    """Publish the task configs once. If the leader does not accept them, the tasks keep waiting until the timer fires
    again."""
    herder, name = turn.herder, event.connector
    herder.work.finishing.discard(name)
    connector = herder.config.connector(name)
    if connector is None or event.configs is None or connector.incarnation != event.incarnation:
        return
    if _is_split_here(turn, name) or not _waits(turn, name) or not herder.place.is_settled:
        return
    configs = tuple(event.configs)
    if connector.task_configs == configs:
        return
    connectors.on_finished(turn, name)
    turn.order(
        Say(text=f"Connector {name}: this worker publishes the task configs of the newest checkpoint generation")
    )
    if herder.place.is_leader:
        own_write(turn, PutTaskConfigs(connector=name, configs=configs))
    elif not signing.awaits_key(herder):
        turn.order(
            PublishTaskConfigs(
                leader_url=herder.place.leader_url,
                connector=name,
                written_at=connector.written_at,
                configs=configs,
                signing=signing.signing(herder),
            )
        )


def _is_split_here(turn: Turn, name: ConnectorName) -> bool:
    split = turn.herder.work.splits.get(name)
    return split is not None and split.is_at_work


def _waits(turn: Turn, name: ConnectorName) -> bool:
    herder = turn.herder
    return herder.config.target_state(name) is TargetState.STARTED and any(
        task.connector == name and isinstance(run.state, Closed) and herder.config.task_config(task) is not None
        for task, run in herder.work.runs.items()
    )
