"""A transcript of a scenario of workers: commands and the lines that they print, in one text.

    # A remark; `# K415 …` quotes the document.
    > a command
    every line that the command prints

The commands:

    > config AC0 AT1 AT2      set the configured jobs; if there is a group, its leader requests a round
    > at most 2 moves a round, every 10 s
                              set the limit of moves of every leader, and the time between two rounds that move jobs
    > a delay of 0 s          set the scheduled rebalance delay; 0 s switches the delay off
    > play other.txt          run the commands of another transcript; their lines are not printed
    > show                    print the jobs of each worker, the configured jobs and the leader
    > W1 joins                a worker starts; `W1 joins claiming BT1 BT2` or `claiming nothing` is a static worker
                              (KIP-987); `W1 joins speaking sessioned` sets the newest protocol that it offers
    > W1 drains               a worker reports that it drains: rounds revoke its jobs; `W1 leaves` must follow
    > W1 stops AT1 BT1 slowly from now on the stops of these jobs do not end before `W1 ends its stops`
    > W1 ends its stops       the stops of the revoked jobs that the worker is still stopping end
    > W1 dies                 a worker ends without LeaveGroup
    > W1 leaves               a worker is stopped cleanly
    > W1 rejoins              a worker sends JoinGroup now
    > wait 3 s                time passes (workers send a heartbeat every 3 s; its response reports a rebalance)
    > wait until the delay is over
                              time passes until the scheduled rebalance delay of a worker is over
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from coterie.lab.scenario.notation import parse_jobs
from coterie.lab.scenario.workers_scenario import WorkersScenario
from coterie.lab.steps import PLAIN_STEPS, MachineSteps
from coterie.wire.connect import ConnectProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptBlock:
    """One command of a transcript, with the remarks and the lines that belong to it. If a transcript ends with remarks
    or blank lines after all printed lines, its last block contains these and no command."""

    command: str | None
    """The text after ``> ``; None in a last block without a command."""
    remarks_after_command: tuple[str, ...] = field(default=())
    """The remarks (lines that begin with ``#``) directly after the command, before the printed lines. Remarks and blank
    lines after the printed lines belong to the next block's ``lines_before_command``."""
    output_lines: tuple[str, ...] = field(default=())
    """The lines that the command prints: in a parsed transcript those in its text, after a run those of the run."""
    lines_before_command: tuple[str, ...] = field(default=())
    """The remarks and blank lines before the command."""


def parse_transcript(text: str) -> list[TranscriptBlock]:
    """The blocks of the transcript ``text``. Remarks and blank lines after the last printed line become a last block
    without a command.

    :raises ValueError: when a line that is no command, no remark and not blank does not directly follow a command, a
        remark directly after the command, or another printed line.
    """
    blocks: list[TranscriptBlock] = []
    pending_lines: list[str] = []
    current: TranscriptBlock | None = None
    for line in text.splitlines():
        if line.startswith("> "):
            if current is not None:
                blocks.append(current)
            current = TranscriptBlock(command=line[2:].strip(), lines_before_command=tuple(pending_lines))
            pending_lines = []
        elif line.startswith("#") or not line.strip():
            if current is not None and not current.output_lines and not pending_lines and line.startswith("#"):
                current = replace(current, remarks_after_command=(*current.remarks_after_command, line))
            else:
                pending_lines.append(line)
        elif current is None or pending_lines:
            raise ValueError(
                f"the line {line!r} is not a command, and does not directly follow a command, its remarks or another "
                "printed line: begin a command with > and a remark with #"
            )
        else:
            current = replace(current, output_lines=(*current.output_lines, line))
    if current is not None:
        blocks.append(current)
    if pending_lines:
        blocks.append(TranscriptBlock(command=None, lines_before_command=tuple(pending_lines)))
    return blocks


def render_transcript(blocks: list[TranscriptBlock]) -> str:
    """The text of the transcript with ``blocks``: the inverse of `parse_transcript`."""
    lines: list[str] = []
    for block in blocks:
        lines += block.lines_before_command
        if block.command is not None:
            lines += [f"> {block.command}", *block.remarks_after_command, *block.output_lines]
    return "\n".join(lines) + "\n"


def run_transcript(
    blocks: list[TranscriptBlock],
    read_transcript_by_name: Callable[[str], str],
    protocol: ConnectProtocol = ConnectProtocol.STATIC,
    *,
    steps: MachineSteps = PLAIN_STEPS,
) -> list[TranscriptBlock]:
    """Perform the commands of ``blocks`` in order. Returns the same blocks, each with the lines that its command prints
    now.

    ``read_transcript_by_name`` returns the text of another transcript by its file name. ``protocol`` is the newest
    protocol that workers offer, unless the command that starts them sets another.

    :raises ValueError: when a command is unknown, has an invalid argument, or cannot be performed now.
    :raises KeyError: when a command needs a worker that does not run; also `config` while the leader is a dead worker.
    """
    scenario = WorkersScenario(protocol, steps=steps)
    return [_run_transcript_block(scenario, block, read_transcript_by_name) for block in blocks]


def _run_transcript_block(
    scenario: WorkersScenario, block: TranscriptBlock, read_transcript_by_name: Callable[[str], str]
) -> TranscriptBlock:
    """Perform the command of ``block``, if it has one. Returns the block with the lines that the command prints now."""
    if block.command is None:
        return block
    scenario.output_lines.clear()
    _run_command(scenario, block.command, read_transcript_by_name)
    return replace(block, output_lines=tuple(scenario.output_lines))


def _run_command(scenario: WorkersScenario, command: str, read_transcript_by_name: Callable[[str], str]) -> None:
    """Perform ``command``, a line of a transcript without its ``>``. The lines that the command prints are added to
    ``scenario.output_lines``. A `play` command prints nothing: it performs the commands of another transcript, and then
    removes all lines from ``scenario.output_lines``.

    :raises ValueError: when the command is unknown, has an invalid argument, or cannot be performed now.
    :raises KeyError: when the command needs a worker that does not run; also `config` while the leader is a dead
        worker.
    """
    match command.split():
        case ["play", name]:
            for block in parse_transcript(read_transcript_by_name(name)):
                if block.command is not None:
                    _run_command(scenario, block.command, read_transcript_by_name)
            scenario.output_lines.clear()
        case ["show"]:
            scenario.print_jobs_and_leader()
        case ["config" | "at" | "a", *_]:
            _run_jobs_or_policy_command(scenario, command)
        case ["wait", *words]:
            _run_wait_command(scenario, words)
        case [worker, *words]:
            _run_worker_command(scenario, worker, words)
        case _:
            raise ValueError(
                "a line of the transcript begins with > and has no command: add a command or remove the line"
            )


def _run_jobs_or_policy_command(scenario: WorkersScenario, command: str) -> None:
    """Perform `config`, `at most` or `a delay of`: set the configured jobs, or the rebalance policy of all leaders.

    :raises ValueError: when the command is unknown or has an invalid argument.
    """
    fleet = scenario.fleet
    match command.split():
        case ["config", *jobs]:
            scenario.set_jobs_and_let_leader_rejoin(parse_jobs(" ".join(jobs)))
        case ["at", "most", moves, "moves", "a", "round,", "every", seconds, "s"]:
            interval_ms = int(seconds) * 1000
            scenario.fleet.policy = replace(
                scenario.fleet.policy, moves_per_round_max=int(moves), round_interval_ms=interval_ms
            )
        case ["a", "delay", "of", seconds, "s"]:
            fleet.policy = replace(fleet.policy, max_delay_ms=int(seconds) * 1000)
        case _:
            raise ValueError(f"unknown command: {command}; see the list in coterie.lab.scenario.transcript")


def _run_worker_command(scenario: WorkersScenario, worker: str, words: list[str]) -> None:
    """Perform the command whose first word is ``worker``, a worker's name, and whose other words are ``words``.

    :raises ValueError: when the command is unknown, has an invalid argument, or starts a worker that runs.
    :raises KeyError: when the command needs a running worker and this worker does not run.
    """
    match words:
        case ["joins"]:
            scenario.start_worker(worker)
        case ["joins", "claiming", *jobs]:
            scenario.start_worker(worker, claims=parse_jobs("" if jobs == ["nothing"] else " ".join(jobs)))
        case ["joins", "speaking", setting]:
            scenario.start_worker(worker, protocol=_protocol_of_setting(setting))
        case ["drains"]:
            scenario.let_worker_report_drain(worker)
        case ["stops", *jobs, "slowly"]:
            scenario.workers[worker].slow_jobs = parse_jobs(" ".join(jobs))
        case ["ends", "its", "stops"]:
            scenario.end_slow_stops_and_rejoin(worker)
        case ["dies"]:
            scenario.kill_worker(worker)
        case ["leaves"]:
            scenario.leave_and_stop_worker(worker)
        case ["rejoins"]:
            scenario.rejoin_worker(worker)
        case _:
            raise ValueError(
                f"unknown command: {' '.join([worker, *words])}; see the list in coterie.lab.scenario.transcript"
            )


def _protocol_of_setting(setting: str) -> ConnectProtocol:
    """The protocol that ``setting``, a value of the config key ``connect.protocol``, names.

    :raises ValueError: when there is no such protocol.
    """
    if setting not in {protocol.setting for protocol in ConnectProtocol}:
        names = ", ".join(protocol.setting for protocol in ConnectProtocol)
        raise ValueError(f"unknown protocol {setting!r}; use one of {names}")
    return ConnectProtocol.from_setting(setting)


def _run_wait_command(scenario: WorkersScenario, words: list[str]) -> None:
    """Perform the `wait` command whose other words are ``words``.

    :raises ValueError: when the words are unknown, or no delay is running whose end the command could wait for.
    """
    match words:
        case ["until", "the", "delay", "is", "over"]:
            ends_at_ms = scenario.earliest_rebalance_delay_end_ms
            if ends_at_ms is None:
                raise ValueError(
                    "cannot wait until the delay is over: no worker has received a delay that is still running"
                )
            remaining_ms = ends_at_ms - scenario.now_ms
            scenario.add_output_line(f"After delay {remaining_ms}:")
            scenario.advance_clock(remaining_ms)
        case [seconds, "s"]:
            scenario.advance_clock(int(seconds) * 1000)
            ends_at_ms = scenario.earliest_rebalance_delay_end_ms
            if ends_at_ms is not None and not scenario.output_lines:
                scenario.add_output_line(f"Before delay {ends_at_ms - scenario.now_ms} expires:")
        case _:
            raise ValueError(f"cannot wait {' '.join(words)}: write `wait 3 s` or `wait until the delay is over`")
