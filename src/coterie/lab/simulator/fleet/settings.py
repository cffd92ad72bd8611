"""The settings of one worker in a classic group."""

from dataclasses import dataclass

from coterie.lab.simulator.workers.settings import WorkerSetup
from coterie.wire.connect import ConnectProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicWorkerSetup(WorkerSetup):
    """The settings of one worker in a classic group."""

    protocol: ConnectProtocol = ConnectProtocol.STATIC
    """The newest protocol that the worker offers."""
