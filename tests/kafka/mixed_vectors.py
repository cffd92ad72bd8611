"""Bytes exchanged between Kafka's own worker and ours inside JoinGroup and SyncGroup, recorded as test vectors.

To record them again:

    COTERIE_RECORD=/tmp/mixed pytest -m "" tests/kafka/test_jvm_connect.py
    python -m tests.kafka.mixed_vectors /tmp/mixed
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coterie.nouns.jobs import ConnectorName, Jobs
from coterie.wire.connect import ConnectProtocol, WorkerAssignment
from coterie.wire.connect_bytes import CONNECTOR_INSTANCE, decode_version_and_assignment, decode_version_and_metadata
from tests.worker.composed import CapturedBytes

VECTORS = Path(__file__).parents[1] / "wire" / "vectors" / "connect-mixed.json"


def record(folder: str | None, when: str, captured: Iterable[CapturedBytes]) -> None:
    """Write one message of each kind as ``when``.json into ``folder``; None writes nothing."""
    if folder is None:
        return
    by_kind: dict[tuple[object, ...], dict[str, Any]] = {}
    for one in captured:
        if one.protocol == ConnectProtocol.STATIC.wire_name:
            continue  # Only our workers use this protocol.
        decoded = _metadata(one.data) if one.what == "metadata" else _assignment(one.data)
        writer = one.member if one.what == "metadata" else decoded["leader"]
        by = "jvm" if writer.startswith("connect-") else "ours"
        kind = (by, one.what, one.protocol, *map(bool, decoded.values()))
        message = {"by": by, "what": one.what, "protocol": one.protocol, "hex": one.data.hex(), "decoded": decoded}
        by_kind.setdefault(kind, {"when": when, **message})
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{when}.json").write_text(json.dumps(list(by_kind.values())))


def _metadata(data: bytes) -> dict[str, Any]:
    version, metadata = decode_version_and_metadata(data)
    allocation = _shown(metadata.allocation) if metadata.allocation is not None else None
    return {
        "version": version,
        "url": metadata.url,
        "config_offset": metadata.config_offset,
        "allocation": allocation,
    }


def _assignment(data: bytes) -> dict[str, Any]:
    version, assignment = decode_version_and_assignment(data)
    return {"version": version, **_shown(assignment)}


def _shown(assignment: WorkerAssignment) -> dict[str, Any]:
    return {
        "error": assignment.error,
        "leader": assignment.leader,
        "leader_url": assignment.leader_url,
        "config_offset": assignment.config_offset,
        "assigned": _pairs(assignment.assigned),
        "revoked": _pairs(assignment.revoked),
        "delay_ms": assignment.delay_ms,
    }


def _pairs(jobs: Jobs) -> list[tuple[ConnectorName, list[int]]]:
    """Each connector with the numbers of its tasks, -1 for the connector itself."""
    numbers = sorted(
        [(name, CONNECTOR_INSTANCE) for name in jobs.connectors] + [(at.connector, at.task) for at in jobs.tasks]
    )
    return [(name, [number for of, number in numbers if of == name]) for name in dict(numbers)]


if __name__ == "__main__":
    recorded = [message for file in sorted(Path(sys.argv[1]).iterdir()) for message in json.loads(file.read_text())]
    VECTORS.write_text("[\n" + ",\n".join(map(json.dumps, recorded)) + "\n]\n")
