"""The state of one process of a worker that the invariant checks read: its herder, its tasks and its assignments."""

from abc import ABC, abstractmethod
from typing import Self

from coterie.herder.seams import TaskSpec
from coterie.herder.state import Drain, Herder
from coterie.lab.simulator.sim_process import SimProcess
from coterie.lab.simulator.workers.settings import WorkerSetup
from coterie.lab.simulator.world import World
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Jobs


class WorkerProcess(SimProcess, ABC):
    """One process of a worker, as far as the invariant checks read it. Its subclasses and `runtime.SimTaskRuntime`
    write these fields."""

    def __init__(
        self, world: World, live_processes: dict[str, Self], service: str, herder: Herder, setup: WorkerSetup
    ) -> None:
        name = service
        while name in live_processes:
            name += "'"
        super().__init__(world, name, service, live_processes)
        self.herder = herder
        self.worker_setup = setup
        self.running_tasks: dict[ConnectorTaskId, TaskSpec] = {}
        """The running tasks. A task runs from the herder's order to start it until its query has died or its stop has
        ended. A task whose start fails does not run."""
        self.is_ending = False
        """Whether the process was ordered to shut down or to relaunch itself, or the group has refused its membership
        permanently."""
        self.is_draining = False
        """Whether the worker was ordered to drain: to release its jobs and then to leave, permanently or until it has
        relaunched itself."""
        self.resumed_at_ms = 0
        """When the process last resumed after a pause; 0 if it was never paused."""
        self.assigned_jobs: Jobs = NO_JOBS
        """The jobs that the worker owns by the assignments that it has received; none after a loss of the
        membership."""

    @property
    def relaunches_after_drain(self) -> bool:
        """Whether the process will relaunch itself at the end of its drain, and then join as a new member."""
        return self.herder.lifecycle.drain == Drain(relaunches=True)

    @property
    @abstractmethod
    def member_id(self) -> MemberId:
        """The member id that the process has in the group or last had; empty before the first one."""

    @property
    @abstractmethod
    def session_ends_ms(self) -> int:
        """The time until which the coordinator may have the process as a member: one session timeout after the process
        sent the newest request that the coordinator answered as the request of a member."""

    @property
    @abstractmethod
    def lease_ends_ms(self) -> int:
        """The time until which the process may start tasks: the end of its lease, which begins when the process sends
        the same request as for :attr:`session_ends_ms`."""

    @property
    @abstractmethod
    def leadership_number(self) -> int:
        """A number that orders the leaderships of the group: of two processes that act as the leader, the one that
        became the leader earlier has the lower number. In a classic group the last generation that the process has
        received (-1 before the first); in a connect group the leader epoch, 0 when the process is no member."""

    @property
    def instance_id(self) -> InstanceId | None:
        """The worker's instance id; None if it is a dynamic member."""
        return self.worker_setup.instance_id

    @property
    def claims(self) -> Jobs | None:
        """The jobs that the worker claims, the only ones that it may run; None: it may run all jobs that no worker
        claims."""
        return self.worker_setup.claims
