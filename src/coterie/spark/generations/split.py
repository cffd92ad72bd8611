"""The division of a connector's input between its tasks (the split): by source partition, or by the hash of a file's
path. All workers compute the same division.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coterie.spark.positions import Positions

_AUTHORITY = "^[^:/]+:(//[^/]*)?"
"""Pattern, for Python and for Java, of the scheme and the authority at the beginning of a URI."""


class SplitFunction(StrEnum):
    """The function that divides the input between tasks. A value never changes its meaning: manifests on disk contain
    it."""

    PARTS_V1 = "parts-v1"
    """A task reads the source partitions that the split assigns to it."""
    PATH_HASH_V0 = "path-hash-v0"
    """A task reads the files for which the hash of the URI, as ``RawLocalFileSystem`` writes it (``file:/a%20b``),
    modulo the number of tasks is the task's number. Only for generation 0, of versions of Coterie without checkpoint
    generations."""
    PATH_HASH_V1 = "path-hash-v1"
    """A task reads the files for which the hash of the URI without scheme and authority (``/a%20b``), modulo the number
    of tasks, is the task's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The division of the input between all tasks of a checkpoint generation."""

    function: SplitFunction
    tasks: tuple[tuple[str, ...], ...]
    """The source partitions of each task, by task number. With a hash function all tasks have the same source
    partitions."""

    def positions_of_task(self, task: int, positions: Positions) -> dict[str, int]:
        """The entries of ``positions`` that belong to the input of ``task``, a task number: by source partition or,
        with a hash function, by file URI."""
        if self.function is SplitFunction.PARTS_V1:
            return {part: positions[part] for part in self.tasks[task] if part in positions}
        return {uri: at for uri, at in positions.items() if self._hashed(uri) == task}

    def _hashed(self, uri: str) -> int:
        """The number of the task that reads the file ``uri``, with a hash function."""
        text = without_authority(uri) if self.function is SplitFunction.PATH_HASH_V1 else _uri_v0(uri)
        return murmur3(text.encode()) % len(self.tasks)


def without_authority(uri: str) -> str:
    """The path of ``uri``, without scheme and authority and still encoded: ``/a%20b`` for both ``file:///a%20b`` and
    ``file:/a%20b``, which are two URIs of the same file."""
    return re.sub(_AUTHORITY, "", uri)


def sql_task(function: SplitFunction, uri: str, task_count: int) -> str:
    """A Spark SQL expression for the number of the task that reads a file, of ``task_count`` tasks; ``uri`` is the SQL
    expression of the file's URI."""
    path = uri if function is SplitFunction.PATH_HASH_V0 else f"regexp_replace({uri}, '{_AUTHORITY}', '')"
    return f"pmod(hash({path}), {task_count})"


def murmur3(data: bytes, seed: int = 42) -> int:
    """Spark's ``hash`` of a string whose UTF-8 bytes are ``data``, as a signed 32-bit number. It is Murmur3-32, except
    that each of the last one to three bytes, after the words of four bytes, is mixed as a separate signed number."""
    mixed = seed
    whole = len(data) - len(data) % 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    tail = [byte - 256 if byte > 127 else byte for byte in data[whole:]]
    for word in words + tail:
        scrambled = word * 0xCC9E2D51 & 0xFFFFFFFF
        mixed ^= _rotated(scrambled, 15) * 0x1B873593 & 0xFFFFFFFF
        mixed = _rotated(mixed, 13) * 5 + 0xE6546B64 & 0xFFFFFFFF
    mixed ^= len(data)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    mixed ^= mixed >> 16
    return mixed - 0x100000000 if mixed & 0x80000000 else mixed


def _rotated(word: int, bits: int) -> int:
    """``word``, 32 bits, rotated left by ``bits``."""
    return (word << bits | word >> 32 - bits) & 0xFFFFFFFF


def _uri_v0(uri: str) -> str:
    """The URI of the file ``uri`` as :data:`SplitFunction.PATH_HASH_V0` hashes it."""
    return f"file:{without_authority(uri)}"


def merge_positions(positions_of_absent: Positions, read: Mapping[int, Positions], split: Split) -> dict[str, int]:
    """The positions of all tasks of a generation together. ``read`` contains, by task number, the positions in the
    task's checkpoint, of which only those of the task's own input count. The positions of absent source partitions are
    kept unless a task has read such a partition."""
    merged = dict(positions_of_absent)
    for task, positions in sorted(read.items()):
        own = split.positions_of_task(task, positions)
        assert split.function is not SplitFunction.PARTS_V1 or not own.keys() & (
            merged.keys() - positions_of_absent.keys()
        )
        merged |= own
    return merged
