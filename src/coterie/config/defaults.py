"""Defaults of settings that several rooms need, each stated once. Durations are milliseconds, sizes bytes.

A worker's defaults are Kafka Connect's where Connect has the setting; the embedded broker's are Kafka's where Kafka has
the setting.
"""

# -- a worker (`config.worker`) ----------------------------------------------------------------------------------------

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 3_000
REBALANCE_HEARTBEAT_INTERVAL_MS = 200
REBALANCE_TIMEOUT_MS = 60_000
WORKER_SYNC_TIMEOUT_MS = 3_000
CONFIG_REBALANCE_WINDOW_MS = 300
SCHEDULED_REBALANCE_MAX_DELAY_MS = 300_000
REBALANCE_ROUND_INTERVAL_MS = 0
TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS = 5_000
OFFSET_FLUSH_INTERVAL_MS = 60_000
INTER_WORKER_KEY_TTL_MS = 3_600_000
INTER_WORKER_ALGORITHM = "HmacSHA256"
"""The MAC algorithm of the session key and of signatures, and the only one accepted in requests (KIP-507)."""
_MAVEN_CENTRAL_HOST = "repo1.maven.org"
MAVEN_CENTRAL = f"https://{_MAVEN_CENTRAL_HOST}/maven2"

# -- the embedded broker (`broker.settings`) ---------------------------------------------------------------------------

INITIAL_REBALANCE_DELAY_MS = 3_000
GROUPS_MAX = 10_000
GROUP_SIZE_MAX = 2**31 - 1
FRAME_SIZE_MAX = 104_857_600
CONNECTIONS_MAX = 2_000
IN_FLIGHT_MAX = 32
