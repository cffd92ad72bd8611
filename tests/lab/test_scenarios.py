"""KIP-415's scenarios, played by the real machines and compared with the document's own lines.

``SCENARIOS=rewrite`` rewrites the answers; the difference is then reviewed like any other. It does not change the
quotes from the document, nor the list of deviations.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.lab.scenario.notation import format_jobs, parse_jobs
from coterie.lab.scenario.transcript import TranscriptBlock, parse_transcript, render_transcript, run_transcript
from coterie.lab.scenario.workers_scenario import DEFAULT_MAX_DELAY_MS, WorkersScenario
from coterie.nouns.jobs import NO_JOBS
from coterie.wire.connect import ConnectProtocol
from tests.lab.recorded_transcript import check_recorded

FOLDER = Path(__file__).parent.parent / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
QUOTE = "# K415 "
EXPLANATION = re.compile(r"d'+ is the remaining delay")
ROUND = re.compile(r"(?P<who>W\d+)\(delay: (?P<delay>[^,]+), assigned: \[.*\], revoked: \[.*\]\)")


def read(name: str) -> str:
    return (FOLDER / name).read_text()


def normalized(line: str) -> str:
    """One spelling: CO read as C0, jobs in one order, delays without their number, no decoration."""
    line = re.sub(r"\b([A-Z])CO\b", r"\1C0", line.strip().rstrip("."))
    line = re.sub(r"\s+\(generation \d+\)", "", line)
    line = re.sub(r"\[([^\]]*)\]", lambda found: format_jobs(parse_jobs(found[1])), line)
    line = re.sub(r"delay: (?!0,)[^,]+", "delay: d", line)
    line = re.sub(r"^After delay [^:]+:", "After delay d:", line)
    return re.sub(r"^Before delay .* expires:", "Before delay d expires:", line)


def quoted_lines(block: TranscriptBlock) -> list[str]:
    return [line.removeprefix(QUOTE) for line in block.remarks_after_command if line.startswith(QUOTE)]


def normalized_answers(block: TranscriptBlock) -> list[str]:
    return [normalized(line) for line in block.output_lines]


def document() -> dict[str, str]:
    """KIP-415's own text by scenario."""
    parts = re.findall(r"^## (\w+): .*?```\n(.*?)\n```", read("k415.md"), flags=re.MULTILINE | re.DOTALL)
    return dict(parts)


def deviations() -> dict[str, dict[str, str]]:
    """By scenario: KIP-415's line, and the line of our transcript instead."""
    found: dict[str, dict[str, str]] = {}
    for section in read("deviations.md").split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        entries = re.findall(r"^- K415: (.+)\n- ours: (.+)\n- ruling: (.+)$", text, flags=re.MULTILINE)
        assert len(entries) == text.count("- K415:"), f"every deviation of {name} must have its three lines"
        found[name] = {normalized(theirs): normalized(ours) for theirs, ours, _ in entries}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_transcript_equals_the_played_one(name: str) -> None:
    check_recorded(FOLDER / f"{name}.txt")


@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_quotes_every_line_of_the_document(name: str) -> None:
    lines = [quote for block in parse_transcript(read(f"{name}.txt")) for quote in quoted_lines(block)]
    expected = document()[name].splitlines()
    if name in ("leader_leaves", "leader_bounces"):
        # The document lists joins by name. Here W3 joins before W2, because the first member to rejoin becomes leader.
        assert Counter(lines) == Counter(expected)
    else:
        assert lines == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_machines_follow_the_document_except_for_the_listed_deviations(name: str) -> None:
    accepted = deviations().get(name, {})
    used = set()
    for block in parse_transcript(read(f"{name}.txt")):
        ours = normalized_answers(block)
        expected = []
        for quote in quoted_lines(block):
            if EXPLANATION.fullmatch(quote):
                continue
            line = normalized(quote)
            used |= {line} & accepted.keys()
            expected.append(accepted.get(line, line))
        missing = Counter(expected) - Counter(ours)
        assert not missing, f"after {block.command!r}: {sorted(missing)}"
        # The document omits some joins, but no rebalance: the rebalances must be the same.
        rounds = [line for line in ours if ROUND.fullmatch(line)]
        assert rounds == [line for line in expected if ROUND.fullmatch(line)]
        assert ours.count("Rebalance is triggered") == expected.count("Rebalance is triggered")
    assert used == accepted.keys(), "every listed deviation must be needed"


@pytest.mark.parametrize("name", NAMES)
def test_a_delay_begins_with_its_maximum_and_then_decreases(name: str) -> None:
    for quoted, ours in delays(parse_transcript(read(f"{name}.txt"))):
        if quoted == "0":
            assert ours == 0
        elif quoted == "d":
            assert ours == DEFAULT_MAX_DELAY_MS
        else:
            assert 0 < ours < DEFAULT_MAX_DELAY_MS
    by_quote: dict[str, set[int]] = {}
    for quoted, ours in delays(parse_transcript(read(f"{name}.txt"))):
        by_quote.setdefault(quoted, set()).add(ours)
    assert all(len(values) == 1 for values in by_quote.values()), "one delay per rebalance, the same for every worker"
    counted_down = [min(by_quote[quoted]) for quoted in sorted(by_quote, key=len) if quoted != "0"]
    assert counted_down == sorted(counted_down, reverse=True)


def delays(blocks: list[TranscriptBlock]) -> Iterator[tuple[str, int]]:
    """The document's delay of each worker in each rebalance, and ours."""
    for block in blocks:
        ours = {
            found["who"]: int(found["delay"])
            for found in map(ROUND.fullmatch, map(str.strip, block.output_lines))
            if found
        }
        for found in map(ROUND.fullmatch, quoted_lines(block)):
            if found:
                yield found["delay"], ours[found["who"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_moves_of_every_scenario_equal_the_optimum_and_the_bound(name: str) -> None:
    counted = re.findall(r"^  moves: (\d+), optimum: (\d+), M\*: (\d+)$", read(f"{name}.txt"), flags=re.MULTILINE)
    assert counted
    assert all(moves == optimum == bound for moves, optimum, bound in counted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", [ConnectProtocol.COMPATIBLE, ConnectProtocol.SESSIONED])
def test_without_static_workers_a_group_behaves_as_with_older_protocols(name: str, protocol: ConnectProtocol) -> None:
    """KIP-987: "A `static` protocol cluster with no static workers behaves identically to the `sessioned` protocol"."""
    text = read(f"{name}.txt")
    assert render_transcript(run_transcript(parse_transcript(text), read, protocol)) == text


def test_the_transcripts_are_the_documents_scenarios() -> None:
    assert sorted(document()) == NAMES


def test_an_invalid_script_is_refused() -> None:
    for text in ("> dance\n", "> wait long\n", "> wait until the delay is over\n", "> config X9\n", "an answer\n"):
        with pytest.raises(ValueError, match=r"."):
            run_transcript(parse_transcript(text), read)


def test_jobs_may_change_while_a_dead_worker_is_still_the_leader() -> None:
    blocks = parse_transcript("> config AC0\n> W1 joins\n> W2 joins\n> W1 dies\n> config AC0 AT1\n")
    run_transcript(blocks, read)
    assert blocks[-1].command == "config AC0 AT1"


def test_a_worker_that_lost_its_membership_triggers_only_one_rebalance() -> None:
    stage = WorkersScenario()
    stage.set_jobs_and_let_leader_rejoin(parse_jobs("AC0"))
    stage.start_worker("W1")
    worker = stage.workers["W1"]
    worker.eager_assigned_jobs, worker.jobs_stopped_before_join = NO_JOBS, parse_jobs("AC0")
    worker.handle_lost_membership()
    stage.output_lines.clear()
    stage.rejoin_worker("W1")
    assert stage.output_lines.count("Rebalance is triggered") == 1
    assert not worker.jobs_stopped_before_join
