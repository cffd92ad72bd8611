"""Hostile frames over TCP, into a broker with little memory: sound ones with senseless values, and damaged ones.

    python -m tests.broker.fuzzing --frames 100000 --seed 1 [--protocol SASL_PLAINTEXT]

A finding is: a traceback, a warning or an exception that Python ignored in the broker's log, a broker that has died, or
one that does not answer a bystander, whose connection was there all the time.
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
from coterie.broker.security.users import Users
from coterie.wire.frames import encode_request, framed
from coterie.wire.schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE, request_schema
from tests.broker.conftest import RawClient, raw_client
from tests.wire.fuzzing import Corpus, damaged
from tests.wire.samples import sample

MEMORY = 2 * 1024 * 1024 * 1024
"""Address space of the broker; pyarrow alone reserves 1 GB of it, and uses hardly any."""
DEADLINE_S = 60
IGNORED = "Exception ignored in"
"""How Python begins to tell of an exception that nothing can catch (``sys.unraisablehook``)."""

PROGRAM = """
import asyncio, logging, os, resource, sys, threading
from pathlib import Path
from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings, Security, SecurityProtocol
from coterie.groups.classic.state import Limits

def end_with_parent():
    sys.stdin.read()
    os._exit(0)

threading.Thread(target=end_with_parent, daemon=True).start()
logging.basicConfig(level="INFO")
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
settings = BrokerSettings(
    data_path=Path(sys.argv[1]),
    partitions_max=500,
    limits=Limits(initial_rebalance_delay_ms=10),
    refusal_delay_ms=0,
    security=Security(protocol=SecurityProtocol(sys.argv[3])),
)
asyncio.run(serve(settings, ready=lambda host, port: print(port, flush=True)))
"""


class Victim:
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
def victim(folder: Path, protocol: str) -> Iterator[Victim]:
    log = folder / "broker.log"
    # Python ignores what a finaliser raises, such as the warning of a coroutine that was never awaited, and says so.
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder / "data"), str(MEMORY), protocol]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        assert process.stdout is not None
        port = process.stdout.readline()
        assert port, log.read_text()
        try:
            yield Victim(process, log, int(port))
        finally:
            process.kill()


def frames(rng: random.Random) -> Iterator[bytes]:
    """Without end: as many sound ones as damaged ones."""
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
    """Send ``count`` frames, some on each connection; what was seen, with the findings."""
    rng = random.Random(seed)
    endless = frames(rng)
    findings: list[str] = []
    connections = sent = 0
    started_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, victim(Path(folder), protocol) as broker:
        with raw_client(broker.port) as bystander:
            if protocol == "SASL_PLAINTEXT":
                Users(Path(folder) / "data" / "users.json").add("bystander", "secret")
                bystander.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN")
                bystander.ask(SASL_AUTHENTICATE, 2, auth_bytes=b"\0bystander\0secret")
            while sent < count and not broker.has_died:
                some = [next(endless) for _ in range(rng.choice((1, 3, 10, 30)))]
                _send(broker.port, b"".join(map(framed, some)))
                sent += len(some)
                connections += 1
                if connections % 50 == 0 and not _answers(bystander):
                    findings.append("a bystander is not answered")
                    break
            if broker.has_died or not _answers(bystander):
                findings.append(f"the broker has died: {broker.log()[-3000:]}")
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
    """As a peer that leaves when it has said what it had to say, and hears what the broker still has for it."""
    with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as peer:
        try:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65_536):
                pass
        except ConnectionError:
            return


def _tracebacks(log: str) -> list[str]:
    """Where each kind of exception came from, and how often."""
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


def _answers(bystander: RawClient) -> bool:
    try:
        return bool(bystander.ask(18, 3, client_software_name="bystander", client_software_version="1").api_keys)
    except (ConnectionError, TimeoutError):
        return False


def main() -> None:
    options = argparse.ArgumentParser(description="Send hostile frames; prints one JSON line, exits 1 on a finding.")
    options.add_argument("--frames", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--protocol", default="PLAINTEXT")
    asked = options.parse_args()
    result = run(asked.frames, asked.seed, asked.protocol)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.exit(1 if result["findings"] else 0)


if __name__ == "__main__":
    main()
