"""`coterie connectors …`: a small client of Connect's REST API."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from coterie.cli.console import make_console
from coterie.cli.rest_request import send_request_or_raise
from coterie.nouns.errors import WorldError
from coterie.rest.path_encoding import encoded_path

# A trace or a name may contain the code of an emoji, such as :boom:.
_console = make_console()
_UNASSIGNED = "UNASSIGNED"
_STYLE_BY_STATE = {"RUNNING": "green", "FAILED": "red", "PAUSED": "yellow", "STOPPED": "yellow"}


def show_connectors(url: str) -> None:
    """Print all connectors, each with its type, state and worker, and the number of its tasks in each state.

    :raises WorldError: see :func:`.send_request_or_raise`.
    """
    # Two requests, because `expand=status` of Connect omits connectors without a status, as just after their creation.
    connectors: dict[str, Any] = send_request_or_raise(url, "GET", "/connectors?expand=info").json()
    statuses: dict[str, Any] = send_request_or_raise(url, "GET", "/connectors?expand=status").json()
    if not connectors:
        _console.print("There are no connectors yet; create one with `coterie connectors create FILE`.")
        return
    table = Table("connector", "type", "state", "worker", "tasks", box=None, header_style="bold")
    for name, expanded in sorted(connectors.items()):
        status = statuses.get(name, {}).get("status", {"connector": {"state": _UNASSIGNED}, "tasks": []})
        table.add_row(
            escape(name),
            expanded["info"].get("type", ""),
            _colored_state(status["connector"]["state"]),
            status["connector"]["worker_id"] if status["connector"]["state"] != _UNASSIGNED else "-",
            _state_counts_text([task["state"] for task in status["tasks"]]),
        )
    _console.print(table)


def create_connector(url: str, file: Path) -> None:
    """Send the JSON in ``file`` (``-`` is standard input) as ``POST /connectors``, and print what was created.

    :raises WorldError: when ``file`` cannot be read or is not JSON in UTF-8, or the request fails.
    """
    source_name = "Standard input" if str(file) == "-" else str(file)
    try:
        # UTF-8 in every locale, because JSON is UTF-8 (RFC 8259).
        text = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise WorldError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(
            f"{source_name} is not UTF-8: {error.reason} at byte {error.start}; convert it to UTF-8, for example "
            "with iconv"
        ) from error
    try:
        body = json.loads(text)
    except ValueError as error:
        raise WorldError(f"{source_name} is not valid JSON: {error}") from error
    created_connector = send_request_or_raise(url, "POST", "/connectors", body=body).json()
    name = escape(created_connector["name"])
    _console.print(f"Created {name}; check it in some seconds with `coterie connectors status {name} --url {url}`.")


def show_connector_status(url: str, name: str) -> None:
    """Print the state and trace of connector ``name`` and of each of its tasks.

    :raises WorldError: see :func:`.send_request_or_raise`.
    """
    status = send_request_or_raise(url, "GET", _connector_url_path(name, "/status")).json()
    connector = status["connector"]
    _console.print(f"{escape(status['name'])}: {_state_and_worker_text(connector)}")
    if connector.get("trace"):
        _console.print(connector["trace"], markup=False)
    for task in sorted(status["tasks"], key=lambda task: int(task["id"])):
        _console.print(f"  task {task['id']}: {_state_and_worker_text(task)}")
        if task.get("trace"):
            _console.print(task["trace"], markup=False)


def pause_connector(url: str, name: str) -> None:
    """Request that connector ``name`` is paused; does not wait until its tasks are paused.

    :raises WorldError: see :func:`.send_request_or_raise`.
    """
    send_request_or_raise(url, "PUT", _connector_url_path(name, "/pause"))
    _console.print(f"{escape(name)} is being paused.")


def resume_connector(url: str, name: str) -> None:
    """Request that connector ``name`` is resumed; does not wait until its tasks run.

    :raises WorldError: see :func:`.send_request_or_raise`.
    """
    send_request_or_raise(url, "PUT", _connector_url_path(name, "/resume"))
    _console.print(f"{escape(name)} is being resumed.")


def delete_connector(url: str, name: str) -> None:
    """Delete connector ``name``; does not wait until its tasks have stopped.

    :raises WorldError: see :func:`.send_request_or_raise`.
    """
    send_request_or_raise(url, "DELETE", _connector_url_path(name))
    _console.print(f"{escape(name)} is deleted; its output is kept.")


# -- helpers ----------------------------------------------------------------------------------------------------------


def _connector_url_path(name: str, path_suffix: str = "") -> str:
    """The path of connector ``name`` in the REST API, followed by ``path_suffix``."""
    return encoded_path(("connectors", name)) + path_suffix


def _state_and_worker_text(status: dict[str, Any]) -> str:
    """The state in ``status``, and the worker. For UNASSIGNED, the worker is left out: ``worker_id`` is then the
    leader, which wrote the status."""
    worker_text = "" if status["state"] == _UNASSIGNED else f" on {status['worker_id']}"
    return _colored_state(status["state"]) + worker_text


def _colored_state(state: str) -> str:
    """``state`` with rich's markup of its color."""
    style = _STYLE_BY_STATE.get(state)
    return f"[{style}]{state}[/{style}]" if style else state


def _state_counts_text(states: list[str]) -> str:
    """How often each of ``states`` occurs, such as "1 FAILED, 2 RUNNING", with colors; "none yet" without states."""
    return ", ".join(f"{states.count(state)} {_colored_state(state)}" for state in sorted(set(states))) or "none yet"
