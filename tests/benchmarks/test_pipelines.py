"""The benchmarks of pipelines run at small sizes, and print only what their page explains."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_latency, bench_pipeline, bench_resplit, inputs
from benchmarks.inputs import ParquetFolder
from benchmarks.pipelines import compared

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def lines(capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], *options: str) -> list[Any]:
    """What a benchmark prints, once it has ended well."""
    code = main(options)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0, printed
    page = PAGE.read_text()
    assert [key for line in printed for key in line if f"`{key}`" not in page] == []
    return printed


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_rows_go_from_kafka_to_parquet_in_a_worker_and_in_plain_spark(
    spark_jars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("--rows", "8000", "--batches", "4", "--case", "kafka-parquet", "--no-at-least-once")
    [line] = lines(capsys, bench_pipeline.main, *small)
    assert line["ratio"] == pytest.approx(line["ours"] / line["stock"], abs=0.001)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("main", "options"),
    [
        (bench_pipeline.main, ("--rows", "40000", "--batches", "5")),
        (bench_latency.main, ("--records", "40", "--warm-up", "20")),
        (bench_resplit.main, ("--partitions", "20", "--files", "200")),
    ],
    ids=["pipeline", "latency", "resplit"],
)
def test_each_case_runs(
    main: Callable[[Sequence[str]], int],
    options: tuple[str, ...],
    spark_jars: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in lines(capsys, main, *options):
        assert "ours" in line


def test_rows_that_are_lost_doubled_or_foreign_are_counted(tmp_path: Path) -> None:
    inputs.make_files(tmp_path / "out", files=2, rows=10)
    inputs.make_files(tmp_path / "out" / "more", files=1, rows=2, first=9)
    sink = ParquetFolder(tmp_path / "out")
    assert sink.wrong(range(12)) == "1 rows are lost, 1 doubled, 0 foreign, of 12"
    assert sink.wrong(range(10)) == "0 rows are lost, 1 doubled, 1 foreign, of 10"


def test_each_system_is_compared_with_coterie() -> None:
    figures = {"ours": {"x": 3.0}, "stock": {"x": 2.0}, "at_least_once": {"x": 4.0}}
    assert compared(figures, "x", prefix="p_") == {
        "p_ours": 3.0,
        "p_stock": 2.0,
        "p_at_least_once": 4.0,
        "p_ratio": 1.5,
        "p_ratio_at_least_once": 0.75,
    }
