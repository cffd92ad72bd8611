"""What a rebalance cost, by what tasks wrote down: told of small fleets whose figures can be seen."""

from benchmarks.diary import Fleet, cost, entries, fewest_stops, line_of, quantile


def fleet(text: str, **killed_ms: int) -> Fleet:
    """``text``: a line ``<worker> <at_ms> start|stop <task>`` each."""
    found = []
    for line in text.split("\n"):
        worker, _, entry = line.strip().partition(" ")
        found += entries(f"{entry}\n", worker) if entry else []
    return Fleet(entries=found, killed_ms=killed_ms)


MOVE = """
    a 0 start x
    a 1 start y
    a 1000 stop y
    b 1400 start y
"""


def test_a_line_is_read_as_it_was_written_and_one_that_is_being_written_is_left() -> None:
    (entry,) = entries(line_of(12, "stop", "c-0") + "13 sta", "w")
    assert (entry.at_ms, entry.starts, entry.task, entry.worker) == (12, False, "c-0", "w")


def test_a_task_that_moves_is_down_from_its_stop_to_its_start() -> None:
    figures = cost(fleet(MOVE), 500, None)
    assert (figures["stopped"], figures["moved"], figures["others_stopped"]) == (1, 1, 0)
    assert (figures["down_p50_s"], figures["down_sum_s"], figures["to_balanced_s"]) == (0.4, 0.4, 0.9)


def test_a_task_that_stops_and_stays_is_another_one_and_counts_in_the_sum() -> None:
    figures = cost(fleet(f"{MOVE}\n a 1100 stop x\n a 1300 start x\n"), 500, None)
    assert (figures["stopped"], figures["moved"], figures["others_stopped"]) == (2, 1, 1)
    assert (figures["others_down_p50_s"], figures["down_sum_s"]) == (0.2, 0.6)


def test_what_was_before_the_event_is_not_counted() -> None:
    figures = cost(fleet(MOVE), 1_200, None)
    assert (figures["stopped"], figures["moved"], figures["down_sum_s"]) == (0, 0, 0)


def test_tasks_of_a_worker_that_goes_move_without_being_counted_as_stopped() -> None:
    figures = cost(fleet(MOVE + "a 1001 stop x\n b 1500 start x"), 500, "a")
    assert (figures["stopped"], figures["moved"]) == (0, 2)


def test_whoever_is_killed_runs_nothing_any_more() -> None:
    figures = cost(fleet("a 0 start x\n b 900 start x", a=400), 400, "a")
    assert (figures["moved"], figures["down_p50_s"]) == (1, 0.5)


def test_a_fleet_is_balanced_when_every_task_runs_once_and_evenly() -> None:
    even = fleet(MOVE)
    assert even.is_balanced(["a", "b"], 2)
    assert not even.is_balanced(["a", "b"], 3), "one is missing"
    assert not even.is_balanced(["a"], 2), "b is not of the fleet"
    assert not fleet("a 0 start x\n b 0 start x").is_balanced(["a", "b"], 2), "twice"
    assert not fleet("a 0 start x\n a 0 start y").is_balanced(["a", "b"], 2), "uneven"


def test_the_fewest_stops_are_those_above_an_even_share() -> None:
    assert fewest_stops({"a": 30, "b": 30, "c": 30}, ["a", "b", "c", "d"]) == 22
    assert fewest_stops({"a": 23, "b": 23, "c": 22, "d": 22}, ["a", "b", "c"]) == 0


def test_a_quantile_of_nothing_is_nothing() -> None:
    assert (quantile([], 0.5), quantile([3, 1, 2], 0.5), quantile([1, 2], 0.99)) == (0, 2, 2)
