"""The folder of a broker's data, made so that the machine's other users, whom no rule binds, cannot look into it."""

from pathlib import Path


def make_folder(path: Path) -> None:
    """Where there is one it stays as it is: its mode is its owner's decision.

    :raises OSError: when it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
