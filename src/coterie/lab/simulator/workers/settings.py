"""The settings of simulated workers: those that all workers share, and those of one worker."""

from dataclasses import dataclass

from coterie.nouns.ids import GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import Jobs

GROUP_ID = GroupId("fleet")
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 1_000
SCHEDULED_REBALANCE_DELAY_MS = 20_000
"""The scheduled rebalance delay in the seeds that have one; a connect group's operator may set half of it."""
STOP_GRACE_MS = 2_000
"""The longest time that the stop of a task may take."""
REQUEST_TIMEOUT_MS = 30_000
REQUEST_DELAY_MAX_MS = 8_000
"""By how much a request whose connection broke may arrive late."""
ROUND_INTERVAL_MS = 2_000
"""The time between two rounds that move jobs, in the seeds that have such an interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """The settings of one worker. A process uses the settings that its worker has when the process starts."""

    instance_id: InstanceId | None = None
    """The instance id of a static member; None for a dynamic member."""
    claims: Jobs | None = None
    """The only jobs that the worker may run; None: it may run all jobs that no worker claims."""


def url_of_worker(worker_name: str) -> WorkerUrl:
    """The URL of the REST endpoints of the worker ``worker_name``."""
    return WorkerUrl(f"http://{worker_name}/")


def worker_name_of(url: WorkerUrl) -> str:
    """The name of the worker with the URL ``url``; the inverse of `url_of_worker`."""
    return url.removeprefix("http://").removesuffix("/")
