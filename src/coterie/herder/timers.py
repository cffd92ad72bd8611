"""What a herder waits for: the names of its deadlines, and what each of them stands for."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.herder.requests import RequestId, WriteId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDue:
    """A request has waited long enough."""

    id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDue:
    """Split a connector again, or publish its task configs again."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDue:
    """Start the query of a task that died again."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedDue:
    """A task of the connector may have waited too long for a config that names another generation of checkpoints."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class LookDue:
    """Look for the config log's end again, for a write that waits to be checked against it."""

    id: WriteId


HerderTimer: TypeAlias = Literal[
    "assign", "changed jobs", "delay over", "moves", "behind", "session key", "statuses", "shutdown", "relaunch"
]
"""``assign``: the leader's config log still lags, so nobody gets anything in this round (CONFIG_MISMATCH) ·
``changed jobs``: no more changes of the set of jobs are waited for ·
``delay over``: the scheduled rebalance delay has ended · ``moves``: the leader may make the next ones ·
``behind``: the config log should be read by now as far as the group knows it · ``session key``: write a fresh one ·
``statuses``: write them again · ``shutdown``: leave though not all has stopped · ``relaunch``: close the
runtime though not all has."""
Timer: TypeAlias = RequestDue | RetryDue | RestartDue | ClosedDue | LookDue | HerderTimer
