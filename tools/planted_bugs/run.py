"""Checks that planted bugs are found: plants each bug of `bugs.toml` into a copy of the sources, runs seeds or a test.

The simulator must find a bug of the group protocols, and the test that a bug names must find a bug of the data plane.
The clean copy must pass first. A bug counts as found only if an invariant that it names is broken, or an assertion of
its test fails: a crash, an import error or another invariant does not count.

    python tools/planted_bugs/run.py [--seeds 1-200] [--only WORDS] [--file PREFIX]
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "src"
VERDICT = re.compile(r"^seed (\d+) breaks ([a-z-]+): (.*)$", re.MULTILINE)
FAILED_ASSERTION = re.compile(r"^FAILED .+? - (?:AssertionError|assert |Failed: DID NOT RAISE).*$", re.MULTILINE)
PLACE = "import coterie, sys; sys.stdout.write(coterie.__file__)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBug:
    name: str
    file: str
    search: str
    replace: str
    breaks: tuple[str, ...]
    """The invariants of which one must break."""
    play: str = "fleet"
    """The play whose seeds must find the bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedBug:
    name: str
    file: str
    search: str
    replace: str
    test: str
    """The pytest id of the test that must fail."""


Bug = SimulatedBug | TestedBug


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The simulator's result: ``invariant`` None with code 0 is a pass, with another code a crash."""

    code: int
    seed: int | None = None
    invariant: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestRun:
    """Pytest's result: ``assertion`` is the summary of the failed one, None if all tests passed or one crashed."""

    code: int
    assertion: str | None = None
    text: str = ""


def read_bugs(path: Path = HERE / "bugs.toml") -> list[Bug]:
    bugs = tomllib.loads(path.read_text())["bug"]
    return [
        TestedBug(**bug) if "test" in bug else SimulatedBug(**{**bug, "breaks": tuple(bug["breaks"])}) for bug in bugs
    ]


def plant(bug: Bug, sources: Path) -> None:
    """:raises ValueError: if the code has changed, so that the bug's search text does not occur exactly once."""
    path = sources / "coterie" / bug.file
    text = path.read_text()
    if text.count(bug.search) != 1:
        raise ValueError(f"{bug.file} holds {text.count(bug.search)} times what {bug.name!r} searches for; mend it")
    path.write_text(text.replace(bug.search, bug.replace))


def simulate(sources: Path, play: str, seeds: str) -> Run:
    ended = _python(["-m", "coterie.lab.simulator", "--play", play, "--seeds", seeds], sources)
    verdict = VERDICT.search(ended.stdout)
    if verdict is None:
        return Run(code=ended.returncode, text=(ended.stdout + ended.stderr)[-1_500:])
    return Run(code=ended.returncode, seed=int(verdict[1]), invariant=verdict[2], text=verdict[3])


def run_tests(sources: Path, tests: Sequence[str]) -> PytestRun:
    options = ["-q", "-x", "-rf", "--tb=short", "-p", "no:randomly", "-p", "no:cacheprovider"]
    ended = _python(["-m", "pytest", *options, *tests], sources)
    failed = FAILED_ASSERTION.search(ended.stdout)
    return PytestRun(
        code=ended.returncode,
        assertion=None if failed is None else failed[0],
        text=(ended.stdout + ended.stderr)[-1_500:],
    )


def _python(arguments: Sequence[str], sources: Path) -> "subprocess.CompletedProcess[str]":
    # pytest truncates its summary at the width of the terminal.
    environment = {
        **os.environ,
        "PYTHONPATH": str(sources),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COLUMNS": "300",
    }

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )

    place = run("-c", PLACE).stdout
    assert Path(place).is_relative_to(sources), f"the copy is not what runs: {place}"
    return run(*arguments)


@contextmanager
def a_copy(bug: Bug | None) -> Iterator[Path]:
    """The sources with ``bug`` in them; without one, the clean sources."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        sources = Path(folder) / "src"
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        if bug is not None:
            plant(bug, sources)
        yield sources


def try_bug(bug: Bug, seeds: str) -> tuple[bool, str]:
    """Whether ``bug`` was found, and one line about how."""
    with a_copy(bug) as sources:
        match bug:
            case SimulatedBug():
                return found_by_seed(bug, simulate(sources, bug.play, seeds))
            case TestedBug():
                return found_by_test(bug, run_tests(sources, [bug.test]))


def found_by_seed(bug: SimulatedBug, run: Run) -> tuple[bool, str]:
    if run.invariant in bug.breaks:
        return True, f"found at seed {run.seed:>3}  {run.invariant:<22} {bug.name}"
    if run.invariant is not None:
        return False, f"NOT FOUND: seed {run.seed} breaks {run.invariant} ({run.text}) instead: {bug.name}"
    if run.code == 0:
        return False, f"NOT FOUND within these seeds: {bug.name}"
    return False, f"NOT FOUND: the simulator crashed: {bug.name}\n{run.text}"


def found_by_test(bug: TestedBug, run: PytestRun) -> tuple[bool, str]:
    if run.assertion is not None:
        return True, f"found by a test                       {bug.name}"
    if run.code == 0:
        return False, f"NOT FOUND: {bug.test} passes: {bug.name}"
    return False, f"NOT FOUND: {bug.test} crashed: {bug.name}\n{run.text}"


def fault_of_clean_sources(bugs: Sequence[Bug], seeds: str) -> str | None:
    """The first failure, without a bug, of the seeds and tests that must find ``bugs``; None if all pass."""
    with a_copy(None) as sources:
        for play in sorted({bug.play for bug in bugs if isinstance(bug, SimulatedBug)}):
            clean = simulate(sources, play, seeds)
            if clean.code != 0:
                return f"seed {clean.seed} of {play} breaks {clean.invariant}: {clean.text}"
        tests = sorted({bug.test for bug in bugs if isinstance(bug, TestedBug)})
        if tests and (ended := run_tests(sources, tests)).code != 0:
            return f"{ended.assertion or 'a test crashed'}\n{ended.text}"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-200", help="default: %(default)s")
    parser.add_argument("--clean-seeds", default="1-40", help="seeds of the clean copy; default: %(default)s")
    parser.add_argument("--only", default="", help="only bugs whose name contains this text")
    parser.add_argument("--file", default="", help="only bugs whose file begins with this, for example herder/")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    bugs = [bug for bug in read_bugs() if options.only in bug.name and bug.file.startswith(options.file)]
    if (fault := fault_of_clean_sources(bugs, options.clean_seeds)) is not None:
        sys.stdout.write(f"the clean sources do not pass: {fault}\n")
        return 1
    sys.stdout.write(f"the clean sources pass (seeds {options.clean_seeds} of each play, and the tests)\n")
    found = 0
    with ThreadPoolExecutor(options.processes) as pool:
        for was_found, line in pool.map(lambda bug: try_bug(bug, options.seeds), bugs):
            found += was_found
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{found} of {len(bugs)} found\n")
    return 0 if found == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
