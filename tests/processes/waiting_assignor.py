"""An assignor for tests that signals each computation and waits while a file tells its process to, and its package."""

import os
import time
from pathlib import Path

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot

NAME = "waiting"
FOLDER_VARIABLE = "WAITING_ASSIGNOR_FOLDER"
"""The environment variable with the folder of the files below."""
_POLL_S = 0.01


class WaitingAssignor(CooperativeAssignor):
    """Computes as its base class does, after a wait."""

    name = NAME

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        folder, process = Path(os.environ[FOLDER_VARIABLE]), os.getpid()
        signal_file(folder, process).touch()
        while hold_file(folder, process).exists():
            time.sleep(_POLL_S)
        return super().assign(group)


def hold_file(folder: Path, process: int) -> Path:
    """While this file exists, computations of the process wait."""
    return folder / f"hold-{process}"


def signal_file(folder: Path, process: int) -> Path:
    """This file exists when the process has begun a computation."""
    return folder / f"computing-{process}"


def install(folder: Path) -> dict[str, str]:
    """Install the assignor in ``folder`` as a package; returns the environment variables of a process that has it."""
    metadata = folder / "waiting_assignor-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: waiting-assignor\nVersion: 1.0\n")
    entry_point = f"{NAME} = {__name__}:{WaitingAssignor.__name__}"
    (metadata / "entry_points.txt").write_text(f"[coterie.assignors]\n{entry_point}\n")
    repository = Path(__file__).parents[2]
    before = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), str(repository), *([before] if before else [])]),
        FOLDER_VARIABLE: str(folder),
    }
