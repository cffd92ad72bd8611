"""``python -m coterie.lab.simulator --seeds 1-40``: one digest a seed; the first that fails is told and ends it."""

import argparse
import sys
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import partial
from multiprocessing import get_context

from coterie.lab.simulator.clients.run import simulate_clients
from coterie.lab.simulator.outcome import Outcome
from coterie.lab.simulator.producers.run import simulate_producers
from coterie.lab.simulator.run import simulate

PLAYS = {"fleet": simulate, "clients": simulate_clients, "producers": simulate_producers}
"""Workers with their connectors; ordinary clients, static and dynamic ones, with their offsets; producers with their
transactions."""


def seeds(text: str) -> Iterator[int]:
    """``3``, ``1-40``, or several of both between commas or blanks."""
    for part in text.replace(",", " ").split():
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def outcomes(play: str, wanted: Iterator[int], *, story_lines: int, jobs: int) -> Generator[Outcome, None, None]:
    """In the order of the seeds, whichever of ``jobs`` processes has played them."""
    one = partial(PLAYS[play], story_lines=story_lines)
    if jobs == 1:
        yield from map(one, wanted)
    else:
        with get_context("spawn").Pool(jobs) as pool:
            yield from pool.imap(one, wanted)


def told(outcome: Outcome) -> str:
    minutes = outcome.virtual_ms / 60_000
    return (
        f"seed {outcome.seed:>5}  {outcome.digest}  {minutes:4.1f} virtual minutes"
        f"  {outcome.events:>6} events  {outcome.generations:>4} generations"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m coterie.lab.simulator", description=__doc__)
    parser.add_argument("--seeds", default="1-40", help="3, 1-40, or several of both (default: %(default)s)")
    parser.add_argument("--play", choices=sorted(PLAYS), default="fleet", help="who plays (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="tell of every hundredth seed only")
    parser.add_argument("--lines", type=int, default=15, help="lines of the trace to show when a seed fails")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play (default: %(default)s)")
    options = parser.parse_args(arguments)
    played = outcomes(options.play, seeds(options.seeds), story_lines=options.lines, jobs=options.jobs)
    with closing(played):
        for outcome in played:
            seed = outcome.seed
            if not options.quiet or seed % 100 == 0 or outcome.violation is not None:
                sys.stdout.write(told(outcome) + "\n")
            if outcome.violation is not None:
                sys.stdout.write(
                    f"{outcome.story}\n\nseed {seed} breaks {outcome.violation}\n"
                    f"repeat: python -m coterie.lab.simulator --play {options.play} --seeds {seed} --lines 200\n"
                )
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
