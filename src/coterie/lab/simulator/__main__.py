"""``python -m coterie.lab.simulator --seeds 1-40`` prints one line with a digest for each seed. At the first seed that
breaks an invariant it stops, prints the end of that seed's trace, and exits with code 1.

If no invariant is broken, ``--write FILE`` writes the digests to a file, one line ``seed digest`` for each seed.
``--compare FILE`` runs the seeds of ``--seeds``, by default all seeds of the file, and exits with code 1 if a digest is
not the one that the file has for this seed.
"""

import argparse
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from coterie.lab.simulator.clients.run import simulate_clients
from coterie.lab.simulator.connect.run import simulate_connect_group
from coterie.lab.simulator.fleet.run import simulate_fleet
from coterie.lab.simulator.outcome import SimulationOutcome
from coterie.lab.simulator.producers.run import simulate_producers

SIMULATE_FUNCTION_BY_PLAY = {
    "fleet": simulate_fleet,
    "connect": simulate_connect_group,
    "clients": simulate_clients,
    "producers": simulate_producers,
}
"""The simulations by name: workers with connectors in a classic group, and in a connect group; ordinary clients, static
and dynamic, with offsets; producers with transactions."""


def parse_seeds(text: str) -> Sequence[int]:
    """The seeds that ``text`` lists: single seeds (``3``) or ranges with both ends (``1-40``), separated by commas or
    blanks.

    :raises argparse.ArgumentTypeError: when a part of ``text`` is neither a seed nor a range, or there is no seed.
    """
    ranges: list[range] = []
    for part in text.replace(",", " ").split():
        first_seed, dash, last_seed = part.partition("-")
        try:
            ranges.append(range(int(first_seed), int(last_seed if dash else first_seed) + 1))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} is neither a seed (3) nor a range of seeds (1-40)") from None
        if not ranges[-1]:
            raise argparse.ArgumentTypeError(f"the range {part} is empty: write the lower seed first")
    if not ranges:
        raise argparse.ArgumentTypeError("no seed is given")
    return [seed for seeds in ranges for seed in seeds]


def parse_os_process_count(text: str) -> int:
    """The number of the operating system's processes that ``text`` states: these run the seeds at the same time.

    :raises argparse.ArgumentTypeError: when it is not a number, or less than 1.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes: 1 or more")
    return int(text)


def run_seeds(
    play: str, seeds: Iterable[int], *, trace_lines: int, process_count: int
) -> Generator[SimulationOutcome, None, None]:
    """Run the simulation ``play`` (a key of `SIMULATE_FUNCTION_BY_PLAY`) with each of ``seeds``: in this process if
    ``process_count`` is 1, otherwise in that many new processes. Yields the outcomes in the order of the seeds; each
    contains the last ``trace_lines`` lines of the trace."""
    simulate = partial(SIMULATE_FUNCTION_BY_PLAY[play], trace_lines=trace_lines)
    if process_count == 1:
        yield from map(simulate, seeds)
    else:
        with get_context("spawn").Pool(process_count) as pool:
            yield from pool.imap(simulate, seeds)


def summary_line(outcome: SimulationOutcome) -> str:
    """One line of text with the seed, its digest, the simulated minutes, the number of callbacks (as "events"), and the
    `SimulationOutcome.generation_or_transaction_count`."""
    minutes = outcome.simulated_ms / 60_000
    return (
        f"seed {outcome.seed:>5}  {outcome.digest}  {minutes:4.1f} virtual minutes"
        f"  {outcome.callback_count:>6} events  {outcome.generation_or_transaction_count:>4} generations"
    )


def read_digests(file: Path) -> dict[int, str]:
    """The digests in ``file``, which ``--write`` has written, by seed."""
    return {int(seed): digest for seed, digest in map(str.split, file.read_text().splitlines())}


def main(arguments: list[str] | None = None) -> int:
    """Run the command with ``arguments``; None means the command line of the process. Returns the exit code: 1 if an
    invariant is broken or a digest is not the one in the file of ``--compare``, otherwise 0.

    :raises SystemExit: when the arguments are not valid, or ask for help.
    """
    parser = argparse.ArgumentParser(prog="python -m coterie.lab.simulator", description=__doc__)
    parser.add_argument(
        "--seeds",
        type=parse_seeds,
        help="the seeds, such as 3, 1-40 or 1-3,7 (default: 1-40, or all seeds in the file of --compare)",
    )
    parser.add_argument(
        "--play",
        choices=sorted(SIMULATE_FUNCTION_BY_PLAY),
        default="fleet",
        help="the simulation (default: %(default)s)",
    )
    parser.add_argument(
        "--quiet", action="store_true", help="print the lines only of seeds that are multiples of 100, and failures"
    )
    parser.add_argument(
        "--lines",
        type=int,
        default=15,
        help="how many of the last lines of the trace to print when a seed fails (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=parse_os_process_count,
        default=1,
        help="number of processes that run seeds at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="write each seed with its digest to a file, if no seed breaks an invariant",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="exit with code 1 if a digest is not the one that a file of --write has for this seed",
    )
    options = parser.parse_args(arguments)
    expected_digests = read_digests(options.compare) if options.compare is not None else None
    seeds = options.seeds if options.seeds is not None else list(expected_digests or range(1, 41))
    digests: dict[int, str] = {}
    seed_outcomes = run_seeds(options.play, seeds, trace_lines=options.lines, process_count=options.jobs)
    with closing(seed_outcomes):
        for outcome in seed_outcomes:
            seed = outcome.seed
            digests[seed] = outcome.digest
            if not options.quiet or seed % 100 == 0 or outcome.violation is not None:
                sys.stdout.write(summary_line(outcome) + "\n")
            if outcome.violation is not None:
                sys.stdout.write(
                    f"{outcome.trace_text}\n\nseed {seed} breaks {outcome.violation}\n"
                    f"repeat: python -m coterie.lab.simulator --play {options.play} --seeds {seed} --lines 200\n"
                )
                return 1
    if options.write is not None:
        options.write.write_text("".join(f"{seed} {digest}\n" for seed, digest in digests.items()))
    differing_seeds = [
        seed
        for seed, digest in digests.items()
        if expected_digests is not None and expected_digests.get(seed) != digest
    ]
    if differing_seeds:
        sys.stdout.write(
            f"{len(differing_seeds)} of {len(digests)} digests are missing in {options.compare} or differ from it: "
            f"seeds {differing_seeds}\n"
        )
    return 1 if differing_seeds else 0


if __name__ == "__main__":
    sys.exit(main())
