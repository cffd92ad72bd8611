"""`coterie group`, `coterie worker drain`, `coterie workers restart`: a group, by the REST API of any worker."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from coterie.cli.group import Group, Shown, found
from coterie.nouns.errors import WorldError

# A name may well hold :boom: or the like.
_console = Console(highlight=False, emoji=False)
_STYLES = {"STABLE": "green", "UNREACHABLE": "red", "UNJOINED": "red"}
_SETTLE_S = 60.0
_FOR_EVER_S = 1e9
_IN_BETWEEN = ("starting", "stopping")


# -- the group --------------------------------------------------------------------------------------------------------


def show_group(url: str, *, as_json: bool) -> None:
    with Group(url) as group:
        shown = group.shown()
    if as_json:
        json.dump(shown, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    leader = shown["leader"]
    led_by = f"led by {escape(leader['name'])}" if leader is not None else "without a leader"
    _console.print(f"Generation {shown['generation']} ({shown['protocol']}), {led_by}")
    table = Table("worker", "at", "state", "connectors", "tasks", "of these", box=None, header_style="bold")
    for member in shown["members"]:
        owned = member["owned"]
        table.add_row(
            escape(member["name"]),
            escape(member["worker_id"]),
            _state(member),
            str(len(owned["connectors"])),
            str(len(owned["tasks"])),
            ", ".join(f"{count} {phase}" for phase, count in (member["phases"] or {}).items()) or "-",
        )
    _console.print(table)
    for member in shown["members"]:
        if revoked := _count(member["revoked"]):
            _console.print(f"{escape(member['name'])} gives back {_jobs(revoked)}.")
        if member["drain_waits"] is not None:
            _console.print(f"The drain of {escape(member['name'])} waits: {escape(member['drain_waits'])}.")
    for deferred in shown["deferred"]:
        who = escape(deferred["worker"] or deferred["instance_id"] or "a worker that is gone")
        left_s = deferred["left_ms"] / 1000
        _console.print(f"{_jobs(_count(deferred['jobs']))} of {who} wait {left_s:.0f} s more for it to come back.")
    for job in shown["unassigned"]:
        name = job["connector"] if job["task"] is None else f"{job['connector']}-{job['task']}"
        _console.print(f"[red]{escape(name)} has nobody[/red]: {escape(job['reason'])}.")


def _state(member: Shown) -> str:
    state = member["state"]
    style = _STYLES.get(state, "yellow")
    said = [f"[{style}]{state}[/{style}]"]
    if member["draining"]:
        said.append("draining")
    if member["claims"] is not None:
        said.append(f"claims {_jobs(_count(member['claims']))}")
    return ", ".join(said)


# -- scale-in ---------------------------------------------------------------------------------------------------------


def drain(url: str, worker: str) -> None:
    """Drain one worker, and follow it until its process has ended.

    :raises WorldError: when it cannot be drained, or somebody calls it back.
    """
    with Group(url) as group:
        before = group.shown()
        group.order("POST", worker, "drain")
        drained = found(before, worker)
        if drained is None:  # It has come since.
            drained = found(group.shown(), worker)
        assert drained is not None, "a worker took the order that is in no group"
        name, said = escape(drained["name"]), ""
        seen_draining = False
        while True:
            now = found(group.shown(), drained["worker_id"])
            if now is None and not group.answers(drained["url"]):
                _console.print(f"{name} has handed its jobs over and is gone.")
                return
            if now is not None:
                seen_draining = seen_draining or now["draining"]
                if seen_draining and not now["draining"]:
                    raise WorldError(f"{drained['name']} was called back, and stays.")
                text = f"{name} drains: {_jobs(_count(now['owned']) + _count(now['revoked']))} left"
                if now["drain_waits"] is not None:
                    text += f"; it waits: {escape(now['drain_waits'])}"
                if text != said:
                    said = text
                    _console.print(text)
            time.sleep(0.2)


def uncordon(url: str, worker: str) -> None:
    with Group(url) as group:
        name = group.order("DELETE", worker, "drain")["name"]
    _console.print(f"{escape(name)} takes work again, and stays.")


# -- a restart of all -------------------------------------------------------------------------------------------------


def restart_rolling(url: str, *, timeout_s: float) -> None:
    """Restart all workers of a group, one after the other, its leader last.

    :raises WorldError: when one does not come back in time, or the group is not well before.
    """
    restarted: list[str] = []
    with Group(url) as group:
        while True:
            before = _well(group, restarted)
            waiting = [member for member in before["members"] if member["worker_id"] not in restarted]
            if not waiting:
                break
            leader = before["leader"]["worker_id"]
            member = min(waiting, key=lambda one: (one["worker_id"] == leader, one["name"]))
            _restart_one(group, before, member, timeout_s=timeout_s, restarted=restarted)
            restarted.append(member["worker_id"])
    _console.print(f"All {len(restarted)} workers have restarted.")


def _restart_one(group: Group, before: Shown, member: Shown, *, timeout_s: float, restarted: list[str]) -> None:
    began = time.monotonic()
    group.order("POST", member["worker_id"], "restart")

    def is_back(shown: Shown) -> bool:
        now = found(shown, member["worker_id"])
        return (
            now is not None
            and now["life"] not in (None, member["life"])
            and not _trouble(shown)
            and _phases(shown)["running"] >= _phases(before)["running"]
        )

    if not group.wait(is_back, within_s=timeout_s):
        others = f"Before it restarted: {', '.join(restarted)}." if restarted else "No other worker was restarted."
        raise WorldError(f"{member['name']} is not back with all its jobs within {timeout_s:g} s. {others}")
    now = found(group.shown(), member["worker_id"])
    kept = now is not None and now["owned"] == member["owned"]
    told = (
        f"its {_jobs(_count(member['owned']))} run again" if kept else "its place was lost meanwhile: jobs have moved"
    )
    _console.print(f"{escape(member['name'])} is back after {time.monotonic() - began:.1f} s; {told}.")


def _well(group: Group, restarted: list[str]) -> Shown:
    """The group, once it is so well that the loss of one worker for a moment is all that is wrong.

    :raises WorldError: with what is wrong, when that does not pass.
    """
    if not group.wait(lambda shown: not _trouble(shown), within_s=_SETTLE_S):
        trouble = _trouble(group.shown())
        raise WorldError(f"The group is not well, so no worker is restarted now: {trouble}")
    return group.shown()


def _trouble(shown: Shown) -> str:
    """What keeps a group from being well; empty when nothing does."""
    for member in shown["members"]:
        if member["state"] != "STABLE":
            return f"{member['name']} is {member['state']}"
        if member["draining"]:
            return f"{member['name']} drains"
        if _count(member["revoked"]) or any(member["phases"].get(phase) for phase in _IN_BETWEEN):
            return f"jobs of {member['name']} are on their way"
    if shown["deferred"]:
        return "jobs wait for a worker that is gone"
    return ""


# -- small hands ------------------------------------------------------------------------------------------------------


def _phases(shown: Shown) -> Counter[str]:
    phases: Counter[str] = Counter()
    for member in shown["members"]:
        phases.update(member["phases"] or {})
    return phases


def _count(jobs: Mapping[str, list[object]]) -> int:
    return len(jobs["connectors"]) + len(jobs["tasks"])


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
