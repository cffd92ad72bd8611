"""What the user wants of a connector, and what is true of a job: Connect's own words."""

from enum import StrEnum


class TargetState(StrEnum):
    """What the user wants of a connector (config topic, ``target-state-<connector>``)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class State(StrEnum):
    """What is true of a connector or task (status topic). ``DESTROYED`` is written as a tombstone."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    STOPPED = "STOPPED"
    DESTROYED = "DESTROYED"
