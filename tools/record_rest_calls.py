"""Records the calls of a file of recorded calls again, from any live worker: Kafka Connect's or Coterie's.

    python -m tools.record_rest_calls http://127.0.0.1:8083 tests/rest/vectors/connect-rest.json new.json

The new file has the same format and the same requests, and the worker's responses. The differences from the recorded
responses are printed; values that differ in each cluster (versions, worker ids, traces) do not count. The worker must
have the connectors and the data of the recording (its ``meta``), and no connectors yet.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from tests.rest.recorded_calls import RecordedCall, body_of, is_response_equal, read_recording
from tests.rest.replay import replay
from tests.rest.served import WorkerClient

KEPT_HEADERS = (
    "content-type",
    "location",
    "allow",
    "vary",
    "x-frame-options",
    "access-control-allow-origin",
    "access-control-allow-methods",
)
TEXT_SIZE_MAX = 2_000
"""Of a longer text in a response, the beginning is recorded."""
SETTLE_S = 5.0
"""How long a read is repeated until its response is the expected one."""
REQUEST_TIMEOUT_S = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecording:
    """A worker's responses to recorded calls."""

    root: Mapping[str, Any]
    """The worker's response to ``GET /``: its version and its cluster."""
    responses: Sequence[tuple[RecordedCall, httpx.Response]]

    @property
    def different(self) -> Sequence[tuple[RecordedCall, httpx.Response]]:
        """The calls whose response is another one than the recorded one."""
        return [(call, response) for call, response in self.responses if not is_response_equal(call, response)]

    def write(self, calls_file: Path, new_file: Path) -> None:
        """Write the recording into ``new_file``; the requests are those of ``calls_file``."""
        recording = json.loads(calls_file.read_text())
        meta = {**recording["meta"], "captured": f"{datetime.now(tz=UTC):%Y-%m-%d}", "root": self.root}
        rest = [_recorded(recording["rest"][call.number], response) for call, response in self.responses]
        new_file.write_text(json.dumps({"meta": meta, "rest": rest}, indent=1) + "\n")


async def record(
    worker: WorkerClient,
    calls: Sequence[RecordedCall],
    *,
    is_as_expected: Callable[[RecordedCall, httpx.Response], bool] = is_response_equal,
) -> NewRecording:
    """Send ``calls`` to ``worker`` in their order. A read is repeated for a time until ``is_as_expected``."""
    root = (await worker.get("/")).json()
    responses = [one async for one in replay(worker, calls, is_as_expected=is_as_expected, within_s=SETTLE_S)]
    return NewRecording(root=root, responses=responses)


def _recorded(call: Mapping[str, Any], response: httpx.Response) -> dict[str, Any]:
    """``call``, an entry of a recording, with ``response`` in place of its response."""
    request = {key: call[key] for key in ("section", "method", "path", "args", "sent", "note") if key in call}
    kept = {*KEPT_HEADERS, *call.get("headers", ())}
    return {
        **request,
        "status": response.status_code,
        "headers": {name: value for name, value in response.headers.items() if name in kept},
        "body": _cut(body_of(response)),
    }


def _cut(body: Any) -> Any:
    """``body`` with the beginnings of its long texts."""
    if isinstance(body, dict):
        return {name: _cut(value) for name, value in body.items()}
    if isinstance(body, list):
        return [_cut(item) for item in body]
    return f"{body[:TEXT_SIZE_MAX]}…" if isinstance(body, str) and len(body) > TEXT_SIZE_MAX else body


async def _record(url: str, calls: Sequence[RecordedCall]) -> NewRecording:
    # A connection per request: Connect closes the connection after some refused requests.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=REQUEST_TIMEOUT_S, limits=limits) as client:
        return await record(WorkerClient(client, url.rstrip("/")), calls)


def main() -> int:
    """Returns the exit code: 0 if all responses are as recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the address of the worker")
    parser.add_argument("calls", type=Path, help="a file of recorded calls")
    parser.add_argument("new", type=Path, help="the file to write")
    parser.add_argument("--sections", nargs="+", help="record only the calls of these sections")
    options = parser.parse_args()
    calls = [
        call
        for call in read_recording(options.calls.name, options.calls.parent)
        if options.sections is None or call.section in options.sections
    ]
    new = asyncio.run(_record(options.url, calls))
    new.write(options.calls, options.new)
    for call, response in new.different:
        sys.stdout.write(
            f"{call}\n  recorded {call.status} {str(call.body)[:300]}\n"
            f"  now      {response.status_code} {response.text[:300]}\n"
        )
    sys.stdout.write(f"{len(new.different)} of {len(calls)} responses differ from {options.calls}; see {options.new}\n")
    return 1 if new.different else 0


if __name__ == "__main__":
    sys.exit(main())
