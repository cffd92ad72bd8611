"""The target state of a connector and the status of a job, by Connect's names."""

from enum import StrEnum


class TargetState(StrEnum):
    """The state that the user set for a connector (config topic, key ``target-state-<connector>``)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class State(StrEnum):
    """The actual state of a connector or task (status topic). ``DESTROYED`` is written as a tombstone."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    STOPPED = "STOPPED"
    DESTROYED = "DESTROYED"
