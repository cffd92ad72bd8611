"""A transcript: a script and the lines that its commands print, in one text.

    # A line of narration; `# K415 …` quotes the document.
    > a command
    every line that the command prints

The commands:

    > config AC0 AT1 AT2      set the configured jobs; if there is a group, its leader requests a round
    > at most 2 moves a round, every 10 s
                              the leader's limit of moves, and the time between two rounds that move jobs
    > a delay of 0 s          the scheduled rebalance delay; 0 s switches it off
    > play other.txt          run the commands of another transcript; their lines are not printed
    > show                    print the jobs of each worker, the configured jobs and the leader
    > W1 joins                a worker starts; `W1 joins claiming BT1 BT2` or `claiming nothing` is a static worker
                              (KIP-987); `W1 joins speaking sessioned` sets the newest protocol that it offers
    > W1 drains               a worker drains: it is to release its jobs, to leave and not to return
    > W1 dies                 a worker ends without LeaveGroup
    > W1 leaves               a worker is stopped cleanly
    > W1 rejoins              a worker sends JoinGroup without waiting for its next heartbeat
    > wait 3 s                time passes (workers send a heartbeat every 3 s; its response requests a rejoin)
    > wait until the delay is over
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coterie.lab.scenario.notation import parse_jobs
from coterie.lab.scenario.workers_scenario import WorkersScenario
from coterie.lab.steps import STEPS, Steps
from coterie.wire.connect import ConnectProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One command of a transcript with its remarks and its answers. Remarks at the end of a transcript are a last block
    without a command."""

    command: str | None
    remarks: tuple[str, ...] = field(default=())
    """The lines that begin with ``#`` directly after the command, before its answers. Such lines and blank lines after
    the answers belong to the next block's ``above``."""
    answers: tuple[str, ...] = field(default=())
    """The lines that the command printed."""
    above: tuple[str, ...] = field(default=())
    """The remarks and blank lines before the command."""


def parse(text: str) -> list[Block]:
    """The blocks of the transcript ``text``. Remarks at its end become a last block without a command.

    :raises ValueError: when a line is none of a command, a remark, a blank line and an answer that directly follows its
        command, the command's remarks or another answer.
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
            raise ValueError(
                f"an answer must directly follow its command, the command's remarks or another answer: {line!r}"
            )
        else:
            current = replace(current, answers=(*current.answers, line))
    if current is not None:
        blocks.append(current)
    if loose:
        blocks.append(Block(command=None, above=tuple(loose)))
    return blocks


def render(blocks: list[Block]) -> str:
    """The text of the transcript with these blocks: the inverse of `parse`."""
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
    """Perform the commands of ``blocks`` in order. Returns the blocks with the lines that the commands print now.

    ``read`` returns the text of another transcript by its name. ``protocol`` is the newest protocol that workers offer,
    unless the command that starts them sets another.

    :raises ValueError: when a command is unknown or cannot be performed.
    :raises KeyError: when a command names a worker that does not run.
    """
    stage = WorkersScenario(protocol, steps=steps)
    return [_played(stage, block, read) for block in blocks]


def _played(scenario: WorkersScenario, block: Block, read: Callable[[str], str]) -> Block:
    """Perform the command of ``block``. Returns the block with the lines that it prints."""
    if block.command is None:
        return block
    scenario.lines.clear()
    _perform(scenario, block.command, read)
    return replace(block, answers=tuple(scenario.lines))


def _perform(scenario: WorkersScenario, command: str, read: Callable[[str], str]) -> None:
    """Perform one command."""
    match command.split():
        case ["play", name]:
            for block in parse(read(name)):
                if block.command is not None:
                    _perform(scenario, block.command, read)
            scenario.lines.clear()
        case ["show"]:
            scenario.show()
        case ["config" | "at" | "a", *_]:
            _set(scenario, command)
        case ["wait", *how_long]:
            _wait(scenario, how_long)
        case [worker, *act]:
            _act(scenario, worker, act)
        case _:
            raise ValueError("a line begins with > and has no command")


def _set(scenario: WorkersScenario, command: str) -> None:
    """Perform `config`, `at most` or `a delay of`: set the configured jobs or the policy of leaders."""
    fleet = scenario.fleet
    match command.split():
        case ["config", *jobs]:
            scenario.configure(parse_jobs(" ".join(jobs)))
        case ["at", "most", moves, "moves", "a", "round,", "every", seconds, "s"]:
            interval_ms = int(seconds) * 1000
            scenario.fleet.policy = replace(
                scenario.fleet.policy, moves_per_round_max=int(moves), round_interval_ms=interval_ms
            )
        case ["a", "delay", "of", seconds, "s"]:
            fleet.policy = replace(fleet.policy, max_delay_ms=int(seconds) * 1000)
        case _:
            raise ValueError(f"unknown command: {command}")


def _act(scenario: WorkersScenario, worker: str, act: list[str]) -> None:
    """Perform the command whose first word is ``worker`` and whose other words are ``act``."""
    match act:
        case ["joins"]:
            scenario.start(worker)
        case ["joins", "claiming", *jobs]:
            scenario.start(worker, claims=parse_jobs("" if jobs == ["nothing"] else " ".join(jobs)))
        case ["joins", "speaking", setting]:
            scenario.start(worker, protocol=_protocol(setting))
        case ["drains"]:
            scenario.drain(worker)
        case ["dies"]:
            scenario.kill(worker)
        case ["leaves"]:
            scenario.stop(worker)
        case ["rejoins"]:
            scenario.rejoin(worker)
        case _:
            raise ValueError(f"unknown command: {' '.join([worker, *act])}")


def _protocol(setting: str) -> ConnectProtocol:
    """The protocol with this value of the setting ``connect.protocol``."""
    if setting not in {protocol.setting for protocol in ConnectProtocol}:
        raise ValueError(f"unknown protocol: {setting}")
    return ConnectProtocol.from_setting(setting)


def _wait(scenario: WorkersScenario, how_long: list[str]) -> None:
    """Perform `wait`, whose other words are ``how_long``."""
    match how_long:
        case ["until", "the", "delay", "is", "over"]:
            ends_at_ms = scenario.delay_ends_at_ms
            if ends_at_ms is None:
                raise ValueError("cannot wait until the delay is over: no delay is in progress")
            left_ms = ends_at_ms - scenario.now_ms
            scenario.print_line(f"After delay {left_ms}:")
            scenario.wait(left_ms)
        case [seconds, "s"]:
            scenario.wait(int(seconds) * 1000)
            ends_at_ms = scenario.delay_ends_at_ms
            if ends_at_ms is not None and not scenario.lines:
                scenario.print_line(f"Before delay {ends_at_ms - scenario.now_ms} expires:")
        case _:
            raise ValueError(f"unknown time to wait: {' '.join(how_long)}")
