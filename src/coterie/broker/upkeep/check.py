"""Checks a log file for corruption and contradictions: `coterie broker check`.

The check reads one snapshot and changes nothing, so a broker may run meanwhile; until the check has ended, the broker's
writes accumulate in the write-ahead log. Each finding is one line that names the object.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.broker.storage.layout import LAYOUT, require_ours
from coterie.broker.storage.log_file import is_damage, require_log, unopened, unread
from coterie.broker.storage.store import connect_read_only
from coterie.groups.transaction_messages import TransactionState
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import BatchHead, check_crc, decode_records, read_head

_INTEGRITY_LINES_MAX = 100
TELL_EVERY_S = 2.0


def check(path: Path, *, tell: Callable[[str], None], may_be_older: bool = False) -> Iterator[str]:
    """Check the log at ``path`` and yield the findings, one line each; ``tell`` is called regularly with the progress.
    With ``may_be_older``, a log of an older layout gets SQLite's own integrity check only.

    :raises WorldError: there is no log, its layout is not supported, or it cannot be read here.
    """
    require_log(path)
    try:
        database = connect_read_only(path)
    except sqlite3.Error as error:
        raise unopened(path, error) from error
    try:
        database.execute("BEGIN")
        require_ours(database, path)
        (layout,) = database.execute("PRAGMA user_version").fetchone()
        if layout == LAYOUT:
            yield from _Check(database, tell).run()
        elif may_be_older and 0 < layout < LAYOUT:
            yield from _integrity(database)
        else:
            raise WorldError(
                f"{path} has layout {layout}, this version checks layout {LAYOUT}; start a broker to upgrade it"
            )
    except sqlite3.Error as error:
        if not is_damage(error):
            raise unread(path, error) from error
        yield f"the file cannot be read: {error}"
    finally:
        database.close()


class _Check:
    def __init__(self, database: sqlite3.Connection, tell: Callable[[str], None]) -> None:
        self._database = database
        self._tell = tell
        self._told_at_s = time.monotonic()
        self._done_bytes = 0
        self._all_bytes = 0

    def run(self) -> Iterator[str]:
        self._tell("SQLite checks its pages and indexes")
        yield from _integrity(self._database)
        yield from self._check_topics()
        yield from self._check_open_transactions()
        (self._all_bytes,) = self._database.execute("SELECT COALESCE(SUM(size_bytes), 0) FROM batches").fetchone()
        for topic, number, *partition in self._database.execute(
            "SELECT t.name, p.number, p.id, p.start_offset, p.cleaned_offset, p.sifted_offset FROM partitions p"
            " JOIN topics t ON t.id = p.topic ORDER BY t.name, p.number"
        ).fetchall():
            try:
                yield from (
                    f"{topic}-{number}: {finding}"
                    for finding in self._check_partition(*partition, has_groups=topic == CLASSIC_TOPIC.name)
                )
            except sqlite3.Error as error:
                yield f"{topic}-{number}: cannot read the next batch: {error}"

    # -- topics -------------------------------------------------------------------------------------------------------

    def _check_topics(self) -> Iterator[str]:
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
                yield f"{name}: invalid configs"
            try:
                UUID(bytes=topic_id)
            except (TypeError, ValueError):
                yield f"{name}: invalid topic id"
        yield from self._strays("partitions", "topic IS NOT NULL AND topic NOT IN (SELECT id FROM topics)")
        for table in ("batches", "producers", "aborted"):
            yield from self._strays(table, "partition NOT IN (SELECT id FROM partitions)")
        for kind, name, entries in self._database.execute("SELECT kind, name, entries FROM kept"):
            if not _is_json_object(entries):
                yield f"{kind} of {name}: invalid"
        if not self._database.execute("SELECT 1 FROM numbers WHERE name = 'cluster id'").fetchone():
            yield "the cluster has no id"

    def _strays(self, table: str, condition: str) -> Iterator[str]:
        (count,) = self._database.execute(f"SELECT COUNT(*) FROM {table} WHERE {condition}").fetchone()
        if count:
            yield f"{count} rows of {table} have no parent row"

    def _check_open_transactions(self) -> Iterator[str]:
        """Check that each open transaction of a partition is ongoing: else readers would wait for its end forever."""
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
                    f"{topic}-{number}: the transaction that producer {producer_id} began at offset {open_offset} is"
                    " not ongoing"
                )

    # -- partitions ---------------------------------------------------------------------------------------------------

    def _check_partition(
        self, partition_id: int, start_offset: int, cleaned_offset: int, sifted_offset: int, *, has_groups: bool
    ) -> Iterator[str]:
        # Batches before the start offset are hidden and being deleted: gaps are allowed up to there.
        expected = 0
        rows = self._database.execute(
            "SELECT base_offset, last_offset, max_timestamp_ms, size_bytes, data FROM batches WHERE partition = ?"
            " ORDER BY last_offset",
            (partition_id,),
        )
        for base_offset, last_offset, max_timestamp_ms, size_bytes, data in rows:
            where = f"the batch at offset {base_offset}"
            if base_offset < expected:
                yield f"{where} begins before the previous batch ends, at {expected - 1}"
            elif base_offset > max(expected, start_offset, sifted_offset):
                yield f"the offsets {max(expected, start_offset, sifted_offset)} to {base_offset - 1} are missing"
            expected = last_offset + 1
            try:
                head = _sound_head(data)
                if (head.base_offset, head.last_offset) != (base_offset, last_offset):
                    yield f"{where} has the offsets {head.base_offset} to {head.last_offset} in its header"
                if (head.max_timestamp_ms, head.size_bytes) != (max_timestamp_ms, size_bytes):
                    yield f"{where} has another timestamp or size in the index than in its header"
                if has_groups:
                    _read_lines(data)
            except WireError as error:
                yield f"{where} is corrupt: {error}"
            self._count(size_bytes)
        end_offset = max(expected, start_offset)
        if max(cleaned_offset, sifted_offset) > end_offset:
            yield f"compaction reached offset {max(cleaned_offset, sifted_offset)}, after the end offset {end_offset}"
        yield from self._check_producers(partition_id, end_offset)

    def _check_producers(self, partition_id: int, end_offset: int) -> Iterator[str]:
        for producer_id, batches, open_offset in self._database.execute(
            "SELECT producer_id, batches, open_offset FROM producers WHERE partition = ?", (partition_id,)
        ):
            try:
                last = max((base_offset for _, _, base_offset in json.loads(batches)), default=-1)
            except (ValueError, TypeError):
                yield f"the state of producer {producer_id} is invalid"
                continue
            if max(last, -1 if open_offset is None else open_offset) >= end_offset:
                yield f"the state of producer {producer_id} has an offset after the end offset {end_offset}"
        for producer_id, first_offset, last_offset in self._database.execute(
            "SELECT producer_id, first_offset, last_offset FROM aborted WHERE partition = ?", (partition_id,)
        ):
            if not 0 <= first_offset <= last_offset < end_offset:
                yield (
                    f"an aborted transaction of producer {producer_id} has the offsets {first_offset} to {last_offset},"
                    f" but the end offset of the partition is {end_offset}"
                )

    def _count(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if time.monotonic() - self._told_at_s >= TELL_EVERY_S:
            self._told_at_s = time.monotonic()
            share = 100 * self._done_bytes // max(1, self._all_bytes)
            self._tell(f"{share} % of {self._all_bytes // 1_000_000} MB of batches checked")


# -- helpers ----------------------------------------------------------------------------------------------------------


def _integrity(database: sqlite3.Connection) -> Iterator[str]:
    for (line,) in database.execute(f"PRAGMA integrity_check({_INTEGRITY_LINES_MAX})"):
        if line != "ok":
            yield f"SQLite: {line}"


def _sound_head(data: bytes) -> BatchHead:
    """:raises WireError: the data is not exactly one valid batch."""
    head = read_head(data)
    if head.size_bytes != len(data):
        raise WireError(f"its header has the size {head.size_bytes}, but it has {len(data)} bytes")
    if head.record_count > head.last_offset_delta + 1:
        raise WireError(f"{head.record_count} records do not fit the last offset delta {head.last_offset_delta}")
    check_crc(data, 0, head)
    return head


def _read_lines(data: bytes) -> None:
    """:raises WireError: a group record is malformed."""
    for record in decode_records(data):
        if record.key is None:
            raise WireError("a group record has no key")
        CLASSIC_TOPIC.decode_line(record.key, record.value)


def _is_json_object(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False
