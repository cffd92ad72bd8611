"""A worker in small, as a process: one runtime, one task; does what it is told on stdin and says what happened.

Commands, one a line: ``start <incarnation> <config>`` (take over and run), ``who`` (is it ours: ``yes``, ``no``),
``stop``, ``quit``.
It says ``ready <jvm pid>``, then for every start ``holds <starts> <batch in flight or ->``, or ``lost`` when another
took it from us at once; and ``taken``, ``failed <trace>`` or ``died <reason>`` when that happens.
"""

import asyncio
import json
import sys
from pathlib import Path

from coterie.herder.seams import RuntimeDied, TaskDied, TaskHalted, TaskProgressed, TaskStart
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig

TASK = ConnectorTaskId(ConnectorName("fight"), 0)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def tell(runtime: SparkTaskRuntime) -> None:
    while True:
        match await runtime.next_event():
            case TaskProgressed() | TaskHalted():
                pass
            case TaskDied(is_held=False):
                say("taken")
            case TaskDied(trace=trace):
                say("failed " + trace.replace("\n", " | "))
            case RuntimeDied(reason=reason):
                say("died " + reason)


async def main(checkpoints: Path, scratch: Path) -> None:
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=checkpoints,
            scratch=scratch,
            log_file=scratch / "spark.log",
            settings={"spark.master": "local[2]", "spark.driver.memory": "512m"},
        )
    )
    await runtime.open()
    telling = asyncio.create_task(tell(runtime))
    say(f"ready {runtime.jvm_pid}")
    try:
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            command, *words = line.split(" ", 2)
            if command == "start":
                config = json.loads(words[1])
                await runtime.start(TaskStart(task=TASK, incarnation=Incarnation(words[0]), config=config))
                held = runtime.held(TASK)
                if held is None:
                    say("lost")
                else:
                    in_flight = "-" if held.batch_in_flight is None else held.batch_in_flight
                    say(f"holds {held.starts} {in_flight}")
            elif command == "who":
                say("no" if runtime.held(TASK) is None else "yes")
            elif command == "stop":
                await runtime.stop(TASK, grace_ms=10_000)
                say("stopped")
            else:
                break
    finally:
        telling.cancel()
        await runtime.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
