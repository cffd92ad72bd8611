"""The assignors of connect groups: finds them by entry point, for workers and for the embedded broker.

Coterie's own assignor is found in the same way as a user's (`assignors.connect.interface`).
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from coterie.assignors.connect.interface import ASSIGNOR_ENTRY_POINTS, ConnectAssignor
from coterie.assignors.connect.target_shape import check_and_copy_target
from coterie.assignors.members import RebalancePolicy
from coterie.cli.daemon_thread import PluginCaller
from coterie.cli.plugin_loading import check_plugins_registered_exactly_once, load_plugin, make_unusable_plugin_error
from coterie.member.connect.state import OfferedAssignor
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.target_assignments import AssignFunction, ComputedTarget, GroupSnapshot

METADATA_VERSION_MAX = 2**15 - 1
"""The greatest version of an assignor's metadata; the wire format has an int16."""
METADATA_REASON_MAX = 2**7 - 1
"""The greatest reason that an assignor may give for a new computation; the wire format has an int8."""
_PLUGIN_KIND = "assignor"

logger = logging.getLogger(__name__)


def load_assignors(names: Sequence[str], policy: RebalancePolicy, *, key: str) -> list[ConnectAssignor]:
    """The assignors with these ``names``, in this order, each created with ``policy``. ``key`` is the config key that
    contains the names.

    :raises ConfigError: when no installed package registers an assignor with one of the names, when several packages
        do, or when its class cannot be imported or created.
    """
    found = entry_points(group=ASSIGNOR_ENTRY_POINTS)
    return [
        load_plugin(
            found,
            name,
            kind=_PLUGIN_KIND,
            key=key,
            create=partial(_create_assignor_and_check_name, name=name, policy=policy),
        )
        for name in names
    ]


def check_assignors_installed(names: Sequence[str], *, key: str) -> None:
    """Check that the assignors with these ``names`` are installed. Nothing is imported.

    :raises ConfigError: when no installed package registers an assignor with one of the names, or several do.
    """
    check_plugins_registered_exactly_once(ASSIGNOR_ENTRY_POINTS, names, kind=_PLUGIN_KIND, key=key)


def load_usable_installed_assignors(policy: RebalancePolicy) -> list[ConnectAssignor]:
    """All assignors that installed packages register, each created with ``policy``. For the embedded broker. An
    assignor that cannot be used is left out, with a warning, because some groups do not need it."""
    usable: list[ConnectAssignor] = []
    for name in sorted(entry_points(group=ASSIGNOR_ENTRY_POINTS).names):
        try:
            usable += load_assignors([name], policy, key="group.connect.assignors")
        except ConfigError as error:
            logger.warning("%s", error)
    return usable


def read_and_check_offered_assignor(assignor: ConnectAssignor) -> OfferedAssignor:
    """The name, versions and metadata of ``assignor``, as a worker reports them to the coordinator. Calls the code of
    the plug-in, which may block.

    :raises WorldError: when the assignor's versions or the reason of its metadata are not valid, or its metadata cannot
        be read.
    """
    try:
        metadata = assignor.metadata()
        offered = OfferedAssignor(
            name=str(assignor.name),
            minimum_version=int(assignor.minimum_version),
            maximum_version=int(assignor.maximum_version),
            metadata_version=int(metadata.version),
            metadata=bytes(metadata.metadata),
            reason=int(metadata.reason),
        )
    except Exception as error:
        raise WorldError(f"its metadata cannot be read: {type(error).__name__}: {error}") from error
    if not 0 <= offered.minimum_version <= offered.metadata_version <= offered.maximum_version <= METADATA_VERSION_MAX:
        raise WorldError(
            f"its versions must satisfy 0 <= minimum_version ({offered.minimum_version}) <= version of the metadata "
            f"({offered.metadata_version}) <= maximum_version ({offered.maximum_version}) <= {METADATA_VERSION_MAX}"
        )
    if not 0 <= offered.reason <= METADATA_REASON_MAX:
        raise WorldError(f"the reason of its metadata is {offered.reason}; it must be from 0 to {METADATA_REASON_MAX}")
    return offered


def make_unusable_assignor_error(name: str, why: str) -> ConfigError:
    """Build the error for an assignor of the worker that cannot be used, because of ``why``."""
    return make_unusable_plugin_error(_PLUGIN_KIND, name, why)


def assign_functions_by_name(assignors: Sequence[ConnectAssignor]) -> Mapping[str, AssignFunction]:
    """The functions that compute a target assignment with an assignor, by the assignor's name. Each function calls its
    assignor on a separate thread, and checks its result there. It raises WorldError when the snapshot's time limit is
    over, or an earlier call of the same assignor has not returned; TypeError when the assignor returns no target, or
    one with values of other types; and the exceptions of the assignor."""
    return {assignor.name: _make_assign_function(assignor) for assignor in assignors}


def _make_assign_function(assignor: ConnectAssignor) -> AssignFunction:
    thread = PluginCaller(f"assignor {assignor.name}")

    async def assign(group: GroupSnapshot) -> ComputedTarget:
        return await thread.call(lambda: check_and_copy_target(assignor.assign(group)), timeout_ms=group.time_limit_ms)

    return assign


def _create_assignor_and_check_name(assignor_class: Any, name: str, policy: RebalancePolicy) -> ConnectAssignor:
    """Create an assignor of ``assignor_class``, which takes the ``policy``; ``name`` is that of its entry point.

    :raises ValueError: when the assignor has another name; also raises the exceptions of ``assignor_class``.
    """
    assignor: ConnectAssignor = assignor_class(policy)
    if assignor.name != name:
        raise ValueError(f"the assignor has the name {assignor.name}, but its entry point has the name {name}")
    return assignor
