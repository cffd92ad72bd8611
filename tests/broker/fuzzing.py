"""Hostile frames over TCP, into a broker with little memory: valid frames with random values, and damaged ones.

    python -m tests.broker.fuzzing --frames 100000 --seed 1 [--protocol SASL_PLAINTEXT]

A finding is: a traceback, a warning or an exception that Python ignored in the broker's log, a broker process that has
ended, or a broker that does not respond to a bystander, another connection that is open all the time.
"""

import argparse
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.broker.apis.table import APIS
from coterie.broker.security.users import BrokerUsersFile
from coterie.wire.frames import encode_request, with_length
from coterie.wire.schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE, request_schema
from tests.broker.conftest import RawClient, raw_client
from tests.wire.fuzzing import Corpus, damaged
from tests.wire.samples import sample

MEMORY = 2 * 1024 * 1024 * 1024
"""Address space of the broker; pyarrow alone reserves 1 GB of it and uses little of that."""
DEADLINE_S = 60
IGNORED = "Exception ignored in"
"""Beginning of Python's message about an exception that no code can catch (``sys.unraisablehook``)."""

PROGRAM = """
import asyncio, logging, os, resource, sys, threading
from pathlib import Path
from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings, SecuritySettings, SecurityProtocol
from coterie.groups.classic.state import ClassicGroupSettings

def end_with_parent():
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=end_with_parent, daemon=True).start()
logging.basicConfig(level="INFO")
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
settings = BrokerSettings(
    data_path=Path(sys.argv[1]),
    partitions_max=500,
    group_limits=ClassicGroupSettings(initial_rebalance_delay_ms=10),
    failed_authentication_delay_ms=0,
    security=SecuritySettings(protocol=SecurityProtocol(sys.argv[3])),
)
asyncio.run(serve(settings, ready=lambda host, port: print(port, flush=True)))
"""


class FuzzedBroker:
    """The broker as a process, with its log."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, port: int) -> None:
        self._process = process
        self._log = log
        self.port = port

    @property
    def rss_max_mb(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024

    @property
    def has_died(self) -> bool:
        return self._process.poll() is not None

    def log(self) -> str:
        return self._log.read_text(errors="replace")


@contextmanager
def fuzzed_broker(folder: Path, protocol: str) -> Iterator[FuzzedBroker]:
    log = folder / "broker.log"
    # Python prints and ignores what a finaliser raises, such as the warning of a coroutine that was never awaited.
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder / "data"), str(MEMORY), protocol]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        assert process.stdout is not None
        port = process.stdout.readline()
        assert port, log.read_text()
        try:
            yield FuzzedBroker(process, log, int(port))
        finally:
            process.kill()


def frames(rng: random.Random) -> Iterator[bytes]:
    """An endless sequence with as many valid frames as damaged ones."""
    corpus = Corpus(rng)
    keys = sorted(APIS)
    while True:
        if rng.random() < 0.5:
            yield damaged(rng.choice(corpus.requests), rng, corpus.requests)
        else:
            key = rng.choice(keys)
            schema = request_schema(key, rng.choice(APIS[key].versions))
            yield encode_request(sample(schema, rng), correlation_id=1, client_id=rng.choice((None, "fuzz")))[1]


def run(count: int, seed: int, protocol: str) -> dict[str, object]:
    """Send ``count`` frames, some on each connection; returns counts and the findings."""
    rng = random.Random(seed)
    endless = frames(rng)
    findings: list[str] = []
    connections = sent = 0
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, fuzzed_broker(Path(folder), protocol) as broker:
        with raw_client(broker.port) as bystander:
            if protocol == "SASL_PLAINTEXT":
                BrokerUsersFile(Path(folder) / "data" / "users.json").add("bystander", "secret")
                bystander.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN")
                bystander.ask(SASL_AUTHENTICATE, 2, auth_bytes=b"\0bystander\0secret")
            while sent < count and not broker.has_died:
                some = [next(endless) for _ in range(rng.choice((1, 3, 10, 30)))]
                _send(broker.port, b"".join(map(with_length, some)))
                sent += len(some)
                connections += 1
                if connections % 50 == 0 and not is_served(bystander):
                    findings.append("the broker does not respond to the bystander")
                    break
            if broker.has_died or not is_served(bystander):
                findings.append(f"the broker has ended: {broker.log()[-3000:]}")
        log = broker.log()
        findings += _tracebacks(log)
        return {
            "frames": sent,
            "connections": connections,
            "seed": seed,
            "protocol": protocol,
            "seconds": round(time.perf_counter() - started_s, 1),
            "rss_max_mb": broker.rss_max_mb if not broker.has_died else None,
            "log_lines_a_connection": round(log.count("\n") / connections, 2),
            "tracebacks": log.count("Traceback"),
            "findings": findings,
        }


def _send(port: int, data: bytes) -> None:
    """Send ``data`` and close the sending side, then read what the broker sends."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as peer:
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass
        except ConnectionError:
            return


def _tracebacks(log: str) -> list[str]:
    """Each kind of exception with its origin and count."""
    kinds: Counter[str] = Counter()
    place = ""
    for line in log.splitlines():
        if line.startswith(IGNORED):
            place = line
        text = line.strip("+-| ")
        if text.startswith("File "):
            place = text.rpartition("/")[2]
        elif place and re.match(r"[\w.]+(Error|Exception|Warning)\b", text):
            kinds[f"{text[:300]} ({place})"] += 1
            place = ""
    found = [f"{count} x {kind}" for kind, count in kinds.most_common()]
    return found or [log[-3_000:]] if any(sign in log for sign in ("Traceback", "Bug in Coterie", IGNORED)) else []


def is_served(bystander: RawClient) -> bool:
    try:
        return bool(bystander.ask(18, 3, client_software_name="bystander", client_software_version="1").api_keys)
    except (ConnectionError, TimeoutError):
        return False


def main() -> None:
    options = argparse.ArgumentParser(description="Send hostile frames; prints one JSON line, exits 1 on a finding.")
    options.add_argument("--frames", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--protocol", default="PLAINTEXT")
    arguments = options.parse_args()
    result = run(arguments.frames, arguments.seed, arguments.protocol)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(1 if result["findings"] else 0)


if __name__ == "__main__":
    main()
