"""The trace keeps the last lines."""

from coterie.engine.trace import Trace


def test_the_story_is_the_last_lines_oldest_first() -> None:
    trace = Trace(lines_max=3)
    for now_ms, line in enumerate(["a", "b", "c", "d"]):
        trace.add(now_ms, line)
    assert [line.split() for line in trace.story().splitlines()] == [["1", "b"], ["2", "c"], ["3", "d"]]
    assert trace.story(last=1).split() == ["3", "d"]
