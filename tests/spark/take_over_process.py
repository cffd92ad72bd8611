"""A process that takes one checkpoint over repeatedly; prints the names under which it held the checkpoint."""

import sys
from pathlib import Path

from coterie.spark.checkpoint import is_checkpoint_taken_over_or_absent, take_over_checkpoint


def take_over_repeatedly(folder: Path, count: int, *, tries_exchange_first: bool) -> list[str]:
    taken = []
    for _ in range(count):
        held = take_over_checkpoint(folder, tries_exchange_first=tries_exchange_first)
        taken.append(held.path.name)
        try:
            # A small model of a query: it writes to the path of its checkpoint, and creates missing folders.
            (held.path / "commits").mkdir(parents=True, exist_ok=True)
            (held.path / "commits" / str(held.task_start_number)).touch()
        except OSError:
            assert is_checkpoint_taken_over_or_absent(held.path)
    return taken


if __name__ == "__main__":
    sys.stdout.write(
        " ".join(
            take_over_repeatedly(Path(sys.argv[1]), int(sys.argv[2]), tries_exchange_first=sys.argv[3] == "exchange")
        )
    )
