"""Whether this worker may write the lines that only the leader may write to the config log."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias


class LogReadProgress(Enum):
    """Whether the leader has read the config log to an end that was looked up after the leader's log was opened, and
    since the last rebalance."""

    MISSING = auto()
    """No such end was looked up yet."""
    IN_PROGRESS = auto()
    """The end is being looked up for a write, or the lines before the end are being read."""
    COMPLETE = auto()
    """All lines before the end are read. No other worker can write a line that only the leader may write, unless it
    opens the leader's log, after which this worker's appends fail: the next writes need no lookup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLogClosed:
    """This worker may not write as the leader, and is not opening the leader's log: this worker is not the leader, has
    not ordered an opening yet, or has lost the right to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningLeaderLog:
    """The leader's log is being opened. Only a leader orders that, but it may have been replaced since."""

    opening_number: int
    """The number of this opening, as counted by this worker; the result of an older opening is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRetryPending:
    """The leader's log could not be opened; it is opened again at ``retry_at_ms``."""

    retry_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipUnconfirmed:
    """The log is open, but this worker may have been replaced as the leader before it opened the log, and would then
    write after the present leader. The member checks that with a heartbeat."""

    opening_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MayWriteAsLeader:
    """A heartbeat that was sent after the log was opened has confirmed that this worker is the leader. If another
    worker has opened the log since, an append fails."""

    opening_number: int
    log_read: LogReadProgress = LogReadProgress.MISSING


LeaderLogState: TypeAlias = (
    LeaderLogClosed | OpeningLeaderLog | OpenRetryPending | LeadershipUnconfirmed | MayWriteAsLeader
)


class LeaderLogAccess:
    """This worker's right to write as the leader; only module `leader_log` assigns to the fields."""

    def __init__(self) -> None:
        self.state: LeaderLogState = LeaderLogClosed()
        self.last_number = 0
        """The number of the last opening that this worker has ordered; 0 before the first."""
        self.logged_failure: str | None = None
        """Why the log could not be opened, as it was logged; None when no opening has failed since the last success."""

    @property
    def writable_opening_number(self) -> int | None:
        """The number of the opening under which this worker may write; None when it may not write."""
        return self.state.opening_number if isinstance(self.state, MayWriteAsLeader) else None

    @property
    def has_read_log(self) -> bool:
        """Whether this worker may write, and has read all lines that other leaders have written."""
        return isinstance(self.state, MayWriteAsLeader) and self.state.log_read is LogReadProgress.COMPLETE
