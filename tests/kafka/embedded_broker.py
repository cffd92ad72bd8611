"""Coterie's own broker as a process that can be killed and restarted on the same port and data."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.ports import free_port

PROGRAM = """
import asyncio, os, sys, threading
from pathlib import Path
from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings
from coterie.broker.transactions import coordinator
from coterie.cli.garbage_collection import raise_broker_gc_thresholds
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.transaction_messages import TransactionSettings

def end_with_parent():
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=end_with_parent, daemon=True).start()
raise_broker_gc_thresholds()
expiration_ms = int(sys.argv[4])
coordinator._EXPIRY_INTERVAL_MS = min(coordinator._EXPIRY_INTERVAL_MS, expiration_ms)
limits = ClassicGroupSettings(initial_rebalance_delay_ms=300, session_timeout_min_ms=1_000)
settings = BrokerSettings(
    data_path=Path(sys.argv[1]),
    port=int(sys.argv[2]),
    connections_max=int(sys.argv[3]),
    group_limits=limits,
    connect_groups=ConnectGroupSettings(initial_rebalance_delay_ms=300, session_timeout_ms=30_000),
    transactions=TransactionSettings(transactional_id_expiration_ms=expiration_ms),
    auto_create_topics=sys.argv[5] == "True",
)
asyncio.run(serve(settings, ready=lambda host, port: print(port, flush=True)))
"""
START_TIMEOUT_S = 60


class EmbeddedBroker:
    def __init__(
        self,
        data: Path,
        *,
        connections_max: int = 2_000,
        transactional_id_expiration_ms: int = 604_800_000,
        auto_create_topics: bool = True,
    ) -> None:
        self._data = data
        self._connections_max = connections_max
        self._transactional_id_expiration_ms = transactional_id_expiration_ms
        self._auto_create_topics = auto_create_topics
        self._process: subprocess.Popen[str] | None = None
        self.port = free_port()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker has not been started"
        return self._process.pid

    def start(self) -> None:
        """Start or restart the broker; returns when it listens."""
        settings = (
            self.port,
            self._connections_max,
            self._transactional_id_expiration_ms,
            self._auto_create_topics,
        )
        command = [sys.executable, "-c", PROGRAM, str(self._data), *map(str, settings)]
        with (self._data.parent / f"{self._data.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        assert port, f"the broker did not start; see {log.name}: {Path(log.name).read_text()[-2000:]}"
        self.port = int(port)

    def delete_data(self) -> None:
        """Delete all data of the broker, which must not run."""
        shutil.rmtree(self._data)

    def kill(self) -> None:
        """Kill the process, as in a power failure, but without losing disk writes."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(START_TIMEOUT_S)
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None
