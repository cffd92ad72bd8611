"""The timers of a herder: the name and the meaning of each deadline."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.herder.requests.ids import RequestId, WriteId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeoutDue:
    """The time limit of a request is over: answer or refuse it."""

    id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRetryDue:
    """A back-off is over: split a connector again, or publish its task configs again."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRestartDue:
    """The back-off of a failed task is over: restart its query, or start the task again."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedCheckpointCheckDue:
    """Check whether a task of the connector still waits for a config that names another checkpoint generation
    (`closed_checkpoints`)."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLogEndLookupDue:
    """Look up the config log's end offset again, for a write: the log could not be reached."""

    id: WriteId


GroupTimer: TypeAlias = Literal["assign", "changed jobs", "delay over", "moves", "configured end"]
"""The timers of one group protocol. In a classic group: ``assign``: the leader still has read less of the config log
than a member, so this round assigns no job (CONFIG_MISMATCH) · ``changed jobs``: the window that collects changes of
the set of jobs has ended · ``delay over``: the scheduled rebalance delay has ended · ``moves``: the leader may make the
next moves. In a connect group: ``configured end``: look up the config log's end offset again."""
HerderTimer: TypeAlias = Literal[
    "behind", "leader log", "session key", "statuses", "last requests", "shutdown", "relaunch"
]
"""``behind``: this worker should have read the config log to the group's config offset · ``leader log``: open the
leader's log again · ``session key``: make a new key · ``statuses``: write the statuses again · ``last requests``:
accept no more requests although some tasks still run · ``shutdown``: leave the group although some tasks still run ·
``relaunch``: close the runtime although some tasks still run."""
Timer: TypeAlias = (
    RequestTimeoutDue
    | ConnectorRetryDue
    | TaskRestartDue
    | ClosedCheckpointCheckDue
    | ConfigLogEndLookupDue
    | GroupTimer
    | HerderTimer
)
