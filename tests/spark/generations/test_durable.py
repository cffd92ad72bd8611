"""A folder is replaced by a plain file, and nothing is left beside it."""

from pathlib import Path

import pytest

from coterie.spark.generations.durable import replace_folder_by_file


@pytest.mark.parametrize("found", ["folder", "file", "nothing"])
def test_nothing_is_left_beside_the_plain_file(tmp_path: Path, found: str) -> None:
    path = tmp_path / "gen-1"
    if found == "folder":
        path.mkdir()
        (path / "split.json").write_text("{}")
    elif found == "file":
        path.touch()
    replace_folder_by_file(path)
    # Without an exchange of names in the file system, the plain file is created where nothing was.
    assert [one.name for one in tmp_path.iterdir()] in ([["gen-1"]] if found != "nothing" else [[], ["gen-1"]])
    assert not path.is_dir()
