"""A transcript: a script and the lines that its commands print, in one text.

    # A line of narration; `# K415 …` quotes the document.
    > a command
    every line that the command prints

The commands:

    > config AC0 AT1 AT2      what the config topic contains; if there is a group, its leader requests a round
    > at most 2 moves a round, every 10 s
                              a move limit and an interval for the leader; `a delay of 0 s` switches the delay off
    > play other.txt          first run the commands of another transcript; their lines are not printed
    > show                    the jobs of each worker, the configured jobs, the leader
    > W1 joins                a worker starts; `W1 joins claiming BT1 BT2` or `claiming nothing` is a static worker
                              (KIP-987); `W1 joins speaking sessioned` uses a protocol without claims
    > W1 drains               a worker drains: it is to leave and not to return
    > W1 dies                 a worker ends without LeaveGroup
    > W1 leaves               a worker is stopped cleanly
    > W1 rejoins              a worker sends JoinGroup without waiting for its next heartbeat
    > wait 3 s                time passes (workers send a heartbeat every 3 s; its response requests a rejoin)
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
    """One command with its remarks and its answers; a block of remarks alone, at the end of a text, has no command."""

    command: str | None
    remarks: tuple[str, ...] = field(default=())
    """The lines that begin with ``#`` between the command and its answers, unchanged. Lines with ``#`` and blank lines
    after the answers belong to the next block's ``above``."""
    answers: tuple[str, ...] = field(default=())
    """The lines that the command printed."""
    above: tuple[str, ...] = field(default=())
    """Remarks before the command."""


def parse(text: str) -> list[Block]:
    """The blocks of a transcript; remarks at its end become a last block without a command.

    :raises ValueError: when an answer precedes the first command, or follows the blank line or the remark that ends a
        command's answers.
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
    """The same script with the lines that the machines print now; ``read`` returns the text of another transcript.

    ``protocol`` is the protocol of workers for which the script sets none.

    :raises ValueError: when a command is unknown.
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
            raise ValueError("the command is empty")


def _set(stage: WorkersStage, command: str) -> None:
    """Set the configured jobs, or the leader's policy."""
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
