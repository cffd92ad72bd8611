"""The assignor's benchmark runs, and prints only values that its page explains; no test checks the speed."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_assignor

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_every_event_has_the_optimal_number_of_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_assignor.main(["--jobs", "1000", "--workers", "10", "--no-peer"]) == 0
    points = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [point["event"] for point in points] == list(bench_assignor.EVENTS)
    page = PAGE.read_text()
    for point in points:
        assert point["moves"] == point["optimum"] >= point["mstar"]
        assert [key for key in ("jobs", "workers", "count_ms", "ms") if key not in point] == []
        assert [key for key in point if f"`{key}`" not in page] == []
    assert points[1]["moves"] == 0


def test_one_event_can_be_selected(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_assignor.main(["--jobs", "500", "--workers", "5", "--event", "stable", "--no-peer"]) == 0
    (point,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (point["jobs"], point["workers"], point["event"]) == (500, 5, "stable")
