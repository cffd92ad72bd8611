"""``python -m coterie.lab.simulator --seeds 1-40``: one digest a seed; the first that fails is told and ends it."""

import argparse
import sys
from collections.abc import Iterator

from coterie.lab.simulator.run import Outcome, simulate


def seeds(text: str) -> Iterator[int]:
    """``3``, ``1-40``, or several of both between commas or blanks."""
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def told(outcome: Outcome) -> str:
    minutes = outcome.virtual_ms / 60_000
    return (
        f"seed {outcome.seed:>5}  {outcome.digest}  {minutes:4.1f} virtual minutes"
        f"  {outcome.events:>6} events  {outcome.generations:>4} generations"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m coterie.lab.simulator", description=__doc__)
    parser.add_argument("--seeds", default="1-40", help="3, 1-40, or several of both (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=15, help="lines of the trace to show when a seed fails")
    options = parser.parse_args(arguments)
    for seed in seeds(options.seeds):
        outcome = simulate(seed, story_lines=options.lines)
        sys.stdout.write(told(outcome) + "\n")
        if outcome.violation is not None:
            sys.stdout.write(
                f"{outcome.story}\n\nseed {seed} breaks {outcome.violation}\n"
                f"repeat: python -m coterie.lab.simulator --seeds {seed} --lines 200\n"
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
