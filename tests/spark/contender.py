"""A process that takes one checkpoint over again and again; prints the names under which it held it."""

import sys
from pathlib import Path

from coterie.spark.checkpoint import is_taken, take_over


def contend(folder: Path, count: int, *, exchange_allowed: bool) -> list[str]:
    taken = []
    for _ in range(count):
        held = take_over(folder, exchange_allowed=exchange_allowed)
        taken.append(held.path.name)
        try:
            # A query in small: it writes where it thinks its checkpoint is, folders and all.
            (held.path / "commits").mkdir(parents=True, exist_ok=True)
            (held.path / "commits" / str(held.starts)).touch()
        except OSError:
            assert is_taken(held.path)
    return taken


if __name__ == "__main__":
    sys.stdout.write(" ".join(contend(Path(sys.argv[1]), int(sys.argv[2]), exchange_allowed=sys.argv[3] == "exchange")))
