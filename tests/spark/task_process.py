"""A minimal worker as a process: one runtime, one task; executes commands from stdin and prints events.

Arguments: the checkpoint location, a folder for temporary files, the process id of the parent, and the folder of jars
for Spark, if it needs any.
Commands, one a line: ``start <incarnation> <config>`` (split, take over and run), ``who`` (does this process hold the
checkpoint: ``yes``, ``no``), ``stop``. It ends at the end of stdin.
It prints ``ready <jvm pid>``, then for every start ``holds <starts> <batch in flight or ->``, or ``lost`` if another
process took the checkpoint at once; and the events ``taken``, ``failed <trace>`` and ``died <reason>``.
"""

import asyncio
import json
import os
import select
import signal
import sys
from pathlib import Path

from coterie.herder.seams import (
    PluginThreadsLost,
    RuntimeDied,
    SourcePartsChanged,
    TaskCheckpointClosed,
    TaskDied,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
    TaskSpec,
)
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark import sessions
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import JarSettings, SparkConfig

TASK = ConnectorTaskId(ConnectorName("fight"), 0)


def end_with(parent: int) -> None:
    """Start a child process that kills this process group when ``parent`` ends: a group that SIGSTOP has stopped does
    not notice the end of stdin."""
    group = os.getpid()
    ends = [os.pidfd_open(pid) for pid in (parent, group)]
    if os.getppid() != parent:
        sys.exit("The parent has ended")
    if os.fork() == 0:
        os.setsid()
        if ends[0] in select.select(ends, [], [])[0]:
            os.killpg(group, signal.SIGKILL)
        os._exit(0)
    for end in ends:
        os.close(end)


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def report_events(runtime: SparkTaskRuntime) -> None:
    while True:
        match await runtime.next_event():
            case (
                TaskProgressed()
                | TaskRetrying()
                | TaskHaltedWithoutOrder()
                | TaskCheckpointClosed()
                | SourcePartsChanged()
                | PluginThreadsLost()
            ):
                pass
            case TaskDied(holds_checkpoint=False):
                print_line("taken")
            case TaskDied(trace=trace):
                print_line("failed " + trace.replace("\n", " | "))
            case RuntimeDied(reason=reason):
                print_line("died " + reason)


async def main(checkpoints: Path, scratch: Path, jars: Path | None) -> None:
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=checkpoints,
            scratch_folder=scratch,
            jvm_log_file=scratch / "spark.log",
            user_settings={"spark.master": "local[2]", "spark.driver.memory": "512m"},
            jar_folder_settings=None if jars is None else JarSettings(folder=jars),
        )
    )
    await runtime.open()
    telling = asyncio.create_task(report_events(runtime))
    print_line(f"ready {runtime.jvm_pid}")
    try:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            command, *words = line.split(" ", 2)
            if command == "start":
                incarnation = Incarnation(words[0])
                (config,) = (await runtime.split(TASK.connector, incarnation, json.loads(words[1]), ())).task_configs
                await runtime.start(TaskSpec(task=TASK, connector_incarnation=incarnation, config=config))
                held = runtime.held_checkpoint(TASK)
                if held is None:
                    print_line("lost")
                else:
                    in_flight = "-" if held.batch_id_in_flight is None else held.batch_id_in_flight
                    print_line(f"holds {held.task_start_number} {in_flight}")
            elif command == "who":
                print_line("no" if runtime.held_checkpoint(TASK) is None else "yes")
            else:
                await runtime.stop(TASK, grace_ms=10_000)
                print_line("stopped")
    finally:
        telling.cancel()
        await runtime.close()


if __name__ == "__main__":
    end_with(int(sys.argv[3]))
    # As `allow_calls_of_java` of the tests of bad records, whose conditions are random in each evaluation. Not when the
    # module is imported, which tests do in their own process.
    sessions.FUNCTIONS_THAT_CALL_JAVA = ()
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[4]) if sys.argv[4:] else None))
