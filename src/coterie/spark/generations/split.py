"""The division of a connector's input between its tasks (the split): by source partition, or by the hash of a file's
path. All workers compute the same division.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from enum import StrEnum

from coterie.spark.positions import Positions

_SCHEME_AND_AUTHORITY = "^[^:/]+:(//[^/]*)?"
"""Pattern, for Python and for Java, of the scheme and the authority at the beginning of a URI."""
_DIGEST_PREFIX = "sha256:"
"""The beginning of a digest that replaces the name of a source partition; no name of a source partition begins with
it."""


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
    """The division of the input between all tasks of a checkpoint generation. With a hash function the names of source
    partitions may contain secrets, so digests may replace them: a name and its digest count as equal, and
    :meth:`common_partitions` returns digests. The positions are then those of files, not of source partitions."""

    function: SplitFunction
    partitions_by_task: tuple[tuple[str, ...], ...]
    """The source partitions of each task, by task number. With a hash function all tasks have the same source
    partitions; their names are only compared, so that a name can be replaced by its digest."""

    @property
    def source_partitions(self) -> frozenset[str]:
        """The source partitions of all tasks."""
        return frozenset(partition for partitions in self.partitions_by_task for partition in partitions)

    def with_digests_if_hash_split(self) -> "Split":
        """With a hash function, this split with a digest in place of the name of each source partition, since the names
        may contain secrets; otherwise this split. Two splits are equal if the results of this method for both are
        equal."""
        if self.function is SplitFunction.PARTS_V1:
            return self
        return replace(
            self,
            partitions_by_task=tuple(tuple(map(_partition_name_digest, names)) for names in self.partitions_by_task),
        )

    def common_partitions(self, source_partitions: Iterable[str]) -> frozenset[str]:
        """The source partitions of this split that are also in ``source_partitions``, named as
        :meth:`with_digests_if_hash_split` names them. With a hash function a name and the digest of this name count as
        equal."""
        other_names = (
            source_partitions
            if self.function is SplitFunction.PARTS_V1
            else map(_partition_name_digest, source_partitions)
        )
        return self.with_digests_if_hash_split().source_partitions.intersection(other_names)

    def has_only_partitions_in(self, source_partitions: Iterable[str]) -> bool:
        """Whether all source partitions of this split are in ``source_partitions``, compared as
        :meth:`common_partitions` compares them."""
        return self.common_partitions(source_partitions) == self.with_digests_if_hash_split().source_partitions

    def positions_of_task(self, task_number: int, positions: Positions) -> dict[str, int]:
        """The entries of ``positions`` that belong to the input of the task ``task_number``: by source partition or,
        with a hash function, by file URI."""
        if self.function is SplitFunction.PARTS_V1:
            return {
                partition: positions[partition]
                for partition in self.partitions_by_task[task_number]
                if partition in positions
            }
        task_count = len(self.partitions_by_task)
        return {
            uri: position
            for uri, position in positions.items()
            if task_number_of_file(self.function, uri, task_count) == task_number
        }

    def partitions_without_position(
        self, positions: Positions, further_partitions_to_check: Set[str] = frozenset()
    ) -> tuple[str, ...]:
        """The source partitions of all tasks, and ``further_partitions_to_check``, that have no entry in ``positions``,
        sorted; none with a hash function, whose positions are those of files."""
        if self.function is not SplitFunction.PARTS_V1:
            return ()
        return tuple(sorted((self.source_partitions | further_partitions_to_check) - positions.keys()))


def _partition_name_digest(name: str) -> str:
    """The digest of the name of a source partition; ``name`` itself if it is a digest."""
    return name if name.startswith(_DIGEST_PREFIX) else _DIGEST_PREFIX + hashlib.sha256(name.encode()).hexdigest()


def encoded_path_of_uri(uri: str) -> str:
    """The path of ``uri``, without scheme and authority and still encoded: ``/a%20b`` for both ``file:///a%20b`` and
    ``file:/a%20b``, which are two URIs of the same file."""
    return re.sub(_SCHEME_AND_AUTHORITY, "", uri)


def task_number_of_file(function: SplitFunction, uri: str, task_count: int) -> int:
    """The number of the task that reads the file ``uri``, of ``task_count`` tasks. ``function``: a hash function."""
    text = encoded_path_of_uri(uri) if function is SplitFunction.PATH_HASH_V1 else _file_uri_with_one_slash(uri)
    return spark_hash(text.encode()) % task_count


def task_number_sql(function: SplitFunction, uri_sql: str, task_count: int) -> str:
    """A Spark SQL expression for the result of :func:`task_number_of_file`; ``uri_sql`` is the SQL expression of the
    file's URI."""
    hashed_sql = (
        uri_sql
        if function is SplitFunction.PATH_HASH_V0
        else f"regexp_replace({uri_sql}, '{_SCHEME_AND_AUTHORITY}', '')"
    )
    return f"pmod(hash({hashed_sql}), {task_count})"


def spark_hash(data: bytes, seed: int = 42) -> int:
    """Spark's ``hash`` of a string whose UTF-8 bytes are ``data``, as a signed 32-bit number. It is Murmur3-32, except
    that each of the last one to three bytes, after the words of four bytes, is mixed as a separate signed number."""
    hash_value = seed
    whole_words_size = len(data) - len(data) % 4
    words = [int.from_bytes(data[offset : offset + 4], "little") for offset in range(0, whole_words_size, 4)]
    tail = [byte - 256 if byte > 127 else byte for byte in data[whole_words_size:]]
    for word in words + tail:
        scrambled = word * 0xCC9E2D51 & 0xFFFFFFFF
        hash_value ^= _rotate_left(scrambled, 15) * 0x1B873593 & 0xFFFFFFFF
        hash_value = _rotate_left(hash_value, 13) * 5 + 0xE6546B64 & 0xFFFFFFFF
    hash_value ^= len(data)
    hash_value = (hash_value ^ hash_value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    hash_value = (hash_value ^ hash_value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    hash_value ^= hash_value >> 16
    return hash_value - 0x100000000 if hash_value & 0x80000000 else hash_value


def _rotate_left(word: int, bits: int) -> int:
    """``word``, 32 bits, rotated left by ``bits``."""
    return (word << bits | word >> 32 - bits) & 0xFFFFFFFF


def _file_uri_with_one_slash(uri: str) -> str:
    """The URI of the file ``uri`` in the form that :data:`SplitFunction.PATH_HASH_V0` hashes: ``file:/a%20b``."""
    return f"file:{encoded_path_of_uri(uri)}"


def merge_positions(
    absent_partition_positions: Positions, checkpoint_positions_by_task: Mapping[int, Positions], split: Split
) -> dict[str, int]:
    """The positions of all tasks of a generation together. ``checkpoint_positions_by_task`` contains, by task number,
    the positions in the task's checkpoint, of which only those of the task's own input count. The positions of absent
    source partitions are kept unless a task has read such a partition."""
    merged = dict(absent_partition_positions)
    for task, positions in sorted(checkpoint_positions_by_task.items()):
        positions_of_task = split.positions_of_task(task, positions)
        assert split.function is not SplitFunction.PARTS_V1 or not positions_of_task.keys() & (
            merged.keys() - absent_partition_positions.keys()
        )
        merged |= positions_of_task
    return merged
