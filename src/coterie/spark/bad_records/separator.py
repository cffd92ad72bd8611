"""Separates the good and the bad rows of a batch with one evaluation of the rows.

An expression of a user may be not deterministic. If a batch's good rows came from one evaluation and its bad rows from
another, some rows would be lost and others duplicated. So a sink uses one of three ways: the driver reads all rows once
and separates them (:meth:`BadRowSeparator.separate`); Spark stores the evaluated rows until both kinds are written
(:func:`rows_evaluated_once`); or one plan of Spark writes both kinds (:meth:`BadRowSeparator.with_bad_row_metrics`).
"""

import json
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coterie.spark.arrow import read_arrow_batches
from coterie.spark.bad_records.error_columns import BAD_ROW_COLUMN, bad_rows

SPOOL_MEMORY_BYTES_MAX = 4 << 20
"""Largest size, in bytes, of a batch's bad rows that stay in memory. When there are more, all bad rows of the batch are
written to an unnamed temporary file."""
_METRICS_NAME = "coterie_bad_rows"
"""The name under which Spark reports the metrics that :meth:`BadRowSeparator.with_bad_row_metrics` adds."""
_SUMMARY_FIELDS = ("stage", "message", "topic", "partition", "offset", "timestamp")
"""The fields of the first bad row that a :class:`BadRowSummary` contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRowSummary:
    """The number of bad rows of a batch, and fields of the first bad row for the log."""

    count: int = 0
    first_bad_row_fields: tuple[tuple[str, object], ...] = ()
    """Fields of the first bad row, as pairs of name and value; empty when there is no bad row."""


class SeparatedRows:
    """The good and the bad rows of a batch as Arrow record batches, which Spark computes when they are read. Read
    :meth:`read_good_rows` to its end before :meth:`read_bad_rows`, each once: the bad rows are collected and counted
    while the good rows are read. Must be closed."""

    def __init__(self, arrow_batches: Generator[pa.RecordBatch, None, None]) -> None:
        """``arrow_batches`` is closed by :meth:`close`."""
        self._arrow_batches = arrow_batches
        self._spool: tempfile.SpooledTemporaryFile[bytes] | None = None
        """The bad rows; None while there are none."""
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.bad_row_summary_so_far = BadRowSummary()
        """The number of bad rows, and the first of them, among the record batches that :meth:`read_good_rows` has read
        so far."""

    def read_good_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the good rows in their order, without the column ``BAD_ROW_COLUMN``. Can be called once."""
        for arrow_batch in self._arrow_batches:
            if BAD_ROW_COLUMN not in arrow_batch.schema.names:
                yield arrow_batch
                continue
            bad_row_column = arrow_batch.column(BAD_ROW_COLUMN)
            other_columns = arrow_batch.drop_columns([BAD_ROW_COLUMN])
            if bad_row_column.null_count == len(bad_row_column):
                yield other_columns
            else:
                self._spool_and_count_bad_rows(
                    pa.RecordBatch.from_struct_array(bad_row_column.filter(bad_row_column.is_valid()))
                )
                yield other_columns.filter(bad_row_column.is_null())

    def read_bad_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the bad rows that :meth:`read_good_rows` has collected, in their order, with the columns of
        ``BAD_ROW_TYPE``. Can be called once."""
        if self._writer is None or self._spool is None:
            return
        self._writer.close()
        self._spool.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._spool, mode="r"))

    def close(self) -> None:
        """Delete the collected bad rows, and end the reading of the rows. :attr:`bad_row_summary_so_far` remains
        valid."""
        if self._spool is not None:
            self._spool.close()
        self._arrow_batches.close()

    def _spool_and_count_bad_rows(self, bad_rows: pa.RecordBatch) -> None:
        """Store ``bad_rows`` for :meth:`read_bad_rows`, and count them in the summary."""
        if self._writer is None:
            self._spool = tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES_MAX)  # noqa: SIM115 - it is closed by close()
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._spool, mode="w"), bad_rows.schema)
            self.bad_row_summary_so_far = BadRowSummary(
                first_bad_row_fields=tuple((name, bad_rows.column(name)[0].as_py()) for name in _SUMMARY_FIELDS)
            )
        self._writer.write_batch(bad_rows)
        self.bad_row_summary_so_far = BadRowSummary(
            count=self.bad_row_summary_so_far.count + bad_rows.num_rows,
            first_bad_row_fields=self.bad_row_summary_so_far.first_bad_row_fields,
        )


class BadRowSeparator:
    """Separates the good and the bad rows of one batch, ``classified_rows``, which have the column ``BAD_ROW_COLUMN``.
    Each attempt to write the batch evaluates the rows again, in one of three ways: after :meth:`separate`, while the
    result is read; in :meth:`rows_evaluated_once`; or in the plan of :meth:`with_bad_row_metrics`.

    ``is_small`` and the result of ``has_bounded_spark_partitions`` determine how :meth:`separate` reads the rows to the
    driver: see :func:`read_arrow_batches`. ``has_bounded_spark_partitions`` is called at each evaluation.
    """

    def __init__(
        self, classified_rows: DataFrame, *, is_small: bool, has_bounded_spark_partitions: Callable[[], bool]
    ) -> None:
        self._classified_rows = classified_rows
        self._is_small = is_small
        self._has_bounded_partitions = has_bounded_spark_partitions
        self._last_separated_rows: SeparatedRows | None = None
        self._counted_summary: BadRowSummary | None = None

    def separate(self) -> SeparatedRows:
        """The separated rows of one new evaluation, which takes place while the result is read. The caller must close
        the result."""
        self._last_separated_rows = SeparatedRows(
            read_arrow_batches(
                self._classified_rows,
                is_small=self._is_small,
                has_bounded_spark_partitions=self._has_bounded_partitions(),
            )
        )
        return self._last_separated_rows

    @property
    def bad_row_summary_so_far(self) -> BadRowSummary:
        """The number of bad rows and the first of them, according to the last evaluation, as far as its rows were read;
        count 0 before the first evaluation."""
        return self._counted_summary or (
            BadRowSummary() if self._last_separated_rows is None else self._last_separated_rows.bad_row_summary_so_far
        )

    @contextmanager
    def rows_evaluated_once(self) -> Iterator[DataFrame]:
        """Context manager: all rows with the column ``BAD_ROW_COLUMN``, evaluated once and stored until the end of the
        block: see :func:`rows_evaluated_once`. Sets :attr:`bad_row_summary_so_far`."""
        with rows_evaluated_once(self._classified_rows) as rows:
            self._counted_summary = summarize_bad_rows(rows)
            yield rows

    def with_bad_row_metrics(self) -> DataFrame:
        """All rows with the column ``BAD_ROW_COLUMN``, for a sink that writes good and bad rows by one plan of Spark.
        Metrics of the plan count the bad rows: after the plan has run, the sink must call
        :meth:`set_summary_from_metrics`."""
        bad_row = F.col(BAD_ROW_COLUMN)
        # Without this option, the JSON lacks the fields that are null: a file's row has no topic.
        summary_json = F.to_json(
            F.struct(*(bad_row[name].alias(name) for name in _SUMMARY_FIELDS)), {"ignoreNullFields": "false"}
        )
        bad_summary_json = F.when(bad_row.isNotNull(), summary_json)
        metrics = F.count(bad_row).alias("count"), F.first(bad_summary_json, ignorenulls=True).alias("first")
        return self._classified_rows.observe(_METRICS_NAME, *metrics)

    def set_summary_from_metrics(self, written_rows: DataFrame) -> None:
        """Set :attr:`bad_row_summary_so_far` from the metrics of ``written_rows``, a DataFrame that was derived from
        the result of :meth:`with_bad_row_metrics`. When ``written_rows`` has not run, or has no bad row, the attribute
        keeps its former value: count 0, unless an earlier evaluation has found bad rows."""
        frame: Any = written_rows
        metrics = frame._jdf.queryExecution().observedMetrics().get(_METRICS_NAME)
        if metrics.isDefined() and (count := metrics.get().getLong(0)):
            self._counted_summary = BadRowSummary(
                count=count, first_bad_row_fields=tuple(json.loads(metrics.get().getString(1)).items())
            )


@contextmanager
def rows_evaluated_once(classified_rows: DataFrame) -> Iterator[DataFrame]:
    """Context manager: ``classified_rows``, evaluated once and stored by Spark until the end of the block.

    If an executor is lost, its rows are lost too. The batch then fails; Spark does not evaluate the rows again.
    """
    rows: Any = classified_rows.localCheckpoint(eager=True)
    try:
        yield rows
    finally:
        rows._jdf.queryExecution().analyzed().rdd().unpersist(False)


def summarize_bad_rows(classified_rows: DataFrame) -> BadRowSummary:
    """The number of bad rows in ``classified_rows``, and the first of them. ``classified_rows`` have the column
    ``BAD_ROW_COLUMN``, and Spark has stored them (:func:`rows_evaluated_once`)."""
    first_summary = F.first(F.struct(*_SUMMARY_FIELDS))
    row = bad_rows(classified_rows).agg(F.count("*").alias("count"), first_summary.alias("first")).collect()[0]
    if not row["count"]:
        return BadRowSummary()
    return BadRowSummary(count=row["count"], first_bad_row_fields=tuple(row["first"].asDict().items()))
