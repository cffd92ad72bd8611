"""A folder of bad records behind another mount of the same device, in a mount namespace; see ``test_file_copies.py``.

``python -m tests.spark.sinks.file_mounts FOLDER`` prints, as JSON, the error of a start, and the good rows.
"""

import json
import subprocess
import sys
from pathlib import Path

from coterie.nouns.errors import WorldError
from tests.spark.sinks.file_owners import LINEAGE, folder_at, visible


def main() -> None:
    path = Path(sys.argv[1])
    bad, volume = path / "bad", path / "volume"
    folder = folder_at(path / "out", bad=bad)
    copy = folder.new_batch_copy(LINEAGE, 0)
    copy.check_sink_and_create_staging_folder()
    for files, row in ((copy.good_files, "a"), (copy.bad_files, "b")):
        files.folder.mkdir(exist_ok=True)
        (files.folder / files.file_name(0, ".json")).write_text(row)
    copy._commit_by_rename()
    volume.mkdir()
    subprocess.run(["mount", "--bind", volume, bad], check=True)
    assert bad.stat().st_dev == path.stat().st_dev
    try:
        folder.take_over(LINEAGE)
    except WorldError as error:
        sys.stdout.write(json.dumps([str(error), visible(path / "out")]))


if __name__ == "__main__":
    main()
