"""Tasks whose checkpoint generation was closed because their connector is split again, when the worker that started the
split may have ended.

The worker that owns the connector closes a checkpoint generation (the checkpoints of all tasks of one split), makes the
next one and publishes its task configs. When the task configs do not arrive in time, each worker with a waiting task
checks whether another worker is creating the next one. If not, this worker creates it and publishes its task configs.
"""

from coterie.herder import connectors, signing
from coterie.herder.messages import (
    CheckpointGenerationCreationEnded,
    CreateNextCheckpointGeneration,
    SendTaskConfigsToLeader,
    SetTimer,
    WriteLogMessage,
)
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.herder.state import Turn
from coterie.herder.timers import ClosedCheckpointCheckDue
from coterie.herder.work import CheckpointClosed
from coterie.herder.writes import submit_own_write_as_leader
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState

NEXT_GENERATION_CHECK_DELAY_MS = 10_000
"""How long tasks wait, from the time at which this worker found the closed checkpoint generation, before this worker
checks whether another worker is creating the next one; also the time between two checks. The owner of the connector
checks only if it could not split the connector's config."""


def set_closed_checkpoint_timer(turn: Turn, connector: ConnectorName) -> None:
    """Set the timer of :func:`order_next_generation_if_awaited`, because a task of ``connector`` waits for another
    config."""
    turn.emit(
        SetTimer(
            timer=ClosedCheckpointCheckDue(connector=connector), at_ms=turn.now_ms + NEXT_GENERATION_CHECK_DELAY_MS
        )
    )


def order_next_generation_if_awaited(turn: Turn, timer: ClosedCheckpointCheckDue) -> None:
    """The timer has fired. If a task of the connector still waits here for another config, set the timer again, and
    order the chore :class:`CreateNextCheckpointGeneration`, which finds out whether another worker is creating the
    generation.

    The chore is not ordered if it is already running for this connector, if this worker owns the connector and
    `connectors` splits it (:func:`_is_splittable_here`), or if this worker is leaving or has no valid lease
    (:meth:`.WorkerMembership.has_valid_lease`)."""
    herder, name = turn.herder, timer.connector
    if not _has_task_awaiting_config(turn, name):
        return
    set_closed_checkpoint_timer(turn, name)
    connector = herder.config.connector(name)
    # The worker that owns the connector splits it and publishes the task configs, unless the config cannot be split.
    is_at_work = name in herder.work.connectors_creating_generation or _is_splittable_here(turn, name)
    if connector is None or is_at_work or not herder.lifecycle.is_runtime_open or herder.lifecycle.is_shutting_down:
        return
    if herder.place.has_valid_lease(turn.now_ms):
        herder.work.connectors_creating_generation.add(name)
        turn.emit(CreateNextCheckpointGeneration(connector=name, incarnation=connector.incarnation))


def on_generation_creation_ended(turn: Turn, event: CheckpointGenerationCreationEnded) -> None:
    """The chore :class:`CreateNextCheckpointGeneration` has ended. If it has returned task configs that are not
    committed already, and a task waits here for them, publish them. If this worker owns the connector but could not
    split its config, then also let `connectors` split it again.

    A publication is not retried here: if there is no leader, no key to sign the request with, or the leader refuses,
    the tasks wait until the timer fires again."""
    herder, name = turn.herder, event.connector
    herder.work.connectors_creating_generation.discard(name)
    connector = herder.config.connector(name)
    if connector is None or event.task_configs is None or connector.incarnation != event.incarnation:
        return
    if (
        _is_splittable_here(turn, name)
        or not _has_task_awaiting_config(turn, name)
        or not herder.place.has_current_assignment
    ):
        return
    configs = tuple(event.task_configs)
    if connector.task_configs == configs:
        return
    connectors.resplit_if_unsplittable(turn, name)
    must_wait_for_key = not herder.place.is_leader_with_current_assignment and signing.awaits_session_key(herder)
    publication_text = (
        "will publish them when it has the group's session key" if must_wait_for_key else "publishes them now"
    )
    turn.emit(
        WriteLogMessage(
            text=f"Connector {name}: another worker has split the connector again and has not published its task "
            f"configs, for which tasks of this worker wait; this worker {publication_text}"
        )
    )
    if herder.place.is_leader_with_current_assignment:
        request = PutTaskConfigs(connector=name, configs=configs, incarnation=connector.incarnation)
        submit_own_write_as_leader(turn, request)
    elif not must_wait_for_key:
        turn.emit(
            SendTaskConfigsToLeader(
                leader_url=herder.place.leader_url,
                connector=name,
                incarnation=connector.incarnation,
                config_line_offset=connector.config_line_offset,
                configs=configs,
                signing_key=signing.signing_key(herder),
            )
        )


def warn_if_awaited_publication_refused(turn: Turn, name: ConnectorName, refusal: str | None) -> None:
    """A publication of task configs has ended. If the leader refused them or could not be reached (``refusal`` is the
    reason; None: they were accepted), and a task waits here for them, log the refusal.

    Does nothing if `connectors` splits the connector here (:func:`_is_splittable_here`): it then logs the refusal
    itself and sends the task configs again."""
    if refusal is None or _is_splittable_here(turn, name) or not _has_task_awaiting_config(turn, name):
        return
    turn.emit(
        WriteLogMessage(
            text=(
                f"Connector {name}: the leader did not accept the task configs that this worker published: "
                f"{refusal}. Tasks of this worker wait for these configs, so every {NEXT_GENERATION_CHECK_DELAY_MS} ms "
                "this worker checks whether another worker has published task configs, and if not sends these again"
            ),
            is_warning=True,
        )
    )


def _is_splittable_here(turn: Turn, name: ConnectorName) -> bool:
    """Whether this worker owns the connector, and `connectors` has split it, is splitting it or will split it. False if
    its config could not be split here."""
    split = turn.herder.work.local_connectors.get(name)
    return split is not None and split.is_splittable


def _has_task_awaiting_config(turn: Turn, name: ConnectorName) -> bool:
    """Whether a task of the started connector waits here for a config that names another checkpoint generation."""
    herder = turn.herder
    return herder.config.target_state(name) is TargetState.STARTED and any(
        task.connector == name
        and isinstance(run.state, CheckpointClosed)
        and herder.config.task_config(task) is not None
        for task, run in herder.work.local_tasks.items()
    )
