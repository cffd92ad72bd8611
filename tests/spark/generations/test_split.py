"""The split of files by hash: equal to Spark's own hash, and the same for each form of a path."""

from dataclasses import replace

import pytest

from coterie.spark.generations.split import (
    Split,
    SplitFunction,
    encoded_path_of_uri,
    merge_positions,
    spark_hash,
    task_number_sql,
)
from tests.spark.conftest import Rig

NAMES = ["", "a", "ab", "abc", "abcd", "a b", "ü", "é€😀", "%41", "c+d", "e#f", "\x7f\x80\xff", "x" * 1000]


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(240)
async def test_the_hash_is_that_of_spark(rig: Rig) -> None:
    session = rig.spark_runtime._driver
    assert session is not None
    names = [*NAMES, *(f"file:///in/{number}/{name}" for number, name in enumerate(NAMES))]
    uris = [f"{scheme}/in/{number}.csv" for number in range(20) for scheme in ("file:", "file://", "hdfs://n:9/")]
    rows = session.spark.createDataFrame([(name,) for name in names], "name STRING").selectExpr("name", "hash(name) h")
    assert {row["name"]: row["h"] for row in rows.collect()} == {name: spark_hash(name.encode()) for name in names}

    expression = task_number_sql(SplitFunction.PATH_HASH_V1, "uri", 3)
    rows = session.spark.createDataFrame([(uri,) for uri in uris], "uri STRING").selectExpr("uri", f"{expression} task")
    split = Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=(("/in",),) * 3)
    by_spark = {row["uri"]: row["task"] for row in rows.collect()}
    assert by_spark == {uri: task for task in range(3) for uri in split.positions_of_task(task, dict.fromkeys(uris, 1))}


def test_a_file_belongs_to_the_same_task_for_every_form_of_its_uri() -> None:
    for uri in ("file:/in/a%20b", "file:///in/a%20b", "file://host/in/a%20b", "hdfs://name:9000/in/a%20b", "/in/a%20b"):
        assert encoded_path_of_uri(uri) == "/in/a%20b"


@pytest.mark.parametrize("function", [SplitFunction.PATH_HASH_V0, SplitFunction.PATH_HASH_V1])
def test_every_file_belongs_to_exactly_one_task(function: SplitFunction) -> None:
    files = {f"file:///in/{number}.csv": number for number in range(100)}
    split = Split(function=function, partitions_by_task=(("/in",),) * 3)
    shares = [split.positions_of_task(task, files) for task in range(3)]
    assert sorted(uri for share in shares for uri in share) == sorted(files)
    assert all(shares)


def test_a_folder_and_its_digest_are_the_same_source_partition() -> None:
    split = Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=(("/in/secret",),) * 2)
    stored = split.with_digests_if_hash_split()
    assert "secret" not in str(stored)
    assert stored.with_digests_if_hash_split() == stored
    assert stored != replace(split, partitions_by_task=(("/in/other",),) * 2).with_digests_if_hash_split()
    for one, other in ((split, stored), (stored, split), (stored, stored)):
        assert one.has_only_partitions_in(other.source_partitions)
        assert one.common_partitions(["/in/other", *other.source_partitions])
    assert not stored.has_only_partitions_in(["/in/other"])
    assert not stored.common_partitions(["/in/other"])


def test_the_names_of_partitions_that_a_task_reads_are_kept() -> None:
    split = Split(function=SplitFunction.PARTS_V1, partitions_by_task=(("a",), ("b",)))
    assert split.with_digests_if_hash_split() == split
    assert split.has_only_partitions_in("abc")
    assert not split.has_only_partitions_in("a")
    assert split.common_partitions("bc") == {"b"}


def test_generation_0_hashes_the_uri_with_one_slash() -> None:
    split = Split(function=SplitFunction.PATH_HASH_V0, partitions_by_task=(("/in",),) * 1000)
    assert split.positions_of_task(spark_hash(b"file:/in/a") % 1000, {"file:///in/a": 1}) == {"file:///in/a": 1}


def test_a_file_counts_as_read_only_if_its_own_task_has_listed_it() -> None:
    files = {f"file:///in/{number}.csv": 1 for number in range(20)}
    split = Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=(("/in",),) * 2)
    first = split.positions_of_task(0, files)
    assert merge_positions({}, {0: files, 1: {}}, split) == first
    assert merge_positions({}, {0: files, 1: files}, split) == files
