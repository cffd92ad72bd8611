"""Separates the good and the bad rows of a batch with one evaluation of the rows.

An expression of a user may be not deterministic. If a batch's good rows came from one evaluation and its bad rows from
another, some rows would be lost and others duplicated. So a sink uses one of three ways: the driver reads all rows once
and separates them (:meth:`BadRowSeparator.separate`); Spark stores the evaluated rows until both kinds are written
(:func:`materialized`); or one plan of Spark writes both kinds (:meth:`BadRowSeparator.with_bad_row_metrics`).
"""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coterie.spark.arrow import arrow_batches
from coterie.spark.bad_records.error_columns import BAD, bad_rows

SPOOL_BYTES = 4 << 20
"""Largest size, in bytes, of the bad rows that stay in memory. When a batch has more, all its bad rows are written to
an unnamed temporary file."""
_METRICS = "coterie_bad_rows"
"""Name of the metrics of Spark that :meth:`BadRowSeparator.with_bad_row_metrics` adds."""
_SHOWN = ("stage", "message", "topic", "partition", "offset", "timestamp")
"""The fields of the first bad row that a :class:`BadRowSummary` contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRowSummary:
    """The number of bad rows of a batch, and fields of the first bad row for the log."""

    count: int = 0
    first: tuple[tuple[str, object], ...] = ()
    """Pairs of field name and value; empty when there is no bad row."""


class SeparatedRows:
    """The good and the bad rows of a batch as Arrow record batches. Read :meth:`good` to its end before :meth:`bad`:
    the bad rows are collected while the good rows are read. Must be closed."""

    def __init__(self, rows: Iterable[pa.RecordBatch]) -> None:
        self._rows = rows
        self._spool: tempfile.SpooledTemporaryFile[bytes] | None = None
        """The bad rows; None while there are none."""
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.bad_row_summary = BadRowSummary()
        """The bad-row summary of the record batches of :meth:`good` that were read."""

    def good(self) -> Iterator[pa.RecordBatch]:
        """The good rows in their order, without the column ``BAD``. Can be read once."""
        for piece in self._rows:
            if BAD not in piece.schema.names:
                yield piece
                continue
            bad = piece.column(BAD)
            rest = piece.drop_columns([BAD])
            if bad.null_count == len(bad):
                yield rest
            else:
                self._keep(pa.RecordBatch.from_struct_array(bad.filter(bad.is_valid())))
                yield rest.filter(bad.is_null())

    def bad(self) -> Iterator[pa.RecordBatch]:
        """The bad rows in their order, with the columns of ``BAD_ROW_TYPE``: those that :meth:`good` has passed over.
        Can be read once."""
        if self._writer is None or self._spool is None:
            return
        self._writer.close()
        self._spool.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._spool, mode="r"))

    def close(self) -> None:
        """Delete the collected bad rows. :attr:`bad_row_summary` remains valid."""
        if self._spool is not None:
            self._spool.close()

    def _keep(self, bad: pa.RecordBatch) -> None:
        """Collect bad rows for :meth:`bad`, and count them."""
        if self._writer is None:
            self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - it is closed by close()
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._spool, mode="w"), bad.schema)
            self.bad_row_summary = BadRowSummary(first=tuple((name, bad.column(name)[0].as_py()) for name in _SHOWN))
        self._writer.write_batch(bad)
        self.bad_row_summary = BadRowSummary(
            count=self.bad_row_summary.count + bad.num_rows, first=self.bad_row_summary.first
        )


class BadRowSeparator:
    """Separates the good and the bad rows of one batch, ``classified``, whose rows have the column ``BAD``. Each
    attempt to write the batch evaluates the rows again.

    ``is_small``: :meth:`separate` reads all rows to the driver at once.
    """

    def __init__(self, classified: DataFrame, *, is_small: bool) -> None:
        self._classified = classified
        self._is_small = is_small
        self._last: SeparatedRows | None = None
        self._counted: BadRowSummary | None = None

    def separate(self) -> SeparatedRows:
        """The separated rows of one new evaluation, which takes place while the result is read. The caller must close
        the result."""
        self._last = SeparatedRows(arrow_batches(self._classified, is_small=self._is_small))
        return self._last

    @property
    def bad_row_summary(self) -> BadRowSummary:
        """The bad-row summary of the last evaluation, as far as its rows were read; count 0 before the first
        evaluation."""
        return self._counted or (BadRowSummary() if self._last is None else self._last.bad_row_summary)

    @contextmanager
    def materialized(self) -> Iterator[DataFrame]:
        """In the block, all rows with the column ``BAD``, evaluated once: see :func:`materialized`. Sets
        :attr:`bad_row_summary`."""
        with materialized(self._classified) as rows:
            self._counted = summarize_bad_rows(rows)
            yield rows

    def with_bad_row_metrics(self) -> DataFrame:
        """All rows with the column ``BAD``, for a sink that writes good and bad rows by one plan of Spark. Metrics of
        the plan count the bad rows: after the plan has run, the sink must call :meth:`read_bad_row_metrics`."""
        bad = F.col(BAD)
        # Without this option, the JSON lacks the fields that are null: a file's row has no topic.
        shown = F.to_json(F.struct(*(bad[name].alias(name) for name in _SHOWN)), {"ignoreNullFields": "false"})
        first = F.when(bad.isNotNull(), shown)
        metrics = F.count(bad).alias("count"), F.first(first, ignorenulls=True).alias("first")
        return self._classified.observe(_METRICS, *metrics)

    def read_bad_row_metrics(self, written: DataFrame) -> None:
        """Set :attr:`bad_row_summary` from the metrics of ``written``: rows that were derived from
        :meth:`with_bad_row_metrics`. Changes nothing when ``written`` has not run, or there is no bad row."""
        frame: Any = written
        found = frame._jdf.queryExecution().observedMetrics().get(_METRICS)
        if found.isDefined() and (count := found.get().getLong(0)):
            self._counted = BadRowSummary(count=count, first=tuple(json.loads(found.get().getString(1)).items()))


@contextmanager
def materialized(classified: DataFrame) -> Iterator[DataFrame]:
    """In the block, the rows of ``classified``, evaluated once and stored by Spark until the end of the block.

    If an executor is lost, its rows are lost too. The batch then fails; Spark does not evaluate the rows again.
    """
    rows: Any = classified.localCheckpoint(eager=True)
    try:
        yield rows
    finally:
        rows._jdf.queryExecution().analyzed().rdd().unpersist(False)


def summarize_bad_rows(classified: DataFrame) -> BadRowSummary:
    """The bad-row summary of ``classified``: rows with the column ``BAD`` that Spark has stored
    (:func:`materialized`)."""
    shown = F.first(F.struct(*_SHOWN))
    row = bad_rows(classified).agg(F.count("*").alias("count"), shown.alias("first")).collect()[0]
    if not row["count"]:
        return BadRowSummary()
    return BadRowSummary(count=row["count"], first=tuple(row["first"].asDict().items()))
