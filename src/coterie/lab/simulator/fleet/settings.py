"""The settings of this simulation: those that all workers share, and those of one worker."""

from dataclasses import dataclass

from coterie.nouns.ids import GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.wire.connect import ConnectProtocol

GROUP = GroupId("fleet")
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 1_000
DELAY_MAX_MS = 20_000
STOP_GRACE_MS = 2_000
REQUEST_TIMEOUT_MS = 30_000
LATE_MAX_MS = 8_000
ROUND_INTERVAL_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The settings of one worker. A process uses the settings that its worker has when the process starts."""

    instance_id: InstanceId | None = None
    protocol: ConnectProtocol = ConnectProtocol.STATIC
    claims: Jobs | None = None


def url_of(home: str) -> WorkerUrl:
    return WorkerUrl(f"http://{home}/")


def home_of(url: WorkerUrl) -> str:
    return url.removeprefix("http://").removesuffix("/")
