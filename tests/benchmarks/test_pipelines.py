"""The benchmarks of pipelines run at small sizes, and print only values that their page explains."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    bench_density,
    bench_latency,
    bench_move,
    bench_neighbours,
    bench_pipeline,
    bench_resplit,
    bench_small_batch,
    inputs,
)
from benchmarks.inputs import ParquetFolder, Topic
from benchmarks.paced import BatchTimings, lateness_s
from benchmarks.pipelines import ParquetFiles, Pipeline, with_ratios

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def lines(capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], *options: str) -> list[Any]:
    """The printed lines of a benchmark that succeeded."""
    code = main(options)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == 0, printed
    page = PAGE.read_text()
    assert [key for line in printed for key in line if f"`{key}`" not in page] == []
    return printed


@pytest.mark.soak
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_rows_are_copied_from_kafka_to_parquet_by_a_worker_and_by_plain_spark(
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
        (bench_density.main, ("--ladder", "2", "4", "--settle", "2", "--intervals", "4", "--idle", "10")),
        (bench_small_batch.main, ("--settle", "3", "--intervals", "5")),
        (bench_neighbours.main, ("--rows", "500000", "--tasks", "3", "--settle", "5")),
        (bench_move.main, ("--tasks", "6", "--settle", "2")),
    ],
    ids=["pipeline", "latency", "resplit", "density", "small_batch", "neighbours", "move"],
)
def test_each_case_runs(
    main: Callable[[Sequence[str]], int],
    options: tuple[str, ...],
    spark_jars: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for line in lines(capsys, main, *options):
        assert "ours" in line


def test_rotation_is_switched_off_only_for_a_source_that_can_wait_for_rows(tmp_path: Path) -> None:
    sources = (Topic(name="t", partitions=1), ParquetFiles(path=tmp_path, files=1))
    topic, files = (
        Pipeline(name="p", source=source, sink=ParquetFolder(tmp_path), rotate=False).connector() for source in sources
    )
    assert topic["sink.rotate.interval.ms"] == "0"
    assert "sink.rotate.interval.ms" not in files, "validation rejects the key"


def test_lost_duplicated_and_unexpected_rows_are_counted(tmp_path: Path) -> None:
    inputs.make_files(tmp_path / "out", files=2, rows=10)
    inputs.make_files(tmp_path / "out" / "more", files=1, rows=2, first=9)
    sink = ParquetFolder(tmp_path / "out")
    assert sink.row_errors(range(12)) == "1 rows are lost, 1 duplicated, 0 unexpected, of 12"
    assert sink.row_errors(range(10)) == "0 rows are lost, 1 duplicated, 1 unexpected, of 10"


def test_the_lateness_of_a_batch_starts_at_the_interval_after_the_previous_batch() -> None:
    planned = {0: 10.0, 1: 11.25, 2: 12.0, 3: 15.5}
    assert lateness_s(planned, 1, 0, 100) == [0.25, 0, 2.5]
    assert lateness_s(planned, 1, 12.5, 100) == [2.5], "the other batches were planned earlier"


def test_tasks_keep_up_if_batches_arrive_and_few_are_late() -> None:
    def window(late_s: Sequence[float], due: int) -> BatchTimings:
        return BatchTimings(lateness_s=late_s, batches=len(late_s), due=due, cpu_ms_a_batch=1, busy_share=0.5)

    assert window([0.1] * 100, 100).keeps_up(1)
    assert not window([0.1] * 90, 100).keeps_up(1), "batches are missing"
    assert not window([0.1] * 90 + [0.3] * 10, 100).keeps_up(1), "one in ten is late"
    assert window([0.1] * 90 + [0.3] * 10, 100).keeps_up(10)


def test_each_system_is_compared_with_coterie() -> None:
    figures = {"ours": {"x": 3.0}, "stock": {"x": 2.0}, "at_least_once": {"x": 4.0}}
    assert with_ratios(figures, "x", prefix="p_") == {
        "p_ours": 3.0,
        "p_stock": 2.0,
        "p_at_least_once": 4.0,
        "p_ratio": 1.5,
        "p_ratio_at_least_once": 0.75,
    }
