"""The settings of workers in a connect group."""

from dataclasses import dataclass

from coterie.lab.simulator.workers.settings import REBALANCE_TIMEOUT_MS, WorkerSetup

ASSIGNOR_NAME = "cooperative"
CONNECTION_GRACE_MS = 2_000
"""How long after an orderly end of a worker's connection the coordinator waits for another heartbeat of the worker
before it removes the worker's member. With the setting 0 a member is not removed for this reason."""
COMPUTATION_TIMEOUT_MS = 5_000
"""How long the member that the coordinator has chosen may take to compute and install a target assignment."""
SESSION_TIMEOUT_MAX_MS = 15_000
"""The longest session timeout that an operator sets for the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectWorkerSetup(WorkerSetup):
    """The settings of one worker in a connect group."""

    uses_server_assignor: bool = False
    """Whether the worker requests the assignor of the coordinator; otherwise it offers its own assignor."""
    coordinator_hold_max_ms: int = 5_000
    """How long the coordinator may hold back the response to a heartbeat of the worker."""
    connection_grace_ms: int = CONNECTION_GRACE_MS
    """How long after an orderly end of the worker's connection the coordinator waits before it removes the member; 0:
    the end has no effect. The group's setting is the upper limit."""
    rebalance_timeout_ms: int = REBALANCE_TIMEOUT_MS
    """How long the worker may take to give back revoked jobs."""
