"""Plays a case study of K848C over TCP: the commands of its transcript, without what the transcript prints.

Each worker has a connection of its own. A worker whose session ends is a killed process: its connection is closed, and
it has no jobs any more.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.wire.connect_group_jobs import job_arrays
from tests.broker.apis.connect_groups.worker import Worker, settle
from tests.broker.conftest import RawClient, wait_until
from tests.groups.connect.transcript import CONFIGURED, parse_assignments, parse_jobs

UNKNOWN_MEMBER_ID = 25
GRACE_MS = 50
"""The connection grace of the workers."""
JOBS = parse_jobs(CONFIGURED)
TRANSCRIPTS = Path(__file__).parents[3] / "groups" / "connect" / "case_studies"


class CaseStudy:
    """The workers of one transcript, and the broker at ``port``."""

    def __init__(self, name: str, port: int) -> None:
        self.workers: dict[str, Worker] = {}
        text = (TRANSCRIPTS / f"{name}.txt").read_text()
        self._commands = [line.removeprefix("> ") for line in text.splitlines() if line.startswith("> ")]
        self._delay_ms = 100 if "the delay ends" in self._commands else 60_000
        self._port = port
        self._clients: list[RawClient] = []

    def play(self) -> None:
        """Perform all commands.

        :raises OSError: when the broker is killed meanwhile.
        """
        patterns: Mapping[str, Callable[..., None]] = {
            r"given epoch \d+: (.*)": self._given,
            r"(\w+) joins": self._join,
            r"(\w+) heartbeats(?: with the epoch \d+)?": self._heartbeat,
            r"(\w+) computes (.*)": self._compute,
            r"the session of (\w+) ends": self._end_process,
            r"the delay ends": lambda: wait_until(self._has_to_compute),
            r"show": lambda: None,
        }
        for command in self._commands:
            (act,) = [(act, found) for one, act in patterns.items() if (found := re.fullmatch(one, command))]
            act[0](*act[1].groups())

    def continue_after_restart(self) -> None:
        """Let all workers connect again. Those whose process has ended are started, and join."""
        for worker in self.workers.values():
            worker.client = self._connect()
            if not worker.owned:
                worker.epoch = 0

    def settle(self) -> None:
        """Send heartbeats of all workers until all jobs are assigned; check that no job is assigned twice."""
        settle(list(self.workers.values()), JOBS)

    def describe(self) -> Any:
        """The entry of the group in a response to ConnectGroupDescribe, through a worker that runs."""
        return next(one for one in self.workers.values() if is_open(one.client)).describe()

    def close(self) -> None:
        for client in self._clients:
            client.socket.close()

    # -- commands -----------------------------------------------------------------------------------------------------

    def _given(self, text: str) -> None:
        targets = parse_assignments(text)
        leader, *others = sorted(targets, reverse=True)  # W3 leads in the case studies
        for name in (leader, *others):
            self._join(name)
        self._heartbeat(leader)
        self._compute(leader, text)
        for name in targets:
            self._heartbeat(name)
        assert {name: worker.owned for name, worker in self.workers.items()} == targets

    def _join(self, name: str) -> None:
        fields: dict[str, Any] = {
            "configured": {"value": {"config_offset": 5, **job_arrays(JOBS)}},
            "connection_grace_ms": GRACE_MS,
        }
        self.workers[name] = Worker(self._connect(), name, **fields)
        self._heartbeat(name)

    def _heartbeat(self, name: str) -> None:
        worker = self.workers[name]
        if not is_open(worker.client):
            worker.client = self._connect()  # its process has ended, and is started again
        answer = worker.beat(full=True)
        if answer.error_code == UNKNOWN_MEMBER_ID:
            worker.epoch, worker.owned = 0, NO_JOBS

    def _compute(self, name: str, text: str) -> None:
        worker = self.workers[name]
        prepared = worker.prepare()
        assert prepared.error_code == 0, prepared
        now, _, later = text.partition("; deferred: ")
        deferred = [
            {"member_id": one, "delay_ms": self._delay_ms, **job_arrays(jobs)}
            for one, jobs in parse_assignments(later).items()
        ]
        targets: dict[str, Jobs] = {str(one): jobs for one, jobs in parse_assignments(now).items()}
        installed = worker.install(prepared.group_epoch, targets, deferred=deferred)
        assert installed.error_code == 0, installed

    def _end_process(self, name: str) -> None:
        worker = self.workers[name]
        worker.client.socket.close()
        worker.owned = NO_JOBS
        wait_until(lambda: name not in {member.member_id for member in self.describe().members})

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _has_to_compute(self) -> bool:
        group = self.describe()
        return bool(group.group_epoch > group.assignment_epoch)

    def _connect(self) -> RawClient:
        client = RawClient(self._port)
        self._clients.append(client)
        return client


def is_open(client: RawClient) -> bool:
    """Whether this side has not closed the connection."""
    return client.socket.fileno() != -1
