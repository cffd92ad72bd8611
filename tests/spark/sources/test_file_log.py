"""The files of a batch, from Spark's own files in the checkpoint."""

import json
from pathlib import Path

from coterie.spark.sources.file_log import missing_paths, paths_with_glob_characters, planned_files_of_all_tasks


def write_plan(checkpoint: Path, batch_id: int, source_offset: int) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch_id)).write_text(f'v1\n{{}}\n{{"logOffset":{source_offset}}}')


def write_entries(checkpoint: Path, name: str, entries: list[tuple[str, int]]) -> None:
    (checkpoint / "sources" / "0").mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": number}) for path, number in entries]
    (checkpoint / "sources" / "0" / name).write_text("\n".join(["v1", *lines]))


def test_a_batch_reads_all_entries_since_the_previous_batch(tmp_path: Path) -> None:
    for number, name in enumerate(["a", "b%20%7B", "c"]):
        write_entries(tmp_path, str(number), [(f"file:///in/{name}.csv", number)])
    write_plan(tmp_path, 0, 0)
    write_plan(tmp_path, 1, 2)
    assert planned_files_of_all_tasks(tmp_path, 0) == ("/in/a.csv",)
    assert planned_files_of_all_tasks(tmp_path, 1) == ("/in/b {.csv", "/in/c.csv")


def test_only_the_batchs_own_entries_of_a_compacted_log_are_read(tmp_path: Path) -> None:
    write_entries(tmp_path, "9.compact", [(f"file:///in/{number}.csv", number) for number in range(10)])
    write_plan(tmp_path, 8, 8)
    write_plan(tmp_path, 9, 9)
    assert planned_files_of_all_tasks(tmp_path, 9) == ("/in/9.csv",)


def test_glob_characters_and_deleted_files_are_found(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.touch()
    assert missing_paths([str(here), "/nowhere"]) == ["/nowhere"]
    odd = ["a{", "a}", "a[", "a]", "a*", "a?", "a\\"]
    assert paths_with_glob_characters(["a.csv", *odd]) == odd
