"""The folder of bad records is a sink's folder: its lineages are retired with those of the connector's sink."""

from pathlib import Path

from coterie.spark.bad_records import queue
from coterie.spark.sinks.file_copies import Layout, SinkFolder
from tests.spark.sinks.file_owners import LINEAGE


def test_a_retired_lineage_is_retired_in_the_folder_of_bad_records_where_there_is_one(tmp_path: Path) -> None:
    folder = SinkFolder(path=tmp_path / "bad", layout=Layout(format="parquet", partition_columns=()))
    folder.take_over(LINEAGE)
    copy = folder.copy(LINEAGE, 0)
    copy.begin()
    copy.good.folder.mkdir(parents=True, exist_ok=True)
    copy.put_in_place()
    path = {"errors.deadletterqueue.path": str(tmp_path / "bad")}
    for config in ({}, path, {"errors.tolerance": "all"}):
        queue.retire(config, [LINEAGE])
        assert folder.committed(LINEAGE).is_dir()
    for _ in range(2):
        queue.retire(path | {"errors.tolerance": "all"}, [LINEAGE])
        assert folder.committed(LINEAGE).is_file()
