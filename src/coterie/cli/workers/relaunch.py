"""A worker's process that begins anew: it executes itself, with the same arguments, and hands its place on.

It keeps its number, so whatever looks after it (a shell, systemd, a container, `coterie up`) notices nothing. What is
handed on goes through a file that has no name any more: whatever its size, nobody else reads it, and nothing is left.
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
"""The number of the open file that holds what a former life has handed on."""
VERSION = 1
"""Of what is handed on. Whoever changes that, or what it means, counts on: the lives may be of two releases."""

logger = logging.getLogger(__name__)


def begin_anew(settings: MemberSettings, place: PlaceHandover | None) -> NoReturn:
    """Execute this process anew; ``place`` is what it had as a member with ``settings``.

    :raises WorldError: when that cannot be done: the interpreter is gone, the disk is full.
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
        raise WorldError(f"{sys.executable} could not be executed anew: {error}") from error


def handed_on(settings: MemberSettings) -> PlaceHandover | None:
    """The place that a former life of this process has handed on, if a member with ``settings`` can go on in it.

    Whoever joins otherwise than before, by another protocol or under another address, has to join once more. A member
    of another group, or another member of it, has no place from before. What cannot be read, because another release
    wrote it, costs the place and not the worker.
    """
    descriptor = os.environ.pop(PLACE_VARIABLE, None)
    if descriptor is None:
        return None
    try:
        with open(int(descriptor), "rb") as file:
            return decode(settings, file.read())
    except (OSError, ValueError, WireError) as error:
        logger.warning("The place of this worker's former life is lost, and it joins as a new member: %s", error)
        return None


def encode(settings: MemberSettings, place: PlaceHandover) -> bytes:
    """What a member with ``settings`` hands on."""
    handed = {"version": VERSION, "who": _who(settings), "said": _said(settings), "place": encode_place(place).decode()}
    return json.dumps(handed).encode()


def decode(settings: MemberSettings, data: bytes) -> PlaceHandover | None:
    """What :func:`handed_on` finds in ``data``.

    :raises WireError: when these are bytes of nobody's, or of another version.
    """
    try:
        handed = json.loads(data)
        if handed["version"] != VERSION:
            raise WireError(f"what was handed on is of version {handed['version']}, and this is {VERSION}")
        who, said, place = handed["who"], handed["said"], decode_place(handed["place"].encode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"what was handed on is malformed: {error!r}") from error
    if who != _who(settings):
        return None
    return place if said == _said(settings) else replace(place, must_ask_for_round=True)


def _who(settings: MemberSettings) -> list[str | None]:
    return [settings.group_id, settings.instance_id]


def _said(settings: MemberSettings) -> str:
    """All that a join says of its member, but for what it runs: the same words in any process."""
    claims = None if settings.claims is None else [str(job) for job in settings.claims]
    protocols = [protocol.setting for protocol in settings.protocols]
    timeouts = [settings.session_timeout_ms, settings.rebalance_timeout_ms]
    return json.dumps([settings.url, settings.name, protocols, claims, timeouts])
