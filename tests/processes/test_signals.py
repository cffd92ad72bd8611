"""A worker's whole process group gets a signal to end, as from systemd, ``timeout`` and a terminal."""

import os
import signal

import pytest

from coterie.spark.checkpoint import find_batch_id_in_flight
from tests.processes.cluster import CONNECT_IN_SOAK, TASKS, Cluster, Feed, Process, until

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(300)]


def assert_quiet(process: Process) -> None:
    """Check that the worker logged no error while it ended."""
    lines = process.log.read_text().splitlines()
    odd = ("Traceback", "Error", "Exception", "Py4J", "SparkContext")
    assert [line for line in lines if any(word in line for word in odd)] == []


@CONNECT_IN_SOAK
def test_sigterm_to_its_process_group_makes_a_worker_end_its_batches_and_then_its_jvm(
    cluster: Cluster, feed: Feed
) -> None:
    cluster.start_broker()
    # Time for a batch on a busy machine: this test is about signals, not about the stop's timeout.
    patient = {"task.shutdown.graceful.timeout.ms": "60000"}
    working, starting = cluster.start_worker("w0", properties=patient), cluster.start_worker("w1")

    jvm = starting.jvm()
    assert os.getpgid(jvm) == starting.popen.pid, "a signal to the group must reach the JVM, too"
    starting.kill_group(signal.SIGTERM)
    assert starting.wait(within_s=60) == 0
    starting.wait_gone()
    assert_quiet(starting)

    cluster.wait_ready(working)
    cluster.create(working, "ending", feed.folder, "parquet")
    cluster.wait_running([working], "ending")
    until(lambda: cluster.committed("ending") > 0, within_s=60, what="rows are committed")
    working.kill_group(signal.SIGTERM)
    working.kill_group(signal.SIGTERM)  # `timeout` signals its child, and then the group
    assert working.wait(within_s=120) == 0
    working.wait_gone()
    assert_quiet(working)
    held = [folder for folder in cluster.checkpoints.glob("ending-*/gen-*/[0-9]*/*-*") if (folder / "commits").is_dir()]
    assert len(held) == TASKS
    assert [find_batch_id_in_flight(folder) for folder in held] == [None] * TASKS
