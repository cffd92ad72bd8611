"""The rows of a batch, divided into good and bad ones by one evaluation.

An expression of a user need not be deterministic. A batch whose good rows come from one evaluation and whose bad rows
come from another loses rows and doubles others. So either all rows go through the driver once, and are divided there
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
"""How many bytes of bad rows are held in memory; more go to a file without a name."""
_METRICS = "coterie_bad_rows"
_SHOWN = ("stage", "message", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How many bad rows a batch has, and of the first one what the log shows."""

    count: int = 0
    first: tuple[tuple[str, object], ...] = ()


class Divided:
    """The rows of a batch in Arrow. :meth:`good` is read first; at its end all bad rows are known. Must be closed."""

    def __init__(self, rows: Iterable[pa.RecordBatch]) -> None:
        self._rows = rows
        self._spool: tempfile.SpooledTemporaryFile[bytes] | None = None
        """The bad rows, where there are any."""
        self._writer: pa.RecordBatchStreamWriter | None = None
        self.tally = Tally()
        """Of the pieces of :meth:`good` that were read."""

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
        """The bad rows in their order, as columns of ``BAD_ROW``."""
        if self._writer is None or self._spool is None:
            return
        self._writer.close()
        self._spool.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._spool, mode="r"))

    def close(self) -> None:
        """Free the bad rows; :attr:`tally` stays."""
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
    """Divides a batch whose rows have the column ``BAD``; each attempt to write the batch evaluates the rows anew."""

    def __init__(self, classified: DataFrame, *, is_small: bool) -> None:
        self._classified = classified
        self._is_small = is_small
        self._last: Divided | None = None
        self._counted: Tally | None = None

    def divide(self) -> Divided:
        """Evaluate the rows; the caller closes the result."""
        self._last = Divided(pieces(self._classified, is_small=self._is_small))
        return self._last

    @property
    def tally(self) -> Tally:
        """Of the last evaluation."""
        return self._counted or (Tally() if self._last is None else self._last.tally)

    @contextmanager
    def kept(self) -> Iterator[DataFrame]:
        """All rows, with the column ``BAD``, evaluated once: see :func:`kept`."""
        with kept(self._classified) as rows:
            self._counted = tally_of(rows)
            yield rows

    def observed(self) -> DataFrame:
        """All rows, with the column ``BAD``, for a sink that writes both kinds by one plan of Spark; that sink calls
        :meth:`count` once it has run the plan."""
        bad = F.col(BAD)
        first = F.when(bad.isNotNull(), F.to_json(F.struct(*(bad[name].alias(name) for name in _SHOWN))))
        metrics = F.count(bad).alias("count"), F.first(first, ignorenulls=True).alias("first")
        return self._classified.observe(_METRICS, *metrics)

    def count(self, written: DataFrame) -> None:
        """Take the tally from ``written``, which was made of :meth:`observed` and was run."""
        frame: Any = written
        found = frame._jdf.queryExecution().observedMetrics().get(_METRICS)
        if found.isDefined() and (count := found.get().getLong(0)):
            self._counted = Tally(count=count, first=tuple(json.loads(found.get().getString(1)).items()))


@contextmanager
def kept(classified: DataFrame) -> Iterator[DataFrame]:
    """The rows of ``classified``, evaluated once and held by Spark until the end of the block.

    A lost executor takes its part of the rows with it. The batch then fails; Spark does not evaluate them again.
    """
    rows: Any = classified.localCheckpoint(eager=True)
    try:
        yield rows
    finally:
        rows._jdf.queryExecution().analyzed().rdd().unpersist(False)


def tally_of(classified: DataFrame) -> Tally:
    """How many bad rows there are; for a batch that Spark holds."""
    shown = F.first(F.struct(*_SHOWN))
    row = bad_rows(classified).agg(F.count("*").alias("count"), shown.alias("first")).collect()[0]
    if not row["count"]:
        return Tally()
    return Tally(count=row["count"], first=tuple(row["first"].asDict().items()))
