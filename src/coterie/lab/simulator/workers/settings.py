"""The settings of simulated workers: those that all workers share, and those of one worker."""

from dataclasses import dataclass

from coterie.nouns.ids import GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import Jobs

GROUP_ID = GroupId("fleet")
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 1_000
DELAY_MAX_MS = 20_000
"""The scheduled rebalance delay, in seeds with a delay."""
STOP_GRACE_MS = 2_000
"""How long a task may take to stop."""
REQUEST_TIMEOUT_MS = 30_000
REQUEST_DELAY_MAX_MS = 8_000
"""How late a request may arrive whose connection broke."""
ROUND_INTERVAL_MS = 2_000
"""The time between two rounds that move jobs, in seeds with an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The settings of one worker. A process uses the settings that its worker has when the process starts."""

    instance_id: InstanceId | None = None
    claims: Jobs | None = None
    """None: the worker may run all jobs that no worker claims."""


def url_of_worker(worker_name: str) -> WorkerUrl:
    """The URL of the worker's REST endpoints."""
    return WorkerUrl(f"http://{worker_name}/")


def worker_name_of(url: WorkerUrl) -> str:
    """The name of the worker with this URL."""
    return url.removeprefix("http://").removesuffix("/")
