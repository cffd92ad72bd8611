"""Checks a log file for corruption and contradictions: `coterie broker check`.

The check reads one snapshot and changes nothing, so a broker may run meanwhile; until the check has ended, the broker's
writes accumulate in the write-ahead log. Each finding is one line that names the object.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.broker.groups.connect import CONNECT_TOPIC
from coterie.broker.storage.layout import LAYOUT_VERSION, check_is_broker_log
from coterie.broker.storage.log_file import check_log_exists, is_corruption_error, make_open_error, make_read_error
from coterie.broker.storage.store import open_database_read_only
from coterie.groups.transaction_messages import TransactionState
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import BatchHeader, check_crc, decode_uncompressed_records_without_control, read_batch_header

DecodeRecord: TypeAlias = Callable[[bytes, bytes | None], object]
"""Decodes the key and the value of a record of groups. Raises `WireError` for a malformed record."""
_GROUP_RECORD_DECODER_BY_TOPIC: Mapping[str, DecodeRecord] = {
    CLASSIC_TOPIC.name: CLASSIC_TOPIC.decode_record,
    CONNECT_TOPIC.name: CONNECT_TOPIC.decode_record,
}
"""The decoders of the records of groups, by topic."""
_INTEGRITY_LINES_MAX = 100
"""The maximum number of findings of SQLite's own integrity check."""
PROGRESS_INTERVAL_S = 2.0
"""The shortest time between two reports of the progress."""


def log_file_findings(
    path: Path, *, report_progress: Callable[[str], None], accepts_older_layout: bool = False
) -> Iterator[str]:
    """Check the log file ``path`` and yield the findings, one line each; none means that the log is valid.
    ``report_progress`` gets a line about the progress about every 2 s. With ``accepts_older_layout`` a log of an older
    layout is checked by SQLite's own integrity check only; without ``accepts_older_layout`` such a log is an error.

    :raises WorldError: there is no log, the file is not a broker's log, its layout is not supported, or it cannot be
        read for another reason than corruption, which is a finding. The error is raised when the first finding is
        requested, or later if a read fails.
    """
    check_log_exists(path)
    try:
        database = open_database_read_only(path)
    except sqlite3.Error as error:
        raise make_open_error(path, error) from error
    try:
        database.execute("BEGIN")
        check_is_broker_log(database, path)
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        if layout == LAYOUT_VERSION:
            yield from _LogCheck(database, report_progress).all_findings()
        elif accepts_older_layout and 0 < layout < LAYOUT_VERSION:
            yield from _integrity_findings(database)
        else:
            raise WorldError(
                f"the log {path} has layout {layout}, this version of coterie checks layout {LAYOUT_VERSION}: if the"
                " layout is older, start a broker of this version, which upgrades it; if it is newer, use the newer"
                " version"
            )
    except sqlite3.Error as error:
        if not is_corruption_error(error):
            raise make_read_error(path, error) from error
        yield f"the file cannot be read: {error}"
    finally:
        database.close()


class _LogCheck:
    """One check of a log of layout `LAYOUT_VERSION`; :meth:`all_findings` runs it, and must be called once."""

    def __init__(self, database: sqlite3.Connection, report_progress: Callable[[str], None]) -> None:
        self._database = database
        self._report_progress = report_progress
        self._reported_at_s = time.monotonic()
        self._done_bytes = 0
        self._all_bytes = 0

    def all_findings(self) -> Iterator[str]:
        """Check everything and yield the findings. If SQLite cannot read a row of a partition, only the rest of this
        partition is left out; an invalid batch is a finding and does not end the check of its partition.

        :raises sqlite3.Error: the rows of topics, partitions or open transactions cannot be read.
        """
        self._report_progress("SQLite checks its pages and indexes")
        yield from _integrity_findings(self._database)
        yield from self._topic_orphan_and_config_findings()
        yield from self._open_transaction_findings()
        (self._all_bytes,) = self._database.execute("SELECT COALESCE(SUM(size_bytes), 0) FROM batches").fetchone()
        for topic, number, *partition in self._database.execute(
            "SELECT t.name, p.number, p.id, p.start_offset, p.cleaned_offset, p.sifted_offset FROM partitions p"
            " JOIN topics t ON t.id = p.topic ORDER BY t.name, p.number"
        ).fetchall():
            try:
                yield from (
                    f"{topic}-{number}: {finding}"
                    for finding in self._partition_findings(
                        *partition, decode_record=_GROUP_RECORD_DECODER_BY_TOPIC.get(topic)
                    )
                )
            except sqlite3.Error as error:
                yield f"{topic}-{number}: a row cannot be read, so the rest of the partition is not checked: {error}"

    # -- topics -------------------------------------------------------------------------------------------------------

    def _topic_orphan_and_config_findings(self) -> Iterator[str]:
        """Yield the findings about topics, partitions, rows that refer to no topic or partition, configs of groups, and
        the cluster's id."""
        for topic, name, topic_id, partitions, configs in self._database.execute(
            "SELECT id, name, topic_id, partitions, configs FROM topics"
        ).fetchall():
            numbers = [
                row[0]
                for row in self._database.execute(
                    "SELECT number FROM partitions WHERE topic = ? ORDER BY number", (topic,)
                )
            ]
            if numbers != list(range(partitions)):
                yield f"{name}: has the partitions {numbers}, expected {partitions} partitions"
            if not _is_json_object(configs):
                yield f"{name}: the configs are not a JSON object"
            try:
                UUID(bytes=topic_id)
            except (TypeError, ValueError):
                yield f"{name}: invalid topic id"
        yield from self._orphan_row_findings("partitions", "topic IS NOT NULL AND topic NOT IN (SELECT id FROM topics)")
        for table in ("batches", "producers", "aborted"):
            yield from self._orphan_row_findings(table, "partition NOT IN (SELECT id FROM partitions)")
        for kind, name, entries in self._database.execute("SELECT kind, name, entries FROM kept"):
            if not _is_json_object(entries):
                yield f"{kind} of {name}: not a JSON object"
        if not self._database.execute("SELECT 1 FROM numbers WHERE name = 'cluster id'").fetchone():
            yield "the log has no cluster id"

    def _orphan_row_findings(self, table: str, condition: str) -> Iterator[str]:
        """Yield a finding if rows of ``table`` meet ``condition``, which means that the row to which they refer is
        missing."""
        (count,) = self._database.execute(f"SELECT COUNT(*) FROM {table} WHERE {condition}").fetchone()
        if count:
            yield f"{count} rows of the table {table} refer to a topic or partition that does not exist"

    def _open_transaction_findings(self) -> Iterator[str]:
        """Yield a finding for each transaction that is open in a partition although no transactional id has it as
        ongoing: readers of committed records would wait for its end forever. Also yield a finding for each
        transactional id whose ongoing transaction has invalid partitions."""
        ongoing: set[tuple[int, str, int]] = set()
        for transactional_id, producer_id, partitions in self._database.execute(
            "SELECT transactional_id, producer_id, partitions FROM transactions WHERE state = ?",
            (TransactionState.ONGOING,),
        ):
            try:
                ongoing |= {(producer_id, topic, number) for topic, number in json.loads(partitions)}
            except (ValueError, TypeError):
                yield f"the transaction of {transactional_id} has invalid partitions"
        for topic, number, producer_id, open_offset in self._database.execute(
            "SELECT t.name, p.number, o.producer_id, o.open_offset FROM producers o"
            " JOIN partitions p ON p.id = o.partition JOIN topics t ON t.id = p.topic"
            " WHERE o.open_offset IS NOT NULL ORDER BY t.name, p.number, o.producer_id"
        ):
            if (producer_id, topic, number) not in ongoing:
                yield (
                    f"{topic}-{number}: producer {producer_id} has an open transaction since offset {open_offset}, but"
                    " no transactional id has this transaction as ongoing"
                )

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _partition_findings(
        self,
        partition_row_id: int,
        start_offset: int,
        cleaned_offset: int,
        sifted_offset: int,
        *,
        decode_record: DecodeRecord | None,
    ) -> Iterator[str]:
        """Yield the findings about the batches, producers and aborted transactions of one partition. If
        ``decode_record`` is given (for a topic with records of groups), each record must also be decodable with it. The
        other arguments are columns of the partition's row in the table `partitions`. Missing offsets are no finding
        before ``start_offset`` (deleted records) and before ``sifted_offset`` (compaction). ``sifted_offset``, and
        ``cleaned_offset``, where the next compaction begins, must not be after the partition's end."""
        # Batches before the start offset are hidden and being deleted: gaps are allowed up to there.
        expected = 0
        rows = self._database.execute(
            "SELECT base_offset, last_offset, max_timestamp_ms, size_bytes, data FROM batches WHERE partition = ?"
            " ORDER BY last_offset",
            (partition_row_id,),
        )
        for base_offset, last_offset, max_timestamp_ms, size_bytes, data in rows:
            where = f"the batch at offset {base_offset}"
            if base_offset < expected:
                yield f"{where} overlaps the previous batch, which ends at offset {expected - 1}"
            elif base_offset > max(expected, start_offset, sifted_offset):
                yield f"the offsets {max(expected, start_offset, sifted_offset)} to {base_offset - 1} are missing"
            expected = last_offset + 1
            try:
                head = _read_valid_header(data)
                if (head.base_offset, head.last_offset) != (base_offset, last_offset):
                    yield f"{where} has the offsets {head.base_offset} to {head.last_offset} in its header"
                if (head.max_timestamp_ms, head.size_bytes) != (max_timestamp_ms, size_bytes):
                    yield f"{where} has another maximum timestamp or size in its row than in its header"
                if decode_record is not None:
                    _check_group_records(data, decode_record)
            except WireError as error:
                yield f"{where} is corrupt: {error}"
            self._count_and_report_progress(size_bytes)
        end_offset = max(expected, start_offset)
        if max(cleaned_offset, sifted_offset) > end_offset:
            yield f"compaction reached offset {max(cleaned_offset, sifted_offset)}, after the end offset {end_offset}"
        yield from self._producer_and_aborted_transaction_findings(partition_row_id, end_offset)

    def _producer_and_aborted_transaction_findings(self, partition_row_id: int, end_offset: int) -> Iterator[str]:
        """Yield the findings about the producers and aborted transactions of one partition."""
        for producer_id, batches, open_offset in self._database.execute(
            "SELECT producer_id, batches, open_offset FROM producers WHERE partition = ?", (partition_row_id,)
        ):
            try:
                last = max((base_offset for _, _, base_offset in json.loads(batches)), default=-1)
            except (ValueError, TypeError):
                yield f"the state of producer {producer_id} is invalid"
                continue
            if last >= end_offset:
                yield f"the state of producer {producer_id} has an offset at or after the end offset {end_offset}"
            # A transaction with offsets of a group begins at the end offset, before its first batch is appended.
            if open_offset is not None and open_offset > end_offset:
                yield (
                    f"the open transaction of producer {producer_id} begins at offset {open_offset}, after the end"
                    f" offset {end_offset}"
                )
        for producer_id, first_offset, last_offset in self._database.execute(
            "SELECT producer_id, first_offset, last_offset FROM aborted WHERE partition = ?", (partition_row_id,)
        ):
            if not 0 <= first_offset <= last_offset < end_offset:
                yield (
                    f"an aborted transaction of producer {producer_id} has the offsets {first_offset} to {last_offset},"
                    f" but the end offset of the partition is {end_offset}"
                )

    def _count_and_report_progress(self, size_bytes: int) -> None:
        """Count ``size_bytes``, the size of a checked batch, and report the progress if the last report was
        `PROGRESS_INTERVAL_S` ago."""
        self._done_bytes += size_bytes
        if time.monotonic() - self._reported_at_s >= PROGRESS_INTERVAL_S:
            self._reported_at_s = time.monotonic()
            share = 100 * self._done_bytes // max(1, self._all_bytes)
            self._report_progress(f"{share} % of {self._all_bytes // 1_000_000} MB of batches checked")


# -- helpers ----------------------------------------------------------------------------------------------------------


def _integrity_findings(database: sqlite3.Connection) -> Iterator[str]:
    """Yield the findings of SQLite's own integrity check."""
    for (line,) in database.execute(f"PRAGMA integrity_check({_INTEGRITY_LINES_MAX})"):
        if line != "ok":
            yield f"SQLite: {line}"


def _read_valid_header(data: bytes) -> BatchHeader:
    """The header of the batch in ``data``.

    :raises WireError: ``data`` is not exactly one valid batch.
    """
    head = read_batch_header(data)
    if head.size_bytes != len(data):
        raise WireError(f"the header states {head.size_bytes} bytes, but the batch has {len(data)} bytes")
    if head.record_count > head.last_offset_delta + 1:
        raise WireError(
            f"the header states {head.record_count} records, more than its last offset delta "
            f"({head.last_offset_delta}) allows"
        )
    check_crc(data, 0, head)
    return head


def _check_group_records(data: bytes, decode_record: DecodeRecord) -> None:
    """Check that ``decode_record`` can decode each record of the batch in ``data``.

    :raises WireError: a record is malformed or has no key, or the batch is compressed.
    """
    for record in decode_uncompressed_records_without_control(data):
        if record.key is None:
            raise WireError("a group record has no key")
        decode_record(record.key, record.value)


def _is_json_object(text: object) -> bool:
    """Whether ``text`` is the text of a JSON object."""
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False
