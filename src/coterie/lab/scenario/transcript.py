"""A transcript: a script with its answers, in one text.

    # A line of narration; `# K415 …` quotes the document.
    > a command
    everything that was said because of it

The commands:

    > config AC0 AT1 AT2      what the config topic contains; if there is a group, its leader asks for a round
    > at most 2 moves a round, every 10 s
                              how the leader goes about it (design III); `a delay of 0 s` is design I
    > play other.txt          first, unheard, the commands of another transcript
    > show                    who runs what, what is configured, who leads
    > W1 joins                a worker starts; `W1 joins claiming BT1 BT2` or `claiming nothing` is a static worker
                              (K987), `W1 joins speaking sessioned` does not know of claims
    > W1 drains               a worker is to go for good
    > W1 dies                 a worker is gone, and says nothing
    > W1 leaves               a worker is stopped in good order
    > W1 rejoins              a worker does not wait for its next heartbeat to tell it
    > wait 3 s                time passes (heartbeats go every 3 s; who is asked to rejoin hears of it by them)
    > wait until the delay is over
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coterie.lab.scenario.notation import parse_jobs
from coterie.lab.scenario.stage import WorkersStage
from coterie.lab.steps import STEPS, Steps
from coterie.wire.connect import ConnectProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One command, or none at the top of a text: the remarks above the answers, and the answers."""

    command: str | None
    remarks: tuple[str, ...] = field(default=())
    """Lines with ``#``, and blank ones, as they stand. Those after the answers belong to the next block's ``above``."""
    answers: tuple[str, ...] = field(default=())
    above: tuple[str, ...] = field(default=())
    """Remarks before the command."""


def parse(text: str) -> list[Block]:
    """The blocks of a transcript; what stands at its end without a command is the last one's.

    :raises ValueError: when answers stand before the first command.
    """
    blocks: list[Block] = []
    loose: list[str] = []
    current: Block | None = None
    for line in text.splitlines():
        if line.startswith("> "):
            if current is not None:
                blocks.append(current)
            current = Block(command=line[2:].strip(), above=tuple(loose))
            loose = []
        elif line.startswith("#") or not line.strip():
            if current is not None and not current.answers and not loose and line.startswith("#"):
                current = replace(current, remarks=(*current.remarks, line))
            else:
                loose.append(line)
        elif current is None or loose:
            raise ValueError(f"an answer without a command: {line!r}")
        else:
            current = replace(current, answers=(*current.answers, line))
    if current is not None:
        blocks.append(current)
    if loose:
        blocks.append(Block(command=None, above=tuple(loose)))
    return blocks


def render(blocks: list[Block]) -> str:
    lines: list[str] = []
    for block in blocks:
        lines += block.above
        if block.command is not None:
            lines += [f"> {block.command}", *block.remarks, *block.answers]
    return "\n".join(lines) + "\n"


def play(
    blocks: list[Block],
    read: Callable[[str], str],
    protocol: ConnectProtocol = ConnectProtocol.STATIC,
    *,
    steps: Steps = STEPS,
) -> list[Block]:
    """The same script with the answers that the machines give now; ``read`` gives the text of another transcript.

    ``protocol`` is what workers speak of whom the script does not say it.

    :raises ValueError: when a command means nothing.
    """
    stage = WorkersStage(protocol, steps=steps)
    return [_played(stage, block, read) for block in blocks]


def _played(stage: WorkersStage, block: Block, read: Callable[[str], str]) -> Block:
    if block.command is None:
        return block
    stage.lines.clear()
    _perform(stage, block.command, read)
    return replace(block, answers=tuple(stage.lines))


def _perform(stage: WorkersStage, command: str, read: Callable[[str], str]) -> None:
    match command.split():
        case ["play", name]:
            for block in parse(read(name)):
                if block.command is not None:
                    _perform(stage, block.command, read)
            stage.lines.clear()
        case ["show"]:
            stage.show()
        case ["config" | "at" | "a", *_]:
            _set(stage, command)
        case ["wait", *how_long]:
            _wait(stage, how_long)
        case [worker, *act]:
            _act(stage, worker, act)
        case _:
            raise ValueError("an empty command")


def _set(stage: WorkersStage, command: str) -> None:
    """What is configured, and how the leader goes about it."""
    fleet = stage.fleet
    match command.split():
        case ["config", *jobs]:
            stage.configure(parse_jobs(" ".join(jobs)))
        case ["at", "most", moves, "moves", "a", "round,", "every", seconds, "s"]:
            interval_ms = int(seconds) * 1000
            stage.fleet.policy = replace(
                stage.fleet.policy, moves_per_round_max=int(moves), round_interval_ms=interval_ms
            )
        case ["a", "delay", "of", seconds, "s"]:
            fleet.policy = replace(fleet.policy, max_delay_ms=int(seconds) * 1000)
        case _:
            raise ValueError(f"unknown setting: {command}")


def _act(stage: WorkersStage, worker: str, act: list[str]) -> None:
    match act:
        case ["joins"]:
            stage.start(worker)
        case ["joins", "claiming", *jobs]:
            stage.start(worker, claims=parse_jobs("" if jobs == ["nothing"] else " ".join(jobs)))
        case ["joins", "speaking", setting]:
            stage.start(worker, protocol=_protocol(setting))
        case ["drains"]:
            stage.drain(worker)
        case ["dies"]:
            stage.kill(worker)
        case ["leaves"]:
            stage.stop(worker)
        case ["rejoins"]:
            stage.rejoin(worker)
        case _:
            raise ValueError(f"unknown command: {' '.join([worker, *act])}")


def _protocol(setting: str) -> ConnectProtocol:
    if setting not in {protocol.setting for protocol in ConnectProtocol}:
        raise ValueError(f"unknown protocol: {setting}")
    return ConnectProtocol.named(setting)


def _wait(stage: WorkersStage, how_long: list[str]) -> None:
    match how_long:
        case ["until", "the", "delay", "is", "over"]:
            ends_at_ms = stage.delay_ends_at_ms
            if ends_at_ms is None:
                raise ValueError("no delay is in progress")
            left_ms = ends_at_ms - stage.now_ms
            stage.say(f"After delay {left_ms}:")
            stage.wait(left_ms)
        case [seconds, "s"]:
            stage.wait(int(seconds) * 1000)
            ends_at_ms = stage.delay_ends_at_ms
            if ends_at_ms is not None and not stage.lines:
                stage.say(f"Before delay {ends_at_ms - stage.now_ms} expires:")
        case _:
            raise ValueError(f"unknown time: {' '.join(how_long)}")
