"""The table of all APIs: ApiVersions advertises them, and each request is looked up in it."""

import re
from collections.abc import Mapping

from coterie.broker.apis import (
    add_offsets_to_txn,
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
    txn_offset_commit,
)
from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import NO_AUTHORIZATION
from coterie.broker.apis.connect_groups import (
    describe,
    install_assignment,
    prepare_assignment,
)
from coterie.broker.apis.connect_groups import (
    heartbeat as connect_heartbeat,
)
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.settings import BrokerSettings
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values
from coterie.wire.schemas import API_VERSIONS

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""A valid name or version of a client's software, in ApiVersions requests (KIP-511)."""


async def handle_api_versions(broker: BrokerContext, request: ApiRequest) -> Values:
    """ApiVersions: returns the supported versions of each API, or INVALID_REQUEST if the name or version of the
    client's software is malformed. A request of an unsupported version does not come here: it gets a v0 response with
    UNSUPPORTED_VERSION (KIP-511). Of the features (KIP-584) the response contains only transaction.version: its level 2
    tells clients that the end of each transaction increments the producer's epoch (KIP-890)."""
    names = [request.field_or_default(f"client_software_{what}", "unknown") for what in ("name", "version")]
    if not all(_SOFTWARE.fullmatch(name) for name in names):
        return {"error_code": ErrorCode.invalid_request, "api_keys": ()}
    return api_versions_values(ErrorCode.none, broker.settings)


_CONNECT_GROUP_APIS = {
    api.key: api for api in (connect_heartbeat.API, prepare_assignment.API, install_assignment.API, describe.API)
}
_OTHER_APIS = {
    api.key: api
    for api in (
        KafkaApi(key=API_VERSIONS, versions=range(5), handle=handle_api_versions, authorization=NO_AUTHORIZATION),
        add_offsets_to_txn.API, add_partitions_to_txn.API, alter_configs.API, create_partitions.API,
        create_topics.API, delete_groups.API, delete_records.API, delete_topics.API, describe_cluster.API,
        describe_configs.API, describe_groups.API, describe_log_dirs.API, describe_producers.API,
        describe_topic_partitions.API, describe_transactions.API, end_txn.API, fetch.API, find_coordinator.API,
        heartbeat.API, incremental_alter_configs.API, init_producer_id.API, join_group.API, leave_group.API,
        list_config_resources.API, list_groups.API, list_offsets.API, list_transactions.API, metadata.API,
        offset_commit.API, offset_delete.API, offset_fetch.API, offset_for_leader_epoch.API, produce.API,
        sasl_authenticate.API, sasl_handshake.API, sync_group.API, txn_offset_commit.API,
    )
}  # fmt: skip
APIS: Mapping[int, KafkaApi] = _OTHER_APIS | _CONNECT_GROUP_APIS
"""All APIs of this broker, by the number of the API: Kafka's, and those of connect groups."""


def served_apis(settings: BrokerSettings) -> Mapping[int, KafkaApi]:
    """The APIs that a broker with these settings serves, by number; all others do not exist for its clients."""
    return APIS if settings.serves_connect_groups else _OTHER_APIS


def api_versions_values(error: ErrorCode, settings: BrokerSettings) -> Values:
    """The values of an ApiVersions response with this error code: the advertised versions of each API that a broker
    with these settings serves, and the features. The lowest advertised version may be lower than the lowest that is
    served (:attr:`.KafkaApi.advertised_version_min`)."""
    return {
        "error_code": error,
        "api_keys": [
            {
                "api_key": api.key,
                "min_version": api.versions.start if api.advertised_version_min is None else api.advertised_version_min,
                "max_version": api.versions.stop - 1,
            }
            for api in sorted(served_apis(settings).values(), key=lambda api: api.key)
        ],
        "supported_features": [{"name": "transaction.version", "min_version": 1, "max_version": 2}],
        "finalized_features_epoch": 0,
        "finalized_features": [{"name": "transaction.version", "max_version_level": 2, "min_version_level": 2}],
    }
