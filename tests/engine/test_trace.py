"""The trace keeps the last lines, and the text of an event is short."""

from dataclasses import dataclass, field

import pytest

from coterie.engine.trace import Trace, brief_text
from coterie.nouns.ids import ConfigOffset, LeaderEpoch
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import SetConfiguredJobs


def test_the_recent_text_has_the_last_lines_oldest_first() -> None:
    trace = Trace(entries_max=3)
    for now_ms, line in enumerate(["a", "b", "c", "d"]):
        trace.add(now_ms, line)
    assert [line.split() for line in trace.recent_text().splitlines()] == [["1", "b"], ["2", "c"], ["3", "d"]]
    assert trace.recent_text(entries_count=1).split() == ["3", "d"]


@dataclass(frozen=True)
class Inner:
    jobs: Jobs
    config: dict[str, str]


@dataclass(frozen=True)
class Something:
    number: int
    task: ConnectorTaskId
    inner: Inner
    password: str = field(repr=False)


def test_a_brief_text_has_names_and_single_values_and_counts_the_elements_of_collections() -> None:
    task = ConnectorTaskId(ConnectorName("orders"), 3)
    event = Something(7, task, Inner(Jobs.of([task]), {"connector.class": "FileSource"}), "hunter2")
    assert brief_text(event) == "Something(number=7, task=orders-3, inner=Inner(jobs=<1 in Jobs>, config=<1 in dict>))"


@pytest.mark.parametrize("count", [10, 100_000])
def test_the_size_of_a_brief_text_does_not_depend_on_the_number_of_jobs(count: int) -> None:
    jobs = Jobs.of(ConnectorTaskId(ConnectorName("c" * 1_000), number) for number in range(count))
    text = brief_text(SetConfiguredJobs(leader_epoch=LeaderEpoch(3), config_offset=ConfigOffset(9), jobs=jobs))
    assert f"<{count} in Jobs>" in text
    assert len(text) < 200
