"""Files that replace others as a whole."""

import os
import stat
from pathlib import Path

import pytest

from coterie.config.durable_files import replace_private_file


def test_a_private_file_is_replaced_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("old")
    path.chmod(0o644)
    replace_private_file(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_write_that_fails_leaves_the_previous_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "users"
    path.write_text("old")

    def fail(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        replace_private_file(path, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("users", "old")]
