"""Calls recorded from a real Kafka Connect 4.3.1, and the comparison of their responses with a worker's."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import httpx

from coterie.worker.logger_levels import COTERIE_LOGGER_BY_CONNECT_NAME

VECTORS = Path(__file__).parent / "vectors"
RECORDINGS = ("connect-rest.json", "connect-rest-2.json")

_CUT_TEXT = re.compile(r"^(?P<beginning>.*)…\((?P<size>\d+) characters\)$", re.DOTALL)
"""A long text in a recording is cut: its beginning and its size are recorded."""
_VOLATILE = ("worker_id", "version", "commit", "kafka_cluster_id", "trace", "task.class", "last_modified")
"""Fields that contain another value in each cluster."""
_HEADERS_FOR_BROWSERS = ("access-control-allow-origin", "vary", "x-frame-options")
_FILE_SOURCE = {
    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "tasks.max": "1",
    "file": "/data/in.txt",
    "topic": "rec-lines",
}
"""The config to which the recorder added the long value or the many keys of the section "large"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One request and Connect's response."""

    recording: str
    number: int
    """The position in the recording, from 0."""
    section: str
    method: str
    path: str
    headers: Mapping[str, str]
    """The request's headers."""
    content: bytes | None
    """The request's body; None: no body."""
    status: int
    response_headers: Mapping[str, str]
    """Those of the response's headers that the recorder kept, in lower case."""
    body: Any
    """The response's JSON; its text, if it is no JSON."""
    note: str

    def __str__(self) -> str:
        return f"{self.recording} {self.number}: {self.method} {self.path[:100]} {(self.content or b'')[:200]!r}"

    @property
    def message(self) -> str:
        """The message of an error in Connect's format; empty for another response."""
        return str(self.body.get("message", "")) if isinstance(self.body, dict) and self.status >= 400 else ""


def read_recording(name: str, folder: Path = VECTORS) -> list[RecordedCall]:
    """The calls of the recording ``name``, in their order."""
    recorded: Sequence[dict[str, Any]] = json.loads((folder / name).read_text())["rest"]
    return [_call(name, number, one) for number, one in enumerate(recorded)]


def _call(recording: str, number: int, recorded: dict[str, Any]) -> RecordedCall:
    if recorded.get("section") in ("create", "names") and isinstance(recorded["body"], dict):
        # Here the recorder did not wait for the tasks of a connector.
        recorded["body"] = {key: "…" if value == [] else value for key, value in recorded["body"].items()}
    has_body = bool(recorded["args"])
    sent = {"Content-Type": "application/json" if has_body else None, **recorded.get("sent", {})}
    return RecordedCall(
        recording=recording,
        number=number,
        section=recorded.get("section", ""),
        method=recorded["method"],
        path=_whole(recorded["path"]),
        headers={name: _whole(value) for name, value in sent.items() if value is not None},
        content=_content(recorded) if has_body else None,
        status=recorded["status"],
        response_headers=recorded.get("headers", {}),
        body=recorded["body"],
        note=recorded.get("note", ""),
    )


def _whole(text: str) -> str:
    """``text``, with the last character of a cut text repeated to its size."""
    cut = _CUT_TEXT.match(text)
    return text if cut is None else cut["beginning"].ljust(int(cut["size"]), cut["beginning"][-1])


def _content(recorded: dict[str, Any]) -> bytes:
    text: str = recorded["args"].removeprefix("-d").removeprefix(" ")
    if recorded.get("note") == "bytes that are no UTF-8":
        return text.encode().replace(rb"\xff", b"\xff")
    cut = _CUT_TEXT.match(text)
    if cut is None or not text.startswith('{"connector.class"'):
        return _whole(text).encode()
    if recorded["note"] == "5000 keys":
        return json.dumps({**_FILE_SOURCE, **{f"key.{number}": "v" for number in range(5000)}}).encode()
    size = int(recorded["note"].removeprefix("a value of ").removesuffix(" characters"))
    return json.dumps({**_FILE_SOURCE, "x": "v" * size}).encode()


# -- comparison -------------------------------------------------------------------------------------------------------


def body_of(response: httpx.Response) -> Any:
    """The JSON of ``response``; its text, if it is no JSON, as in Connect's response 401.

    Connect's response to a path that it does not know is JSON without a media type.
    """
    if _media_type(response) in ("application/json", "") and response.status_code != 401:
        with contextlib.suppress(ValueError):
            return response.json()
    return response.text


def are_headers_equal(call: RecordedCall, response: httpx.Response) -> bool:
    """Whether ``response`` has the recorded ``Content-Type``, names the same resource in ``Location``, and has the same
    methods in ``Allow`` and the same headers for browsers."""
    expected = call.response_headers
    if "content-type" in expected and _media_type(response) != expected["content-type"].partition(";")[0]:
        return False
    if "location" in expected:
        # Connect leaves some characters of a name unescaped (%, ;).
        location = urlsplit(response.headers.get("location", "")).path
        if call.body["name"] not in (location.removeprefix("/connectors/"), unquote(location[len("/connectors/") :])):
            return False
    if any(response.headers.get(name) != expected.get(name) for name in _HEADERS_FOR_BROWSERS):
        return False
    return all(
        _methods(expected[name]) == _methods(response.headers.get(name, ""))
        for name in ("allow", "access-control-allow-methods")
        if name in expected
    )


def _media_type(response: httpx.Response) -> str:
    return cast(str, response.headers.get("content-type", "")).partition(";")[0]


def _methods(text: str) -> set[str]:
    return set(text.replace(" ", "").split(","))


def is_response_equal(call: RecordedCall, response: httpx.Response) -> bool:
    """Whether ``response`` is that of ``call``, except for values that differ in each cluster."""
    if call.note.startswith("at once") and call.path.endswith("/status") and response.status_code == 200:
        return _is_status_without_state_equal(call, body_of(response))
    return (
        response.status_code == call.status
        and are_headers_equal(call, response)
        and is_call_body_equal(call, call.body, body_of(response))
    )


def _is_status_without_state_equal(call: RecordedCall, actual: Any) -> bool:
    """Whether ``actual`` is the status of a connector that was asked for immediately after a write, except for the
    states: they may have changed already, and with them whether there is a status and whether it has tasks."""
    expected = call.body if call.status == 200 else {"name": call.path.split("/")[2], "type": "source"}
    return (
        isinstance(actual, dict)
        and actual.keys() == {"name", "connector", "tasks", "type"}
        and (actual["name"], actual["type"]) == (expected["name"], expected["type"])
        and all(job.keys() - {"id", "trace"} == {"state", "worker_id", "version"} for job in _jobs_in_status(actual))
        and [job.get("id") for job in actual["tasks"]] in ([], [0])
    )


def _jobs_in_status(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return [status["connector"], *status["tasks"]]


def is_body_equal(expected: Any, actual: Any) -> bool:
    """Whether ``actual`` is the recorded body ``expected``, of which long parts are cut."""
    return _is_like(_comparable(expected), _comparable(actual))


def is_call_body_equal(call: RecordedCall, expected: Any, actual: Any) -> bool:
    """Whether ``actual`` is ``expected``, the body of ``call``."""
    if call.section == "validate" and isinstance(expected, dict) and "configs" in expected and "configs" in actual:
        is_whole = call.note.startswith("whole")
        return comparable_infos(expected, is_whole=is_whole) == comparable_infos(actual, is_whole=is_whole)
    if call.path.rstrip("/") == "/admin/loggers" and call.status == 200:  # Python's loggers are there, too.
        actual = _connect_loggers(actual)
        expected = _connect_loggers(expected) if isinstance(expected, dict) else expected
    if isinstance(expected, str) and expected.startswith(("{", "[")):  # A long JSON is cut without a mark.
        return json.dumps(actual).startswith(expected)
    return is_body_equal(expected, actual)


def _connect_loggers(loggers: Mapping[str, Any]) -> dict[str, Any]:
    """The loggers of Java among ``loggers``, without those that Coterie always has under Connect's names."""
    loggers = {name: state for name, state in loggers.items() if name not in COTERIE_LOGGER_BY_CONNECT_NAME}
    return {name: state for name, state in loggers.items() if name.startswith("org.") or name in ("root", "…")}


def comparable_infos(body: Mapping[str, Any], *, is_whole: bool) -> object:
    """``body``, the result of a validation, as the recording contains it: only the first calls were recorded with all
    keys and definitions; otherwise the recording has the keys with a value or an error."""
    if is_whole:
        return body
    values = [
        info["value"] for info in body["configs"] if info["value"]["value"] is not None or info["value"]["errors"]
    ]
    is_of_alias = [value["name"].startswith(("transforms.", "predicates.")) for value in values]
    if any(is_of_alias):  # Connect keeps the keys of one transform in a hash table.
        first, count = is_of_alias.index(True), sum(is_of_alias)
        values[first : first + count] = sorted(values[first : first + count], key=lambda value: str(value["name"]))
    return {**body, "configs": values}


def _comparable(body: Any, key: str = "") -> Any:
    """``body`` without what differs in each cluster."""
    if key in _VOLATILE and body is not None:
        return f"some {key}"
    if isinstance(body, dict):
        return {name: _comparable(value, name) for name, value in body.items()}
    if key == "message" and isinstance(body, str) and body.startswith("Connector config {"):
        return sorted(re.split(r"[{}, ]+", body))  # Java writes the keys of a map in the order of their hashes.
    if key == "message" and isinstance(body, str):
        # Java's list of all connectors, with the files that contain them.
        body = body.removeprefix("org.apache.kafka.connect.errors.ConnectException: ")
        return body.partition(", available connectors are")[0]
    if isinstance(body, list):
        return sorted((_comparable(item) for item in body), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(body, str) and set(body.split(", ")) <= {"HEAD", "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}:
        return sorted(body.split(", "))
    return body


def _is_like(expected: Any, actual: Any) -> bool:
    if isinstance(expected, int) and isinstance(actual, dict):
        return expected == len(actual)
    if isinstance(expected, str) and expected.endswith("…"):
        return not isinstance(actual, str) or actual.startswith(expected[:-1])
    if isinstance(expected, dict) and isinstance(actual, dict):
        kept = expected.keys() - {"…"}
        is_whole = "…" not in expected
        return (kept == actual.keys() if is_whole else kept <= actual.keys()) and all(
            _is_like(expected[name], actual[name]) for name in kept
        )
    if isinstance(expected, list) and isinstance(actual, list):
        kept_items = [item for item in expected if not (isinstance(item, str) and item.startswith("…"))]
        if len(kept_items) == len(expected):
            return len(expected) == len(actual) and all(map(_is_like, expected, actual))
        return all(any(_is_like(item, other) for other in actual) for item in kept_items)
    return bool(expected == actual)
