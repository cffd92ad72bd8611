"""Which APIs there are: what ApiVersions advertises and what requests are matched with."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from coterie.broker.apis import (
    add_partitions_to_txn,
    alter_configs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
from coterie.broker.node import Node, Request
from coterie.broker.security.needs import NEEDS
from coterie.broker.security.permissions import Asking, answered
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from coterie.wire.shapes import Values

Handler = Callable[[Node, Request], Values | Awaitable[Values | None]]
"""Answers, at once or later, with values that know no version; None where the client awaits no answer."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""How a client may call itself and its version (KIP-511)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One API: the versions that work, and what answers."""

    key: int
    versions: range
    handle: Handler
    advertised_min: int | None = None
    """Where it is not the first version that works."""


# ApiVersions: v0-4 · what works here; a version from the future is answered in v0 with UNSUPPORTED_VERSION (KIP-511) ·
# of the features (KIP-584) the one that clients ask for: with transaction.version 2 each transaction has its own epoch.
async def api_versions(node: Node, request: Request) -> Values:
    names = [request.told(f"client_software_{what}", "unknown") for what in ("name", "version")]
    if not all(_SOFTWARE.fullmatch(name) for name in names):
        return {"error_code": ErrorCode.invalid_request, "api_keys": (), "throttle_time": 0}
    return supported_versions(ErrorCode.none)


def _guarded(api: Api) -> Api:
    """The API as peers meet it: where there are rules, they are asked first."""

    def handle(node: Node, request: Request) -> Values | Awaitable[Values | None]:
        authorizer = node.admission.authorizer
        if authorizer is None:
            return api.handle(node, request)
        return answered(NEEDS.get(api.key), Asking(node, request, authorizer), api.handle)

    return replace(api, handle=handle)


APIS: Mapping[int, Api] = {
    api.key: _guarded(api)
    for api in (
        # Produce v0-2 work as little as in Kafka 4, and are advertised as there: librdkafka before 2.11 compresses
        # nothing for a broker that does not name them (KAFKA-18659).
        Api(key=0, versions=range(3, 14), handle=produce.handle, advertised_min=0),
        Api(key=1, versions=range(4, 19), handle=fetch.handle),
        Api(key=2, versions=range(1, 12), handle=list_offsets.handle),
        Api(key=3, versions=range(14), handle=metadata.handle),
        Api(key=8, versions=range(2, 11), handle=offset_commit.handle),
        Api(key=9, versions=range(1, 11), handle=offset_fetch.handle),
        Api(key=10, versions=range(7), handle=find_coordinator.handle),
        Api(key=11, versions=range(10), handle=join_group.handle),
        Api(key=12, versions=range(5), handle=heartbeat.handle),
        Api(key=13, versions=range(6), handle=leave_group.handle),
        Api(key=14, versions=range(6), handle=sync_group.handle),
        Api(key=15, versions=range(7), handle=describe_groups.handle),
        Api(key=16, versions=range(6), handle=list_groups.handle),
        Api(key=SASL_HANDSHAKE, versions=range(2), handle=sasl_handshake.handle),
        Api(key=API_VERSIONS, versions=range(5), handle=api_versions),
        Api(key=19, versions=range(2, 8), handle=create_topics.handle),
        Api(key=20, versions=range(1, 7), handle=delete_topics.handle),
        Api(key=21, versions=range(3), handle=delete_records.handle),
        Api(key=22, versions=range(6), handle=init_producer_id.handle),
        Api(key=23, versions=range(2, 5), handle=offset_for_leader_epoch.handle),
        Api(key=24, versions=range(6), handle=add_partitions_to_txn.handle),
        Api(key=26, versions=range(6), handle=end_txn.handle),
        Api(key=32, versions=range(1, 5), handle=describe_configs.handle),
        Api(key=33, versions=range(3), handle=alter_configs.handle),
        Api(key=35, versions=range(1, 5), handle=describe_log_dirs.handle),
        Api(key=SASL_AUTHENTICATE, versions=range(3), handle=sasl_authenticate.handle),
        Api(key=37, versions=range(4), handle=create_partitions.handle),
        Api(key=42, versions=range(3), handle=delete_groups.handle),
        Api(key=44, versions=range(2), handle=incremental_alter_configs.handle),
        Api(key=47, versions=range(1), handle=offset_delete.handle),
        Api(key=60, versions=range(3), handle=describe_cluster.handle),
        Api(key=61, versions=range(1), handle=describe_producers.handle),
        Api(key=65, versions=range(1), handle=describe_transactions.handle),
        Api(key=66, versions=range(3), handle=list_transactions.handle),
        Api(key=74, versions=range(2), handle=list_config_resources.handle),
        Api(key=75, versions=range(1), handle=describe_topic_partitions.handle),
    )
}


def supported_versions(error: ErrorCode) -> Values:
    """The values of ApiVersions' answer."""
    return {
        "error_code": error,
        "api_keys": [
            {
                "api_key": api.key,
                "min_version": api.versions.start if api.advertised_min is None else api.advertised_min,
                "max_version": api.versions.stop - 1,
            }
            for api in sorted(APIS.values(), key=lambda api: api.key)
        ],
        "throttle_time": 0,
        "supported_features": [{"name": "transaction.version", "min_version": 1, "max_version": 2}],
        "finalized_features_epoch": 0,
        "finalized_features": [{"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}],
    }
