"""Does the simulator find bugs? Plant each of `bugs.toml` into a copy of the sources and see which seed finds it.

The clean copy has to pass first. Then only a broken invariant that the bug names counts as found: a crash, an import
error or another invariant does not.

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"
VERDICT = re.compile(r"^seed (\d+) breaks ([a-z-]+): (.*)$", re.MULTILINE)
PLACE = "import coterie, sys; sys.stdout.write(coterie.__file__)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    name: str
    file: str
    search: str
    replace: str
    breaks: tuple[str, ...]
    play: str = "fleet"
    """Whose seeds are to find it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the simulator said: ``invariant`` None with code 0 is a pass, with another code a crash."""

    code: int
    seed: int | None = None
    invariant: str | None = None
    text: str = ""


def read_bugs(path: Path = HERE / "bugs.toml") -> list[Bug]:
    bugs = tomllib.loads(path.read_text())["bug"]
    return [Bug(**{**bug, "breaks": tuple(bug["breaks"])}) for bug in bugs]


def plant(bug: Bug, sources: Path) -> None:
    """:raises ValueError: when the code is not what the bug was made for."""
    path = sources / "coterie" / bug.file
    text = path.read_text()
    if text.count(bug.search) != 1:
        raise ValueError(f"{bug.file} holds {text.count(bug.search)} times what {bug.name!r} searches for; mend it")
    path.write_text(text.replace(bug.search, bug.replace))


def simulate(sources: Path, play: str, seeds: str) -> Run:
    environment = {**os.environ, "PYTHONPATH": str(sources), "PYTHONDONTWRITEBYTECODE": "1"}
    place = _python(["-c", PLACE], environment).stdout
    assert Path(place).is_relative_to(sources), f"the copy is not what runs: {place}"
    ended = _python(["-m", "coterie.lab.simulator", "--play", play, "--seeds", seeds], environment)
    verdict = VERDICT.search(ended.stdout)
    if verdict is None:
        return Run(code=ended.returncode, text=(ended.stdout + ended.stderr)[-1_500:])
    return Run(code=ended.returncode, seed=int(verdict[1]), invariant=verdict[2], text=verdict[3])


def _python(arguments: Sequence[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def try_bug(bug: Bug, seeds: str) -> Run:
    """Copy, plant, simulate."""
    return in_a_copy(bug, bug.play, seeds)


def in_a_copy(bug: Bug | None, play: str, seeds: str) -> Run:
    """Without a bug: the clean tree."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        sources = Path(folder) / "src"
        shutil.copytree(SOURCES, sources, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        if bug is not None:
            plant(bug, sources)
        return simulate(sources, play, seeds)


def told(bug: Bug, run: Run) -> tuple[bool, str]:
    """Whether ``bug`` was found, and one line that says how."""
    if run.invariant in bug.breaks:
        return True, f"found at seed {run.seed:>3}  {run.invariant:<22} {bug.name}"
    if run.invariant is not None:
        return False, f"NOT FOUND: seed {run.seed} breaks {run.invariant} ({run.text}) instead: {bug.name}"
    if run.code == 0:
        return False, f"NOT FOUND within these seeds: {bug.name}"
    return False, f"NOT FOUND: the simulator crashed: {bug.name}\n{run.text}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1-200", help="default: %(default)s")
    parser.add_argument("--clean-seeds", default="1-40", help="that the clean copy must pass; default: %(default)s")
    parser.add_argument("--only", default="", help="only bugs whose name holds this")
    parser.add_argument("--file", default="", help="only bugs whose file begins so, as in herder/")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    bugs = [bug for bug in read_bugs() if options.only in bug.name and bug.file.startswith(options.file)]
    for play in sorted({bug.play for bug in bugs}):
        clean = in_a_copy(None, play, options.clean_seeds)
        if clean.code != 0:
            sys.stdout.write(
                f"the clean sources do not pass: seed {clean.seed} of {play} breaks {clean.invariant}: {clean.text}\n"
            )
            return 1
        sys.stdout.write(f"the clean sources pass seeds {options.clean_seeds} of {play}\n")
    found = 0
    with ThreadPoolExecutor(options.processes) as pool:
        for bug, run in zip(bugs, pool.map(lambda bug: try_bug(bug, options.seeds), bugs), strict=True):
            was_found, line = told(bug, run)
            found += was_found
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{found} of {len(bugs)} found\n")
    return 0 if found == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
