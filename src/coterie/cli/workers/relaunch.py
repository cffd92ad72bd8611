"""Relaunches a worker: the process replaces itself (``exec``), with the same arguments, and passes its membership on.

The process keeps its pid, so its supervisor (a shell, systemd, a container, `coterie up`) does not notice the restart.
The membership is passed in an open file that has no name any more: its size is not limited, no other process can read
it, and no file is left over.
"""

import json
import logging
import os
import sys
import tempfile
from dataclasses import replace
from typing import NoReturn

from coterie.cli import parent
from coterie.member.classic.state import MemberSettings
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect_place import decode_place, encode_place

PLACE_VARIABLE = "COTERIE_PLACE"
"""The descriptor of the open file with the membership of the previous process."""
VERSION = 1
"""The version of that file's format. Increment it with every change: the two processes may be of different releases."""

logger = logging.getLogger(__name__)


def begin_anew(settings: MemberSettings, place: PlaceHandover | None) -> NoReturn:
    """Replace this process by a new one; ``place`` is its membership as a member with ``settings``.

    :raises WorldError: when that fails, for example because the interpreter was deleted or the disk is full.
    """
    environment = {key: value for key, value in os.environ.items() if key != PLACE_VARIABLE}
    try:
        if place is not None:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
                file.write(encode(settings, place))
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.set_inheritable(descriptor, True)
            environment[PLACE_VARIABLE] = str(descriptor)
        environment.update(parent.handed_on())
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError as error:
        raise WorldError(f"{sys.executable} could not be executed to restart the worker: {error}") from error


def handed_on(settings: MemberSettings) -> PlaceHandover | None:
    """The membership that the previous process passed on, if a member with ``settings`` can continue it.

    A member whose join metadata has changed, for example its protocol or address, must join again. None if the group
    or the instance id has changed. None also if the file cannot be read, for example because another release wrote it:
    then the worker joins as a new member.
    """
    descriptor = os.environ.pop(PLACE_VARIABLE, None)
    if descriptor is None:
        return None
    try:
        with open(int(descriptor), "rb") as file:
            return decode(settings, file.read())
    except (OSError, ValueError, WireError) as error:
        logger.warning(
            "The membership of this worker's previous process cannot be read; the worker joins as a new member: %s",
            error,
        )
        return None


def encode(settings: MemberSettings, place: PlaceHandover) -> bytes:
    """Encode the membership ``place`` of a member with ``settings``."""
    handed = {"version": VERSION, "who": _who(settings), "said": _said(settings), "place": encode_place(place).decode()}
    return json.dumps(handed).encode()


def decode(settings: MemberSettings, data: bytes) -> PlaceHandover | None:
    """Decode ``data`` as described at :func:`handed_on`.

    :raises WireError: when the bytes are malformed, or of another version.
    """
    try:
        handed = json.loads(data)
        if handed["version"] != VERSION:
            raise WireError(f"the inherited membership has version {handed['version']}; version {VERSION} is needed")
        who, said, place = handed["who"], handed["said"], decode_place(handed["place"].encode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"the inherited membership is malformed: {error!r}") from error
    if who != _who(settings):
        return None
    return place if said == _said(settings) else replace(place, must_ask_for_round=True)


def _who(settings: MemberSettings) -> list[str | None]:
    return [settings.group_id, settings.instance_id]


def _said(settings: MemberSettings) -> str:
    """The metadata in a member's JoinGroup request without its jobs, as text that is the same in every process."""
    claims = None if settings.claims is None else [str(job) for job in settings.claims]
    protocols = [protocol.setting for protocol in settings.protocols]
    timeouts = [settings.session_timeout_ms, settings.rebalance_timeout_ms]
    return json.dumps([settings.url, settings.name, protocols, claims, timeouts])
