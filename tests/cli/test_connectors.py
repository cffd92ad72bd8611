"""`coterie connectors`, with a fake worker's responses."""

import json
from typing import Any

import pytest

from coterie.cli import connectors
from tests.cli.answers import answering

STATUS: dict[str, Any] = {
    "name": "orders",
    "connector": {"state": "RUNNING", "worker_id": "h:1"},
    "tasks": [
        {"id": 1, "state": "UNASSIGNED", "worker_id": "h:2", "trace": "no worker claims it"},
        {"id": 0, "state": "RUNNING", "worker_id": "h:1"},
    ],
}


def test_an_unassigned_task_is_shown_without_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(json.dumps(STATUS).encode()) as url:
        connectors.show_connector_status(url, "orders")
    assert capsys.readouterr().out.splitlines() == [
        "orders: RUNNING on h:1",
        "  task 0: RUNNING on h:1",
        "  task 1: UNASSIGNED",
        "no worker claims it",
    ]


def test_the_list_shows_no_worker_for_an_unassigned_connector(capsys: pytest.CaptureFixture[str]) -> None:
    status = {**STATUS, "connector": {"state": "UNASSIGNED", "worker_id": "h:2"}}
    with answering(json.dumps({"orders": {"info": {"type": "source"}, "status": status}}).encode()) as url:
        connectors.show_connectors(url)
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["orders", "source", "UNASSIGNED", "-"]
