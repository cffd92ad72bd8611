"""The target state of a connector and the status of a job, by Connect's names."""

from enum import StrEnum


class TargetState(StrEnum):
    """The state that a user has set for a connector (config topic, key ``target-state-<connector>``)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    """No task runs; the task configs remain."""
    STOPPED = "STOPPED"
    """No task runs, and the connector has no task configs (KIP-875)."""


class JobState(StrEnum):
    """The actual state of a connector or task (status topic). ``DESTROYED`` is written as a tombstone."""

    UNASSIGNED = "UNASSIGNED"
    """No worker runs the job."""
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    STOPPED = "STOPPED"
    DESTROYED = "DESTROYED"
