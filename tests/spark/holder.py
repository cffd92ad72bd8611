"""A worker in small, as a process: one runtime, one task; does what it is told on stdin and says what happened.

Arguments: the checkpoint location, a folder for temporary files, the process id of the parent, and the folder of jars
for Spark, if it needs any.
Commands, one a line: ``start <incarnation> <config>`` (split, take over and run), ``who`` (is it ours: ``yes``,
``no``), ``stop``. It ends at the end of stdin.
It says ``ready <jvm pid>``, then for every start ``holds <starts> <batch in flight or ->``, or ``lost`` when another
took it from us at once; and ``taken``, ``failed <trace>`` or ``died <reason>`` when that happens.
"""

import asyncio
import json
import os
import select
import signal
import sys
from pathlib import Path

from coterie.herder.seams import (
    PartsChanged,
    RuntimeDied,
    TaskClosed,
    TaskDied,
    TaskHalted,
    TaskProgressed,
    TaskStart,
    TaskWaiting,
)
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import JarSettings, SparkConfig

TASK = ConnectorTaskId(ConnectorName("fight"), 0)


def end_with(parent: int) -> None:
    """Have a child process kill this process group when ``parent`` ends: a group that SIGSTOP has stopped reads no end
    of stdin."""
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


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def tell(runtime: SparkTaskRuntime) -> None:
    while True:
        match await runtime.next_event():
            case TaskProgressed() | TaskWaiting() | TaskHalted() | TaskClosed() | PartsChanged():
                pass
            case TaskDied(is_held=False):
                say("taken")
            case TaskDied(trace=trace):
                say("failed " + trace.replace("\n", " | "))
            case RuntimeDied(reason=reason):
                say("died " + reason)


async def main(checkpoints: Path, scratch: Path, jars: Path | None) -> None:
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=checkpoints,
            scratch=scratch,
            log_file=scratch / "spark.log",
            settings={"spark.master": "local[2]", "spark.driver.memory": "512m"},
            jars=None if jars is None else JarSettings(folder=jars),
        )
    )
    await runtime.open()
    telling = asyncio.create_task(tell(runtime))
    say(f"ready {runtime.jvm_pid}")
    try:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            command, *words = line.split(" ", 2)
            if command == "start":
                incarnation = Incarnation(words[0])
                (config,) = await runtime.split(TASK.connector, incarnation, json.loads(words[1]), ())
                await runtime.start(TaskStart(task=TASK, incarnation=incarnation, config=config))
                held = runtime.held(TASK)
                if held is None:
                    say("lost")
                else:
                    in_flight = "-" if held.batch_in_flight is None else held.batch_in_flight
                    say(f"holds {held.starts} {in_flight}")
            elif command == "who":
                say("no" if runtime.held(TASK) is None else "yes")
            else:
                await runtime.stop(TASK, grace_ms=10_000)
                say("stopped")
    finally:
        telling.cancel()
        await runtime.close()


if __name__ == "__main__":
    end_with(int(sys.argv[3]))
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[4]) if sys.argv[4:] else None))
