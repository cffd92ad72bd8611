"""The benchmark of the coordinator's steps runs, and prints only values that its page explains; no test checks the
speed."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_reconcile

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_each_case_has_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_reconcile.main(["--jobs", "20", "--members", "4"]) == 0
    points = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [point["case"] for point in points] == ["assign", "revoke-half", "acknowledge-half", "settled", "settled"]
    page = PAGE.read_text()
    for point in points:
        assert [key for key in point if f"`{key}`" not in page] == []
    assert all(point["reconcile_ms"] > 0 and point["step_ms"] > 0 for point in points[:3])
    assert [point["jobs_per_member"] for point in points[3:]] == [3, 30]
