"""The trace keeps the last lines."""

from coterie.engine.trace import Trace


def test_the_recent_text_has_the_last_lines_oldest_first() -> None:
    trace = Trace(entries_max=3)
    for now_ms, line in enumerate(["a", "b", "c", "d"]):
        trace.add(now_ms, line)
    assert [line.split() for line in trace.recent_text().splitlines()] == [["1", "b"], ["2", "c"], ["3", "d"]]
    assert trace.recent_text(entries_count=1).split() == ["3", "d"]
