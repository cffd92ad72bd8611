"""The benchmark of the REST API runs, prints only values that its page explains, and names each missed target."""

import json
from pathlib import Path

import pytest

from benchmarks import bench_rest

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
SMALL = ["--connectors", "20", "--requests", "5", "--idle-s", "0"]
COMMON = {"bench", "case", "connectors", "tasks", "requests", "size_bytes", "load_before", "load_after"}


@pytest.mark.parametrize(("case", "target_ms", "exit_code"), [("expand", 1e9, 0), ("metrics", 0.0, 1)])
def test_a_small_run_and_the_exit_code_of_check(
    case: str, target_ms: float, exit_code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_rest, "TARGETS_MS", dict.fromkeys(bench_rest.TARGETS_MS, target_ms))
    assert bench_rest.main([*SMALL, "--check", "--case", case]) == exit_code
    captured = capsys.readouterr()
    figures = json.loads(captured.out)
    assert (figures["connectors"], figures["tasks"], figures["requests"]) == (20, 60, 5)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    assert [key for key in figures.keys() - COMMON if f"`{key}`" not in PAGE.read_text()] == []
    missed = [f"{key} is {figures[key]} ms; the target is below 0 ms" for key in bench_rest.TARGETS_MS]
    assert captured.err.splitlines() == missed * exit_code


def test_the_targets_are_those_of_the_page() -> None:
    assert bench_rest.missed_targets({"p99_ms": 199.9, "longest_stall_ms": 49.9}) == []
    assert bench_rest.missed_targets({"p99_ms": 200.0, "longest_stall_ms": 50.0}) == [
        "p99_ms is 200.0 ms; the target is below 200 ms",
        "longest_stall_ms is 50.0 ms; the target is below 50 ms",
    ]
