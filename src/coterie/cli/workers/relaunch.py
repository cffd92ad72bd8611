"""Relaunches a worker: the process replaces itself (``exec``), with the same arguments, and passes its membership on.

The process keeps its pid, so its supervisor (a shell, systemd, a container, `coterie up`) does not notice the restart.
The membership is passed in an open file that has no name any more: the size of the membership is not limited, no other
process can read the file, and no file is left over.
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
from coterie.nouns.membership import ClassicMembershipHandover, Handover
from coterie.wire.connect_place import decode_membership_handover, encode_membership_handover

HANDOVER_DESCRIPTOR_VARIABLE = "COTERIE_PLACE"
"""The environment variable with the descriptor of the open file that contains the previous process's membership."""
HANDOVER_FILE_VERSION = 1
"""The version of this file's format. Increment it with every change: the two processes may be of different releases."""

logger = logging.getLogger(__name__)


def relaunch_process(settings: MemberSettings, membership_handover: Handover | None) -> NoReturn:
    """Replace this process by a new one, and pass on ``membership_handover``, its membership as a member with
    ``settings``.

    If ``membership_handover`` is None, the new process joins the group as a new member.

    :raises WorldError: when the process cannot be replaced, for example because the interpreter was deleted or the disk
        is full.
    """
    environment = {key: value for key, value in os.environ.items() if key != HANDOVER_DESCRIPTOR_VARIABLE}
    try:
        if membership_handover is not None:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
                file.write(encode_membership(settings, membership_handover))
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.set_inheritable(descriptor, True)
            environment[HANDOVER_DESCRIPTOR_VARIABLE] = str(descriptor)
        environment.update(parent.make_pipe_inheritable_for_exec())
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError as error:
        raise WorldError(f"the worker's process could not be replaced by a new {sys.executable}: {error}") from error


def inherited_handover(settings: MemberSettings) -> Handover | None:
    """Return the membership that the previous process passed on, if a member with ``settings`` can continue it.

    If the metadata of the member's JoinGroup request has changed, for example its protocol, address or timeouts, the
    membership has ``must_start_rebalance``, so that the member starts a rebalance; in a connect group, the first
    heartbeat of the new process contains all metadata. None if no membership was passed on, the group or the instance
    id has changed, or the file cannot be read, for example because another release wrote it: then the worker joins as a
    new member. A second call in the same process returns None.
    """
    descriptor = os.environ.pop(HANDOVER_DESCRIPTOR_VARIABLE, None)
    if descriptor is None:
        return None
    try:
        with open(int(descriptor), "rb") as file:
            return decode_membership_if_same_member(settings, file.read())
    except (OSError, ValueError, WireError) as error:
        logger.warning(
            "The membership of this worker's previous process cannot be read; the worker joins as a new member: %s",
            error,
        )
        return None


def encode_membership(settings: MemberSettings, membership_handover: Handover) -> bytes:
    """Encode the membership ``membership_handover`` of a member with ``settings``, for
    :func:`decode_membership_if_same_member`."""
    membership = {
        "version": HANDOVER_FILE_VERSION,
        "who": _group_and_instance_id(settings),
        "said": _join_metadata(settings),
        "place": encode_membership_handover(membership_handover).decode(),
    }
    return json.dumps(membership).encode()


def decode_membership_if_same_member(settings: MemberSettings, data: bytes) -> Handover | None:
    """Decode ``data`` of :func:`encode_membership` for a member with ``settings``, as described at
    :func:`inherited_handover`.

    None if the group or the instance id has changed.

    :raises WireError: when the bytes are malformed, or of another version.
    """
    try:
        membership = json.loads(data)
        if membership["version"] != HANDOVER_FILE_VERSION:
            raise WireError(
                f"the inherited membership has version {membership['version']}; "
                f"version {HANDOVER_FILE_VERSION} is needed"
            )
        who, join_metadata, membership_handover = (
            membership["who"],
            membership["said"],
            decode_membership_handover(membership["place"].encode()),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WireError(f"the inherited membership is malformed: {error!r}") from error
    if who != _group_and_instance_id(settings):
        return None
    if isinstance(membership_handover, ClassicMembershipHandover) and join_metadata != _join_metadata(settings):
        return replace(membership_handover, must_start_rebalance=True)
    return membership_handover


def _group_and_instance_id(settings: MemberSettings) -> list[str | None]:
    """The group and the instance id: with other values, a member cannot continue a membership."""
    return [settings.group_id, settings.instance_id]


def _join_metadata(settings: MemberSettings) -> str:
    """The member's part of a JoinGroup request, without its jobs, as text that is the same in every process."""
    claims = None if settings.claims is None else [str(job) for job in settings.claims]
    protocols = [protocol.setting for protocol in settings.protocols]
    timeouts = [settings.session_timeout_ms, settings.rebalance_timeout_ms]
    return json.dumps([settings.url, settings.worker_name, protocols, claims, timeouts])
