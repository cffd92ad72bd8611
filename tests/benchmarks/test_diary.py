"""The cost of a rebalance, computed from the tasks' diaries, for small fleets with evident results."""

from benchmarks.task_log import TaskTimeline, event_cost, fewest_stops, format_entry, parse_entries, quantile


def fleet(text: str, **killed_ms: int) -> TaskTimeline:
    """``text``: a line ``<worker> <at_ms> start|stop <task>`` each."""
    found = []
    for line in text.split("\n"):
        worker, _, entry = line.strip().partition(" ")
        found += parse_entries(f"{entry}\n", worker) if entry else []
    return TaskTimeline(entries=found, killed_ms=killed_ms)


MOVE = """
    a 0 start x
    a 1 start y
    a 1000 stop y
    b 1400 start y
"""


def test_a_complete_line_is_parsed_and_an_incomplete_one_is_skipped() -> None:
    (entry,) = parse_entries(format_entry(12, "stop", "c-0") + "13 sta", "w")
    assert (entry.at_ms, entry.starts, entry.task, entry.worker) == (12, False, "c-0", "w")


def test_a_moved_task_is_down_from_its_stop_to_its_start() -> None:
    figures = event_cost(fleet(MOVE), 500, None)
    assert (figures["stopped"], figures["moved"], figures["others_stopped"]) == (1, 1, 0)
    assert (figures["down_p50_s"], figures["down_sum_s"], figures["to_balanced_s"]) == (0.4, 0.4, 0.9)


def test_a_task_that_restarts_in_place_counts_only_in_the_sum() -> None:
    figures = event_cost(fleet(f"{MOVE}\n a 1100 stop x\n a 1300 start x\n"), 500, None)
    assert (figures["stopped"], figures["moved"], figures["others_stopped"]) == (2, 1, 1)
    assert (figures["others_down_p50_s"], figures["down_sum_s"]) == (0.2, 0.6)


def test_stops_before_the_event_are_not_counted() -> None:
    figures = event_cost(fleet(MOVE), 1_200, None)
    assert (figures["stopped"], figures["moved"], figures["down_sum_s"]) == (0, 0, 0)


def test_tasks_of_a_leaving_worker_count_as_moved_but_not_as_stopped() -> None:
    figures = event_cost(fleet(MOVE + "a 1001 stop x\n b 1500 start x"), 500, "a")
    assert (figures["stopped"], figures["moved"]) == (0, 2)


def test_tasks_of_a_killed_worker_are_down_from_the_kill() -> None:
    figures = event_cost(fleet("a 0 start x\n b 900 start x", a=400), 400, "a")
    assert (figures["moved"], figures["down_p50_s"]) == (1, 0.5)


def test_a_fleet_is_balanced_when_every_task_runs_once_and_evenly() -> None:
    even = fleet(MOVE)
    assert even.is_balanced(["a", "b"], 2)
    assert not even.is_balanced(["a", "b"], 3), "a task is missing"
    assert not even.is_balanced(["a"], 2), "b is not in the fleet"
    assert not fleet("a 0 start x\n b 0 start x").is_balanced(["a", "b"], 2), "a task runs twice"
    assert not fleet("a 0 start x\n a 0 start y").is_balanced(["a", "b"], 2), "the tasks are spread unevenly"


def test_the_fewest_stops_are_the_tasks_above_an_even_share() -> None:
    assert fewest_stops({"a": 30, "b": 30, "c": 30}, ["a", "b", "c", "d"]) == 22
    assert fewest_stops({"a": 23, "b": 23, "c": 22, "d": 22}, ["a", "b", "c"]) == 0


def test_a_quantile_of_an_empty_list_is_zero() -> None:
    assert (quantile([], 0.5), quantile([3, 1, 2], 0.5), quantile([1, 2], 0.99)) == (0, 2, 2)
