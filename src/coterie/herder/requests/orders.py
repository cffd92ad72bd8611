"""Orders to one worker, and settings for all workers. A worker that receives an order for another worker refuses it,
with the URL of that worker, or of the leader."""

from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.logger_levels import LoggerLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """Move the worker's jobs to other workers; jobs that wait to move still run on the worker. When it has no job left,
    it leaves the group permanently and its process ends. Answered with :class:`SuccessWithoutContent` when the drain
    has begun."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelDrain:
    """Cancel a drain: the worker stays in the group and can be assigned jobs again. Answered with
    :class:`SuccessWithoutContent`, at once."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorker:
    """Stop the worker's tasks and relaunch its process, which keeps its membership. With ``moves_jobs``, first move the
    worker's jobs to other workers, as :class:`DrainWorker` does, and leave the group; the relaunched process joins as a
    new member. Answered with :class:`SuccessWithoutContent` when the relaunch or the drain has begun.

    Refused with a ``settings_error``, and while the worker drains; but if the drain is one of ``moves_jobs``, a further
    order with ``moves_jobs`` is accepted and has no effect."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""
    moves_jobs: bool = False
    settings_error: str | None = field(default=None, repr=False)
    """Why the worker that received the request could not start again with its present settings; None when it could.
    With an error the worker is not restarted."""


WorkerOrder: TypeAlias = DrainWorker | CancelDrain | RestartWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConnectorTask:
    """Restart one task, on the worker to which it is assigned. Answered with :class:`SuccessWithoutContent` when that
    worker has ordered the restart; the task's status shows whether it succeeds."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupLoggerLevel:
    """Set the level of a logger, and of its descendants, on all workers (KIP-976). Answered with
    :class:`SuccessWithoutContent` when the level is durable in the config log."""

    logger: str
    level: LoggerLevel
