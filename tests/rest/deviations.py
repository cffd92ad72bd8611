"""The deliberate deviations of the responses from Kafka Connect's; `docs/rest.md` has the reason of each."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from coterie.rest.access import NOT_LOGGED_IN_MESSAGE
from tests.rest.recorded_calls import RecordedCall, body_of, is_body_equal, is_call_body_equal, is_response_equal

_JSON_LIBRARY_MESSAGE = re.compile(
    r"Unexpected (end-of-input|character)|Cannot (deserialize|construct)|Unrecognized (field|token)|Non-standard token"
    r"|Invalid UTF-8|Cannot invoke \""
)
_UNREADABLE_IN_CONNECT = {"a%2Fb", "a/b", "a%b", "a\\b"}
"""Connectors that the recorder created and could not delete."""
UNUSABLE_OFFSETS = (
    "offsets that a connector cannot use: of another form, of the partition null, after the end of a Kafka partition"
)
_ESCAPED_NAME = re.compile(r"%25|%5C|%2E", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """A group of calls to which Coterie responds in another way than Connect."""

    title: str
    """The first cell of its row in `docs/rest.md`."""
    applies: Callable[[RecordedCall], bool]
    is_expected: Callable[[RecordedCall, httpx.Response], bool]
    """Whether the response is the one that Coterie should give."""


def _is_error(response: httpx.Response, status: int) -> bool:
    """Whether ``response`` is an error in Connect's form."""
    body = body_of(response)
    return (
        response.status_code == status
        and isinstance(body, dict)
        and body.keys() == {"error_code", "message"}
        and body["error_code"] == status
        and bool(body["message"])
    )


def _is_bad_request(_: RecordedCall, response: httpx.Response) -> bool:
    return _is_error(response, 400)


def _sent_json(call: RecordedCall) -> Any:
    """The JSON in the request; None when it is not JSON."""
    try:
        return json.loads(call.content or b"null")
    except (ValueError, RecursionError):
        return None


def _sent_name(call: RecordedCall) -> str:
    """The connector's name in the body or in the path of ``call``."""
    body = _sent_json(call)
    name = body.get("name") if call.method == "POST" and isinstance(body, dict) else None
    return name if isinstance(name, str) else call.path.removeprefix("/connectors/").partition("/")[0]


def _is_html_error(call: RecordedCall) -> bool:
    is_html = call.response_headers.get("content-type", "").startswith("text/html")
    return call.status == 400 and (is_html or call.body == "") and not _ESCAPED_NAME.search(call.path)


def _has_null_in_config(call: RecordedCall) -> bool:
    body = _sent_json(call)
    if not isinstance(body, dict) or call.method not in ("POST", "PUT") or "validate" in call.path:
        return False
    config = body.get("config") if call.method == "POST" else body
    return isinstance(config, dict) and None in config.values() and not call.path.startswith("/admin")


def _names_connectors_that_connect_keeps(call: RecordedCall) -> bool:
    return isinstance(call.body, list | dict) and bool(_UNREADABLE_IN_CONNECT & set(map(str, call.body)))


def _has_only_deletable(call: RecordedCall, response: httpx.Response) -> bool:
    if isinstance(call.body, list):
        kept: Any = [name for name in call.body if name not in _UNREADABLE_IN_CONNECT]
    else:
        kept = {name: value for name, value in call.body.items() if name not in _UNREADABLE_IN_CONNECT}
    return response.status_code == call.status and is_body_equal(kept, body_of(response))


def _is_escaped_name_served(call: RecordedCall, response: httpx.Response) -> bool:
    if call.method == "DELETE":
        return response.status_code == 204
    return response.status_code == 200 or (call.section == "paths" and _is_error(response, 404))


def _changes_name_by_patch(call: RecordedCall) -> bool:
    """Whether the PATCH changes the name of put1, or the recorded config has the changed name."""
    is_after_patch = call.path.startswith("/connectors/put1/config") and "other" in str(call.body)
    return call.recording == "connect-rest-2.json" and call.method in ("GET", "PATCH") and is_after_patch


def _has_name_of_path(call: RecordedCall, response: httpx.Response) -> bool:
    if call.method == "PATCH" and "name" in _sent_json(call):
        return _is_error(response, 400)
    expected = json.loads(json.dumps(call.body).replace("other", "put1"))
    return response.status_code == call.status and is_body_equal(expected, body_of(response))


def _is_offsets_patch(call: RecordedCall) -> bool:
    return call.method == "PATCH" and call.path.partition("?")[0].endswith("/offsets")


def _is_refused_for_same_reason(call: RecordedCall, response: httpx.Response) -> bool:
    is_reason_recorded = not call.message.startswith("Failed to")
    return _is_error(response, 400) and (not is_reason_recorded or body_of(response)["message"] == call.message)


_JAVA_NULL_MESSAGE = re.compile(r', "Invalid value null for configuration [^"]*Cannot invoke (?:[^"\\]|\\.)*"')


def _without_java_null(text: str) -> str:
    """``text``, the result of a validation in JSON, without the messages of checks that got Java's null."""
    count = len(_JAVA_NULL_MESSAGE.findall(text))
    text = _JAVA_NULL_MESSAGE.sub("", text)
    return re.sub(r'"error_count": (\d+)', lambda found: f'"error_count": {int(found[1]) - count}', text)


def _without_wrong_class(text: str) -> str:
    """``text``, the result of a validation in JSON, with one message and the value null for a class that is missing or
    of another kind."""
    text = re.sub(r"Class class ([\w.]+) does not implement the \w+ interface", r"no plug-in \1", text)
    text = re.sub(r'"value": "java\.[\w.]+"', '"value": null', text)
    return re.sub(r"Invalid value ([\w.]+) for [\w. ]+: Class \1 could not be found\.[^\"]*", r"no plug-in \1", text)


def _has_error_at(key: str) -> Callable[[RecordedCall, httpx.Response], bool]:
    """Whether the response is the result of a validation whose only errors are those of ``key``."""

    def is_expected(_: RecordedCall, response: httpx.Response) -> bool:
        body = body_of(response)
        wrong = [info["value"]["name"] for info in body.get("configs", ()) if info["value"]["errors"]]
        return response.status_code == 200 and wrong == [key]

    return is_expected


def _is_unresolved_config_refused(call: RecordedCall, response: httpx.Response) -> bool:
    """Whether a write is refused with the reason, after which reads have the previous config; a validation has one
    error."""
    if call.path.endswith("/validate"):
        return _has_error_at("topic")(call, response)
    if call.method == "PUT":
        reason = call.message if call.status == 500 else "no environment variable NO_SUCH"
        return _is_error(response, 400) and reason in body_of(response)["message"]
    return response.status_code == call.status and "NO_SUCH" not in response.text


def _is_equal_after(change: Callable[[str], str]) -> Callable[[RecordedCall, httpx.Response], bool]:
    """Whether the response has the recorded body after ``change`` of both as JSON."""

    def is_expected(call: RecordedCall, response: httpx.Response) -> bool:
        expected, actual = (json.loads(change(json.dumps(body))) for body in (call.body, body_of(response)))
        return response.status_code == call.status and is_call_body_equal(call, expected, actual)

    return is_expected


DEVIATIONS = (
    Deviation(
        title="a body that is not JSON, or JSON of another structure",
        applies=lambda call: (
            call.content is not None
            and (
                (call.status == 500 and _JSON_LIBRARY_MESSAGE.match(call.message) is not None)
                or b"\\ud800" in call.content
            )
        ),
        is_expected=_is_bad_request,
    ),
    Deviation(
        title="a path that is not text (`//`, `%zz`, `%2F`), a `Content-Type` that is no media type",
        applies=_is_html_error,
        is_expected=_is_bad_request,
    ),
    Deviation(
        title="a path with `%25`, `%5C`, `%2E` or `%2E%2E`",
        applies=lambda call: call.status == 400 and _ESCAPED_NAME.search(call.path) is not None,
        is_expected=_is_escaped_name_served,
    ),
    Deviation(
        title="a path with `%25`, `%5C`, `%2E` or `%2E%2E`",
        applies=_names_connectors_that_connect_keeps,
        is_expected=_has_only_deletable,
    ),
    Deviation(
        title="a connector with a slash in its name, or with a name of more than 255 bytes in UTF-8",
        applies=lambda call: (
            call.section == "names"
            and call.status < 400
            and ("/" in _sent_name(call) or len(_sent_name(call).encode()) > 255)
        ),
        is_expected=lambda call, response: _is_error(response, 400 if call.method == "POST" else 404),
    ),
    Deviation(
        title="a config with a reference that its config provider cannot resolve",
        applies=lambda call: "${env:NO_SUCH}" in str(call.body) or call.note == "a provider that fails",
        is_expected=_is_unresolved_config_refused,
    ),
    Deviation(
        title="a config with the value null",
        applies=_has_null_in_config,
        is_expected=_is_bad_request,
    ),
    Deviation(
        title="a path, or a header, of more than 8 KiB",
        applies=lambda call: call.status in (414, 431),
        is_expected=lambda _, response: response.status_code in (200, 404),
    ),
    Deviation(
        title="a PATCH of a config that changes `name`",
        applies=_changes_name_by_patch,
        is_expected=_has_name_of_path,
    ),
    Deviation(
        title=UNUSABLE_OFFSETS,
        applies=lambda call: (
            _is_offsets_patch(call) and call.status == 500 and not _JSON_LIBRARY_MESSAGE.match(call.message)
        ),
        is_expected=_is_refused_for_same_reason,
    ),
    Deviation(
        title=UNUSABLE_OFFSETS,
        applies=lambda call: (
            _is_offsets_patch(call)
            and call.status == 200
            and (b'"partition": null' in (call.content or b"") or b"1000000000000" in (call.content or b""))
        ),
        is_expected=_is_bad_request,
    ),
    Deviation(
        title="a restart of a task of a stopped connector",
        applies=lambda call: call.note == "of one that is stopped" and call.path.endswith("/tasks/0/restart"),
        is_expected=lambda _, response: _is_error(response, 404),
    ),
    Deviation(
        title="`PUT /connector-plugins/{plugin}/config/validate` without `connector.class`",
        applies=lambda call: call.path.endswith("/validate") and _sent_json(call) == {},
        is_expected=_is_bad_request,
    ),
    Deviation(
        title="`GET /connector-plugins/{plugin}/config` with a Java class that is no plug-in",
        applies=lambda call: call.path == "/connector-plugins/java.lang.String/config",
        is_expected=lambda _, response: _is_error(response, 404),
    ),
    Deviation(
        title="a required key without a value that has a check",
        applies=lambda call: _JAVA_NULL_MESSAGE.search(json.dumps(call.body)) is not None,
        is_expected=_is_equal_after(_without_java_null),
    ),
    Deviation(
        title="a Java class that is no plug-in, as the value of a key",
        applies=lambda call: "does not implement the" in json.dumps(call.body),
        is_expected=_is_equal_after(_without_wrong_class),
    ),
    Deviation(
        title="an `Authorization` header that cannot be decoded",
        applies=lambda call: "Illegal base64" in call.message,
        is_expected=lambda _, response: (
            (response.status_code, response.text) == (401, NOT_LOGGED_IN_MESSAGE)
            and "www-authenticate" in response.headers
        ),
    ),
    Deviation(
        title="`GET /metrics`",
        applies=lambda call: (call.method, call.path) == ("GET", "/metrics"),
        is_expected=lambda _, response: (
            response.status_code == 200 and "# TYPE kafka_connect_app_info_start_time_ms gauge" in response.text
        ),
    ),
    Deviation(
        title="a body of more than 8 MiB",
        applies=lambda call: len(call.content or b"") > 8 * 1024 * 1024,
        is_expected=lambda _, response: _is_error(response, 413),
    ),
)


TEST_BY_DEVIATION = {
    "a read while the worker starts": (
        "rest/test_app.py::test_a_read_while_the_worker_starts_is_503_and_may_be_sent_again"
    ),
    "a request while a listener handles 512 others": (
        "rest/test_server.py::test_a_request_above_the_limit_is_503_in_connects_form_and_is_logged"
    ),
    "`POST /connectors` with `initial_offsets`": (
        "rest/test_offsets.py::test_a_connector_is_created_at_its_initial_offsets"
    ),
    "the status of a job that no worker runs": (
        "rest/test_unassigned.py::test_jobs_of_a_departed_worker_are_shown_as_unassigned_with_the_reason"
    ),
    "a request while the group rebalances or has no leader": (
        "rest/test_app.py::test_a_write_during_a_rebalance_waits_for_its_end"
    ),
    "a response with the info or the config of a connector": (
        "rest/test_versions.py::test_every_worker_shows_the_same_version_which_changes_with_each_write"
    ),
    "`Location` of a created connector": (
        "rest/test_app.py::test_any_worker_accepts_any_write_and_every_worker_shows_it_at_once"
    ),
    "a change of the offsets of a `PythonSource`": (
        "rest/test_offsets.py::test_a_python_source_has_no_offsets_and_refuses_each_change"
    ),
    "`PUT /connectors/{connector}/fence` with a good signature": (
        "rest/test_signatures.py::test_a_request_to_fence_tasks_needs_a_signature_and_is_refused"
    ),
    "a connector with a `tasks.max` above 1,000": (
        "rest/test_plugins.py::test_a_connector_may_have_at_most_a_thousand_tasks"
    ),
    "a config without `connector.class`": (
        "rest/test_access.py::test_the_audit_line_of_a_config_without_a_class_does_not_quote_its_values"
    ),
    "a config whose `connector.class` is no plug-in": (
        "rest/test_plugins.py::test_a_class_that_is_no_plugin_is_refused_with_the_names_of_the_plugins"
    ),
    "an unknown method": "rest/test_endpoints.py::test_every_path_has_exactly_the_methods_of_the_table",
    "a 401": "rest/test_access.py::test_each_role_may_use_exactly_the_endpoints_of_the_table_at_each_listener",
    "`GET` of a config by a user who may not write configs": (
        "rest/test_access.py::test_readers_see_secrets_masked_and_an_admin_reads_exactly_what_was_put"
    ),
    "a mutation with a foreign `Origin`": "rest/test_csrf.py::test_a_mutation_of_another_origin_is_403",
}
"""The test that shows a deviation, in the folder ``tests``, by the first cell of its row in `docs/rest.md`. The other
rows are shown by the recorded calls of :data:`DEVIATIONS`."""


def documented_deviations() -> list[str]:
    """The first cells of all rows in the tables of deviations of `docs/rest.md`, each of which must have a reason."""
    titles: list[str] = []
    in_table = False
    for line in (Path(__file__).parents[2] / "docs" / "rest.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if not line.startswith("| "):
            in_table = in_table and line.startswith("|---")
        elif cells[1:2] == ["Connect"]:
            in_table = True
        elif in_table:
            assert len(cells) == 4, line
            assert all(cells), line
            titles.append(cells[0].removeprefix("| "))
    return titles


def deviation_of(call: RecordedCall) -> Deviation | None:
    """The deviation that applies to ``call``; None when its response must be equal to Connect's."""
    found = [deviation for deviation in DEVIATIONS if deviation.applies(call)]
    assert len(found) <= 1, (str(call), [deviation.title for deviation in found])
    return found[0] if found else None


def _is_of_connector_without_alter_offsets(call: RecordedCall) -> bool:
    """Whether Connect's message says that the connector may keep its offsets in another system. This is no deviation:
    Connect's message names a connector class without the method ``alterOffsets``. Coterie has no such classes."""
    return "framework-managed offsets" in str(call.body)


def is_as_expected(call: RecordedCall, response: httpx.Response) -> bool:
    """Whether ``response`` is Connect's, or, for a call of a deviation, Coterie's."""
    if _is_of_connector_without_alter_offsets(call):
        change = "altered" if call.method == "PATCH" else "reset"
        message = f"The offsets for this connector have been {change} successfully"
        return (response.status_code, body_of(response)) == (200, {"message": message})
    deviation = deviation_of(call)
    return is_response_equal(call, response) if deviation is None else deviation.is_expected(call, response)
