"""Division of a connector's input between tasks: by source partition, or by the hash of a file's path.
Deterministic."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from coterie.spark.positions import Positions

_AUTHORITY = "^[^:/]+:(//[^/]*)?"


class SplitFunction(StrEnum):
    """The function that divides the input between tasks. A value never changes its meaning: manifests on disk contain
    it."""

    PARTS_V1 = "parts-v1"
    """A task reads the source partitions that the split assigns to it."""
    PATH_HASH_V0 = "path-hash-v0"
    """A task reads the files whose URI, as ``RawLocalFileSystem`` writes it (``file:/a%20b``), hashes to its number."""
    PATH_HASH_V1 = "path-hash-v1"
    """A task reads the files whose URI without scheme and authority (``/a%20b``) hashes to its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The division of the input between all tasks of a checkpoint generation."""

    function: SplitFunction
    tasks: tuple[tuple[str, ...], ...]
    """The source partitions of each task, by task number. With a hash function all tasks have the same source
    partitions."""

    def own(self, task: int, positions: Positions) -> dict[str, int]:
        """The entries of ``positions`` that belong to the task's input."""
        if self.function is SplitFunction.PARTS_V1:
            return {part: positions[part] for part in self.tasks[task] if part in positions}
        return {uri: at for uri, at in positions.items() if self._hashed(uri) == task}

    def _hashed(self, uri: str) -> int:
        text = without_authority(uri) if self.function is SplitFunction.PATH_HASH_V1 else _uri_v0(uri)
        return murmur3(text.encode()) % len(self.tasks)


def without_authority(uri: str) -> str:
    """The path of a URI, still encoded: ``/a%20b`` for both ``file:///a%20b`` and ``file:/a%20b``, which are one
    file."""
    return re.sub(_AUTHORITY, "", uri)


def sql_task(function: SplitFunction, uri: str, count: int) -> str:
    """A Spark SQL expression: the number of the task, of ``count`` tasks, that reads the file with the URI in the
    column ``uri``."""
    path = uri if function is SplitFunction.PATH_HASH_V0 else f"regexp_replace({uri}, '{_AUTHORITY}', '')"
    return f"pmod(hash({path}), {count})"


def murmur3(data: bytes, seed: int = 42) -> int:
    """Spark's ``hash`` of a string, signed: Murmur3-32, except that each byte of the tail is mixed separately,
    signed."""
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
    return (word << bits | word >> 32 - bits) & 0xFFFFFFFF


def _uri_v0(uri: str) -> str:
    return f"file:{without_authority(uri)}"


def gathered(parked: Positions, read: Mapping[int, Positions], split: Split) -> dict[str, int]:
    """The positions of all tasks together. ``read``: the positions in the checkpoint of each task, by task number."""
    merged = dict(parked)
    for task, positions in sorted(read.items()):
        own = split.own(task, positions)
        assert split.function is not SplitFunction.PARTS_V1 or not own.keys() & (merged.keys() - parked.keys())
        merged |= own
    return merged
