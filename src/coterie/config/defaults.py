"""Defaults of settings that several packages need, each stated once. Durations are milliseconds, sizes bytes. A
constant for a worker has the name of its config key: SESSION_TIMEOUT_MS is the default of ``session.timeout.ms``.

A worker's defaults are Kafka Connect's where Connect has the setting; the embedded broker's are Kafka's where Kafka has
the setting.
"""

# -- a worker (`config.worker`) ----------------------------------------------------------------------------------------

SESSION_TIMEOUT_MS = 10_000
CONNECTION_GRACE_MS = 2_000
ASSIGNOR = "cooperative"
"""The name of Coterie's own assignor of connect groups."""
HEARTBEAT_INTERVAL_MS = 3_000
REBALANCE_HEARTBEAT_INTERVAL_MS = 200
REBALANCE_TIMEOUT_MS = 60_000
WORKER_SYNC_TIMEOUT_MS = 3_000
CONFIG_REBALANCE_WINDOW_MS = 300
SCHEDULED_REBALANCE_MAX_DELAY_MS = 300_000
REBALANCE_ROUND_INTERVAL_MS = 0
TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS = 5_000
OFFSET_FLUSH_INTERVAL_MS = 60_000
PLUGIN_CALL_TIMEOUT_MS = 60_000
PLUGIN_LOST_THREADS_MAX = 64
INTER_WORKER_KEY_TTL_MS = 3_600_000
INTER_WORKER_ALGORITHM = "HmacSHA256"
"""The default MAC algorithm of the session key and of signatures, and by default the only one accepted in requests
(KIP-507)."""
_MAVEN_CENTRAL_HOST = "repo1.maven.org"
MAVEN_CENTRAL = f"https://{_MAVEN_CENTRAL_HOST}/maven2"
"""The URL of Maven's central repository."""

# -- the embedded broker (`broker.settings`) ---------------------------------------------------------------------------

INITIAL_REBALANCE_DELAY_MS = 3_000
"""The default of ``group.initial.rebalance.delay.ms``."""
GROUPS_MAX = 10_000
"""The default of the maximum number of the broker's groups of each kind, classic and connect."""
CLASSIC_GROUP_SIZE_MAX = 2**31 - 1
"""The default of the maximum number of members of one classic group."""
FRAME_SIZE_MAX_BYTES = 104_857_600
"""The default of the maximum size of one request, in bytes."""
CONNECTIONS_MAX = 2_000
"""The default of the maximum number of connections to the broker."""
IN_FLIGHT_REQUESTS_MAX = 32
"""The default of the maximum number of requests of one connection whose responses are not sent yet."""
