from coterie.cli.demo.rebalances import RebalanceReporter
from coterie.nouns.jobs import ConnectorTaskId

A0, A1, B0, B1 = (ConnectorTaskId.parse(text) for text in ("a-0", "a-1", "b-0", "b-1"))


def test_each_rebalance_is_printed_with_moved_restarted_and_unaffected_tasks() -> None:
    lines: list[str] = []
    rebalances = RebalanceReporter(lines.append)
    first = {A0: "w0", A1: "w1", B0: "w2", B1: "w0"}
    rebalances.report_if_changed(first, dict.fromkeys(first, 1))
    rebalances.report_if_changed(first, dict.fromkeys(first, 1))
    rebalances.report_if_changed({**first, A1: "w2"}, {A0: 1, A1: 2, B0: 1, B1: 2})
    assert lines == [
        "Rebalance: the first tasks are assigned: w0 a-0, b-1; w1 a-1; w2 b-0",
        "Rebalance: moved: a-1 w1 → w2; restarted on the same worker: b-1; not stopped: a-0, b-0",
    ]
