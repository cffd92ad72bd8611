"""Separates the good and the bad rows of a batch with one evaluation of the rows.

An expression of a user may be not deterministic. If a batch's good rows came from one evaluation and its bad rows from
another, some rows would be lost and others duplicated. So either the driver reads all rows once and separates them
(:class:`Sifter`), or Spark keeps the evaluated rows until both kinds are written (:func:`kept`).
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

from coterie.spark.arrow import pieces
from coterie.spark.bad_records.hidden import BAD, bad_rows

SPOOL_BYTES = 4 << 20
"""Maximum of bad rows in memory, in bytes; if there are more, all are written to an unnamed temporary file."""
_METRICS = "coterie_bad_rows"
_SHOWN = ("stage", "message", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The bad-row summary of a batch: the number of bad rows, and the log fields of the first one."""

    count: int = 0
    first: tuple[tuple[str, object], ...] = ()


class Divided:
    """The rows of a batch in Arrow. Read :meth:`good` to its end first: only then :meth:`bad` is complete. Must be
    closed."""

    def __init__(self, rows: Iterable[pa.RecordBatch]) -> None:
        self._rows = rows
        self._spool: tempfile.SpooledTemporaryFile[bytes] | None = None
        """The bad rows; None while there are none."""
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.tally = Tally()
        """The bad-row summary of the record batches of :meth:`good` that were read."""

    def good(self) -> Iterator[pa.RecordBatch]:
        """The good rows in their order."""
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
        """The bad rows in their order, with the columns of ``BAD_ROW``."""
        if self._writer is None or self._spool is None:
            return
        self._writer.close()
        self._spool.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._spool, mode="r"))

    def close(self) -> None:
        """Free the bad rows; :attr:`tally` remains valid."""
        if self._spool is not None:
            self._spool.close()

    def _keep(self, bad: pa.RecordBatch) -> None:
        if self._writer is None:
            self._spool = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - it is closed by close()
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._spool, mode="w"), bad.schema)
            self.tally = Tally(first=tuple((name, bad.column(name)[0].as_py()) for name in _SHOWN))
        self._writer.write_batch(bad)
        self.tally = Tally(count=self.tally.count + bad.num_rows, first=self.tally.first)


class Sifter:
    """Separates a batch whose rows have the column ``BAD``; each attempt to write the batch evaluates the rows
    again."""

    def __init__(self, classified: DataFrame, *, is_small: bool) -> None:
        self._classified = classified
        self._is_small = is_small
        self._last: Divided | None = None
        self._counted: Tally | None = None

    def divide(self) -> Divided:
        """Evaluate the rows and separate them; the caller must close the result."""
        self._last = Divided(pieces(self._classified, is_small=self._is_small))
        return self._last

    @property
    def tally(self) -> Tally:
        """The bad-row summary of the last evaluation."""
        return self._counted or (Tally() if self._last is None else self._last.tally)

    @contextmanager
    def kept(self) -> Iterator[DataFrame]:
        """All rows, with the column ``BAD``, evaluated once: see :func:`kept`."""
        with kept(self._classified) as rows:
            self._counted = tally_of(rows)
            yield rows

    def observed(self) -> DataFrame:
        """All rows, with the column ``BAD``, for a sink that writes both kinds by one plan of Spark. After the plan has
        run, the sink calls :meth:`count`."""
        bad = F.col(BAD)
        first = F.when(bad.isNotNull(), F.to_json(F.struct(*(bad[name].alias(name) for name in _SHOWN))))
        metrics = F.count(bad).alias("count"), F.first(first, ignorenulls=True).alias("first")
        return self._classified.observe(_METRICS, *metrics)

    def count(self, written: DataFrame) -> None:
        """Set :attr:`tally` from the metrics of ``written``, which was derived from :meth:`observed` and has run."""
        frame: Any = written
        found = frame._jdf.queryExecution().observedMetrics().get(_METRICS)
        if found.isDefined() and (count := found.get().getLong(0)):
            self._counted = Tally(count=count, first=tuple(json.loads(found.get().getString(1)).items()))


@contextmanager
def kept(classified: DataFrame) -> Iterator[DataFrame]:
    """The rows of ``classified``, evaluated once and stored by Spark until the end of the block.

    If an executor is lost, its rows are lost too. The batch then fails; Spark does not evaluate the rows again.
    """
    rows: Any = classified.localCheckpoint(eager=True)
    try:
        yield rows
    finally:
        rows._jdf.queryExecution().analyzed().rdd().unpersist(False)


def tally_of(classified: DataFrame) -> Tally:
    """The bad-row summary of rows that Spark has stored (:func:`kept`)."""
    shown = F.first(F.struct(*_SHOWN))
    row = bad_rows(classified).agg(F.count("*").alias("count"), shown.alias("first")).collect()[0]
    if not row["count"]:
        return Tally()
    return Tally(count=row["count"], first=tuple(row["first"].asDict().items()))
