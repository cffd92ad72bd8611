"""A worker's settings: Kafka Connect's keys with their defaults, and the few keys that Coterie adds."""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, field_validator

from coterie.config import defaults
from coterie.config.definition import split_list
from coterie.config.inter_worker import InterWorkerSettings
from coterie.config.providers import PROVIDERS_KEY, ConfigProviders
from coterie.config.rest import CLIENT_AUTH_KEY, HTTPS_KEY_PREFIX, RestSettings, RestTls
from coterie.config.security import SECURITY_KEYS as SECURITY_KEYS
from coterie.config.security import TLS_FILE_KEYS, KafkaSecurity
from coterie.config.validation_messages import messages_by_key
from coterie.nouns.errors import ConfigError, invalid_value_message
from coterie.nouns.ids import GroupId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import GroupProtocolName

INSTANCE_ID_PATTERN = r"[a-zA-Z0-9._-]{1,249}"
"""The pattern that Kafka brokers check a ``group.instance.id`` against."""
INT_MAX = 2**31 - 1
"""The greatest value of Kafka's INT, the type of times, counts and task numbers on the wire."""
REPLICAS_MAX = 2**15 - 1
"""The greatest replication factor, an int16 on the wire."""
USER_JAR_KEYS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
"""Spark's settings by which a user chooses the jars. When one of them is set, the worker adds and fetches no jars."""
NonEmptyText = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""
PositiveMilliseconds = Annotated[int, Field(ge=1, le=INT_MAX)]
"""A duration of at least 1 ms."""
NonNegativeMilliseconds = Annotated[int, Field(ge=0, le=INT_MAX)]
"""A duration of at least 0 ms."""
_Lowercase = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
_SplitList = BeforeValidator(lambda value: split_list(value) if isinstance(value, str) else value)
NonEmptyTexts = Annotated[tuple[NonEmptyText, ...], _SplitList]
"""A LIST value: items between commas, none of them empty."""
UncheckedTexts = Annotated[tuple[str, ...], _SplitList]
"""A LIST value whose items are checked together later, so that an error message contains the complete value."""


class WorkerSettings(InterWorkerSettings, RestSettings):
    """The settings of one worker, read at its start. A field's config key is its name with dots for underscores.

    Create this object only with :meth:`from_properties`, which reports every error by its key.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=lambda name: name.replace("_", "."),
        use_attribute_docstrings=True,
        str_strip_whitespace=True,
    )

    # -- the group --------------------------------------------------------------------------------------------------

    bootstrap_servers: Annotated[NonEmptyTexts, Field(min_length=1)] = ("localhost:9092",)
    """The brokers to which this worker connects first, each as `host:port`."""
    group_id: Annotated[GroupId, Field(min_length=1)]
    """The id of the group of workers that share the work; it is the same for all workers of the group."""
    group_instance_id: NonEmptyText | None = None
    """The id of this worker as a static member of its group, the same at every start (KIP-345). A worker with an
    instance id does not leave the group when it stops: its jobs wait for it, and it gets them again as soon as it
    rejoins. Two running workers must not have the same id. To restart the worker without a rebalance, set
    `session.timeout.ms` to more than the time of a restart (with Spark, some 20 s)."""
    group_protocol: Annotated[GroupProtocolName, _Lowercase] = GroupProtocolName.CLASSIC
    """The protocol between this worker and the coordinator of its group, the same for all workers of the group: classic
    (Kafka's group protocol) or connect (the protocol with epochs, which only Coterie's broker serves)."""
    group_local_assignors: UncheckedTexts | None = None
    """With `group.protocol=connect`: the assignors that this worker offers, the preferred one first. By default
    cooperative, or none if `group.remote.assignor` is set."""
    group_remote_assignor: NonEmptyText | None = None
    """With `group.protocol=connect`: the broker's assignor that computes the target assignments, if the workers offer
    none that all of them have."""
    rebalance_listeners: UncheckedTexts = ()
    """With `group.protocol=connect`: the listeners that are called after this worker has started or stopped jobs in a
    rebalance, in this order. A listener is a plug-in of an installed Python package. (Coterie's own key.)"""
    connection_grace_ms: NonNegativeMilliseconds = defaults.CONNECTION_GRACE_MS
    """With `group.protocol=connect`: how long after the end of this worker's connection the broker waits before it
    takes the worker's process for dead; 0: the broker ignores the end of a connection and waits for the end of the
    session, which a worker behind a proxy needs. (Coterie's own key.)"""
    client_id: str = ""
    """The name of this worker in the brokers' logs; by default `worker.name` or `host:port`."""
    heartbeat_interval_ms: PositiveMilliseconds = defaults.HEARTBEAT_INTERVAL_MS
    """The time between two heartbeats of this worker to the group's coordinator."""
    session_timeout_ms: PositiveMilliseconds = defaults.SESSION_TIMEOUT_MS
    """The group removes a worker from which the coordinator has received no heartbeat for this time."""
    rebalance_heartbeat_interval_ms: PositiveMilliseconds = defaults.REBALANCE_HEARTBEAT_INTERVAL_MS
    """The heartbeat interval after a rebalance, as long as a second rebalance may follow soon: until the revoked jobs
    have had the time to stop. All workers then learn of the second rebalance at once, and jobs that move are stopped
    for a shorter time. When `heartbeat.interval.ms` is shorter, that interval is used. (Coterie's own key.)"""
    rebalance_timeout_ms: PositiveMilliseconds = defaults.REBALANCE_TIMEOUT_MS
    """How long a rebalance waits for this worker to rejoin; after that the group removes the worker."""
    worker_sync_timeout_ms: PositiveMilliseconds = defaults.WORKER_SYNC_TIMEOUT_MS
    """How long a rebalance and a GET request wait until this worker has read the config topic to its end. If the leader
    of a rebalance has then still read less than a member, the rebalance assigns no new jobs, and another rebalance
    follows when the leader has caught up. A GET request then returns what this worker has read so far."""
    config_rebalance_window_ms: NonNegativeMilliseconds = defaults.CONFIG_REBALANCE_WINDOW_MS
    """Creations and deletions of connectors and tasks within this time after the first of them cause one rebalance; 0:
    each change causes a separate rebalance. (Coterie's own key.)"""
    scheduled_rebalance_max_delay_ms: NonNegativeMilliseconds = defaults.SCHEDULED_REBALANCE_MAX_DELAY_MS
    """How long the jobs of a worker that has left the group wait for it to rejoin before other workers get them; 0:
    they do not wait."""
    rebalance_max_moves_per_round: Annotated[int, Field(ge=1, le=INT_MAX)] | None = None
    """The greatest number of jobs that one rebalance revokes from workers for balance or a drain; without this key, a
    rebalance revokes all jobs that have to move. (Coterie's own key.)"""
    rebalance_round_interval_ms: NonNegativeMilliseconds = defaults.REBALANCE_ROUND_INTERVAL_MS
    """The time from a rebalance that revoked `rebalance.max.moves.per.round` jobs to the next such rebalance.
    (Coterie's own key.)"""
    connect_protocol: str = "static"
    """The newest protocol that this worker offers to its group: eager, compatible, sessioned or static. The worker also
    offers all older protocols. The group uses the newest protocol that all its workers offer. With eager, every
    rebalance stops every task."""
    static_connectors: UncheckedTexts | None = None
    """The connectors that this worker may run (KIP-987). A worker that sets this key or `static.tasks` runs only the
    jobs that the two keys list; an empty list means: run nothing. Ignored while a worker of the group does not offer
    protocol static."""
    static_tasks: UncheckedTexts | None = None
    """The tasks that this worker may run, each as `<connector>-<number>` (KIP-987); see `static.connectors`."""

    # -- the topics -------------------------------------------------------------------------------------------------

    config_storage_topic: NonEmptyText
    """The topic of the configs of the group's connectors. The worker creates this topic, the offset topic and the
    status topic when they do not exist."""
    config_storage_replication_factor: Annotated[int, Field(le=REPLICAS_MAX)] = 3
    """The number of replicas with which the config topic is created; -1: the brokers' default."""
    offset_storage_topic: NonEmptyText
    """The topic that Kafka Connect uses for offsets. The worker creates this topic and writes nothing to it, because
    tasks keep their positions in their checkpoints."""
    offset_storage_replication_factor: Annotated[int, Field(le=REPLICAS_MAX)] = 3
    """The number of replicas with which the offset topic is created; -1: the brokers' default."""
    offset_storage_partitions: Annotated[int, Field(le=INT_MAX)] = 25
    """The number of partitions with which the offset topic is created; -1: the brokers' default."""
    status_storage_topic: NonEmptyText
    """The topic of the states of the group's connectors and tasks."""
    status_storage_replication_factor: Annotated[int, Field(le=REPLICAS_MAX)] = 3
    """The number of replicas with which the status topic is created; -1: the brokers' default."""
    status_storage_partitions: Annotated[int, Field(le=INT_MAX)] = 5
    """The number of partitions with which the status topic is created; -1: the brokers' default."""

    # -- the topics of the connectors -------------------------------------------------------------------------------

    topic_tracking_enable: bool = True
    """Whether this worker records which topics the tasks of its connectors read and write, and lists these topics at
    `/connectors/<connector>/topics`."""
    topic_tracking_allow_reset: bool = True
    """Whether a client may have this worker forget those topics, at `/connectors/<connector>/topics/reset`."""

    # -- the work ---------------------------------------------------------------------------------------------------

    task_shutdown_graceful_timeout_ms: NonNegativeMilliseconds = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS
    """The time, from the order to stop, in which all tasks of this worker together must have stopped. After it the
    tasks are interrupted, and their last batch is replayed when they start again."""
    offset_flush_interval_ms: PositiveMilliseconds = defaults.OFFSET_FLUSH_INTERVAL_MS
    """How often the Kafka offsets up to which tasks have read are committed to group `connect-<connector>`, so that
    Kafka's tools show the lag. Tasks never read these committed offsets."""
    plugin_call_timeout_ms: PositiveMilliseconds = defaults.PLUGIN_CALL_TIMEOUT_MS
    """How long a call into a plug-in (validate, split, start, …) may take. Then the call is given up, and its connector
    or task is FAILED. A batch has its own limit, `task.batch.timeout.ms` of its connector, and a stop has
    `task.shutdown.graceful.timeout.ms`. (Coterie's own key.)"""
    plugin_lost_threads_max: Annotated[int, Field(ge=0, le=INT_MAX)] = defaults.PLUGIN_LOST_THREADS_MAX
    """How many threads of this worker may hang in calls into plug-ins that were given up. With more of them, the worker
    reports that it is unhealthy (`GET /health`: 500), and starts no new jobs until it is restarted. (Coterie's own
    key.)"""
    checkpoint_location: NonEmptyText
    """The folder of all checkpoints, an absolute path, by which all workers of the group reach it. (Coterie's own
    key.)"""
    worker_name: NonEmptyText | None = None
    """The name of this worker in messages and on the web page, another one for each worker of the group; by default
    `host:port`. (Coterie's own key.)"""
    log_level: str = "INFO"
    """The lowest level that is logged: DEBUG, INFO, WARNING or ERROR. (Coterie's own key.)"""
    log_jvm_file: NonEmptyText | None = None
    """The file of the JVM's own output; by default a file in the system's temporary folder. (Coterie's own key.)"""
    jars_dir: NonEmptyText | None = None
    """The folder whose jars this worker adds to its Spark session; by default coterie/jars in the user's cache folder,
    where `coterie jars fetch` stores jars. (Coterie's own key.)"""
    jars_fetch: bool = False
    """Whether the worker, before it starts, fetches the jars that are missing in `jars.dir`. (Coterie's own key.)"""
    jars_mirror: Annotated[str, Field(repr=False)] = defaults.MAVEN_CENTRAL
    """The Maven repository from which jars are fetched. (Coterie's own key.)"""
    pipeline_modules: UncheckedTexts = ()
    """The Python modules, and packages with all their modules, from which connectors may run functions; by default
    none. A client that may write connector configs can run any function of these modules. (Coterie's own key.)"""
    python_executable: NonEmptyText | None = None
    """The Python executable that runs functions over rows; by default the worker's own. It needs PySpark and pyarrow in
    the same versions as the worker. (Coterie's own key.)"""
    spark: Mapping[str, str] = Field(default={}, exclude=True)
    """Every `spark.…` key with its value, passed to the Spark session unchanged."""
    security: KafkaSecurity = Field(default=KafkaSecurity(), exclude=True)
    """How this worker connects to its brokers: the keys of `config.security`."""
    providers: InstanceOf[ConfigProviders] = Field(default=ConfigProviders(), exclude=True)
    """The config providers: the keys of `config.providers`."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The settings from the keys and values of a worker file; unknown keys are ignored. As in Kafka (KIP-421),
        values may refer to the file's own config providers.

        :raises ConfigError: when keys are invalid or missing, or contradict each other. Lists the errors of the first
            check that fails, by key: of the config providers, of the references, of single keys, and between keys.
        :raises SecretNotHiddenError: when the value of a reference cannot be hidden everywhere.
        """
        providers = ConfigProviders.from_properties(properties)
        properties = providers.resolve(properties)
        spark_settings = {key: value for key, value in properties.items() if key.startswith("spark.")}
        settings_by_key = {key: value for key, value in properties.items() if key in _config_keys(cls)}
        security_errors: dict[str, Sequence[str]] = {}
        security, rest_tls = KafkaSecurity(), RestTls()
        try:
            security = KafkaSecurity.from_properties(properties)
        except ConfigError as error:
            security_errors |= error.errors
        try:
            rest_tls = RestTls.from_properties(properties)
        except ConfigError as error:
            security_errors |= error.errors
        parsed_fields = {"spark": spark_settings, "security": security, "rest.tls": rest_tls, "providers": providers}
        try:
            settings = cls.model_validate({**settings_by_key, **parsed_fields})
        except ValidationError as error:
            raise ConfigError(messages_by_key(error, cls) | security_errors) from None
        if security_errors:
            raise ConfigError(security_errors)
        if errors := settings._contradiction_errors():
            raise ConfigError(errors)
        return settings

    @classmethod
    def unknown_keys(cls, properties: Mapping[str, str]) -> list[str]:
        """The keys of ``properties`` that no setting of a worker has, sorted. Like Connect, a worker ignores these keys
        with a warning."""
        https_keys = {HTTPS_KEY_PREFIX + key for key in {*TLS_FILE_KEYS, CLIENT_AUTH_KEY}}
        known_keys = _config_keys(cls) | SECURITY_KEYS | https_keys | {CLIENT_AUTH_KEY}
        return sorted(
            key
            for key in properties
            if key not in known_keys and not key.startswith(("spark.", f"{PROVIDERS_KEY}.")) and key != PROVIDERS_KEY
        )

    def ineffective_keys(self) -> Mapping[str, str]:
        """The keys that are set but have no effect because of the other settings, each with the reason."""
        set_keys = {key for name in self.model_fields_set if (key := type(self).model_fields[name].alias) is not None}
        reason_by_key = self._keys_of_other_protocol(set_keys)
        if self.group_protocol is GroupProtocolName.CLASSIC and self.connect_protocol != "static":
            reason = f"it needs connect.protocol=static, but connect.protocol is {self.connect_protocol}"
            reason_by_key |= dict.fromkeys(sorted(set_keys & {"static.connectors", "static.tasks"}), reason)
        if "rebalance.round.interval.ms" in set_keys and self.rebalance_max_moves_per_round is None:
            reason_by_key["rebalance.round.interval.ms"] = (
                "without rebalance.max.moves.per.round one rebalance makes all moves"
            )
        if user_jar_keys := [key for key in USER_JAR_KEYS if self.spark.get(key)]:
            reason = f"with {user_jar_keys[0]} a worker adds no jars itself"
            reason_by_key |= dict.fromkeys(sorted(set_keys & {"jars.dir", "jars.fetch", "jars.mirror"}), reason)
        elif "jars.mirror" in set_keys and not self.jars_fetch:
            reason_by_key["jars.mirror"] = "without jars.fetch=true a worker fetches no jars"
        return reason_by_key

    def _keys_of_other_protocol(self, set_keys: Set[str]) -> dict[str, str]:
        """The keys in ``set_keys`` that have no effect under this worker's group protocol, each with the reason."""
        match self.group_protocol:
            case GroupProtocolName.CLASSIC:
                keys = {"group.local.assignors", "group.remote.assignor", "connection.grace.ms", "rebalance.listeners"}
                reason = "it needs group.protocol=connect"
            case GroupProtocolName.CONNECT:
                keys = {"session.timeout.ms", "heartbeat.interval.ms", "rebalance.heartbeat.interval.ms"}
                keys |= {"connect.protocol", "config.rebalance.window.ms"}
                reason = "with group.protocol=connect the group's coordinator decides this"
        return dict.fromkeys(sorted(set_keys & keys), reason)

    @property
    def local_assignors(self) -> tuple[str, ...]:
        """The names of the assignors that this worker offers to a connect group, the preferred one first."""
        if self.group_local_assignors is not None:
            return self.group_local_assignors
        return () if self.group_remote_assignor is not None else (defaults.ASSIGNOR,)

    @property
    def claims(self) -> Jobs | None:
        """The only jobs that this worker may run (KIP-987), possibly none; None when it may run any job."""
        if self.static_connectors is None and self.static_tasks is None:
            return None
        return Jobs(
            frozenset(map(ConnectorName, self.static_connectors or ())),
            frozenset(map(ConnectorTaskId.parse, self.static_tasks or ())),
        )

    def display_name(self, *, bound_port: int | None = None) -> str:
        """The name of this worker in messages: ``worker.name``, by default its id. ``bound_port`` is as in
        :meth:`advertised_address`."""
        return self.worker_name or self.worker_id(bound_port=bound_port)

    @property
    def _offers_signed_requests(self) -> bool:
        """Whether this worker offers a protocol with which workers sign their requests to each other (KIP-507)."""
        return self.group_protocol is GroupProtocolName.CONNECT or self.connect_protocol in ("sessioned", "static")

    # -- checks of one key --------------------------------------------------------------------------------------------

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_bootstrap_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        """Check that each of ``servers`` is ``host:port``, and return them."""
        return check_bootstrap_servers(servers)

    @field_validator("group_instance_id")
    @classmethod
    def _check_group_instance_id(cls, instance_id: str | None) -> str | None:
        """Check that Kafka accepts ``instance_id``, and return it. None means that the key is not set."""
        if instance_id is not None and (
            instance_id in (".", "..") or not re.fullmatch(INSTANCE_ID_PATTERN, instance_id)
        ):
            raise ValueError("must be 1 to 249 letters, digits, dots, underscores or hyphens, not . or ..")
        return instance_id

    @field_validator("connect_protocol")
    @classmethod
    def _check_connect_protocol(cls, protocol: str) -> str:
        """Check that ``protocol`` is eager, compatible, sessioned or static, and return it in lower case."""
        if protocol.lower() not in ("eager", "compatible", "sessioned", "static"):
            raise ValueError(
                "must be one of the group protocols eager, compatible, sessioned (Kafka Connect's) and static "
                "(Coterie's, the default)"
            )
        return protocol.lower()

    @field_validator("static_connectors", "static_tasks", "group_local_assignors", "rebalance_listeners")
    @classmethod
    def _check_no_empty_names(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Check that none of ``names`` is empty, and return ``names``. None, for a key that is not set, is returned
        unchanged."""
        return names if names is None else check_no_empty_names(names)

    @field_validator("static_tasks")
    @classmethod
    def _check_static_tasks(cls, tasks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Check that each of ``tasks`` is the id of a task, and return them."""
        for text in tasks or ():
            parse_static_task(text)
        return tasks

    @field_validator(
        "config_storage_replication_factor",
        "offset_storage_replication_factor",
        "status_storage_replication_factor",
        "offset_storage_partitions",
        "status_storage_partitions",
    )
    @classmethod
    def _check_count_or_broker_default(cls, count: int) -> int:
        """Check that ``count`` is at least 1 or is -1, and return it."""
        if count != -1 and count < 1:
            raise ValueError("must be at least 1, or -1 for the broker's own default")
        return count

    @field_validator("log_level")
    @classmethod
    def _check_log_level(cls, level: str) -> str:
        """Check that ``level`` is a log level, and return it in upper case."""
        if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("must be one of DEBUG, INFO, WARNING, ERROR")
        return level.upper()

    @field_validator("checkpoint_location")
    @classmethod
    def _check_checkpoint_location(cls, folder: str) -> str:
        """Check that ``folder`` is an absolute path, and return it. The folder need not exist."""
        if not folder.startswith("/"):
            raise ValueError(
                "must be an absolute path, such as /data/checkpoints: a relative path would be another folder for each "
                "worker"
            )
        return folder

    @field_validator("jars_dir")
    @classmethod
    def _check_jars_dir(cls, folder: str | None) -> str | None:
        """Check that ``folder`` contains no character that has a meaning in a Java class path, and return it."""
        if folder is not None and any(letter in folder for letter in ":,*"):
            raise ValueError("Java cannot load jars from a folder with : , or * in its name")
        return folder

    @field_validator("pipeline_modules")
    @classmethod
    def _check_pipeline_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        """Check that each of ``modules`` is the name of a Python module, and return them. The modules need not
        exist."""
        for module in modules:
            if not all(module_part.isidentifier() for module_part in module.split(".")):
                raise ValueError(f"{module!r} is not the name of a Python module")
        return modules

    @field_validator("python_executable")
    @classmethod
    def _check_python_executable(cls, executable: str | None) -> str | None:
        """Check that ``executable`` is an absolute path, and return it. The file need not exist."""
        if executable is not None and not executable.startswith("/"):
            raise ValueError("must be an absolute path")
        return executable

    @field_validator("jars_mirror")
    @classmethod
    def _check_jars_mirror(cls, url: str) -> str:
        """Check that ``url`` is the URL of a Maven repository, and return it."""
        return check_repository_url(url)

    # -- checks between keys ------------------------------------------------------------------------------------------

    def _contradiction_errors(self) -> dict[str, list[str]]:
        """The errors, by key, of values that are valid but contradict each other."""
        errors = self.signature_algorithm_errors() | self.rest_contradiction_errors()
        if self.rest_users_file is not None and not self._offers_signed_requests:
            errors["rest.users.file"] = [
                invalid_value_message(
                    "rest.users.file",
                    self.rest_users_file,
                    "workers sign their requests to each other only with connect.protocol sessioned or static, and "
                    f"connect.protocol is {self.connect_protocol}",
                )
            ]
        if not self.local_assignors and self.group_remote_assignor is None:
            errors["group.local.assignors"] = [
                invalid_value_message("group.local.assignors", "''", "must not be empty without group.remote.assignor")
            ]
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            errors["heartbeat.interval.ms"] = [
                invalid_value_message(
                    "heartbeat.interval.ms",
                    self.heartbeat_interval_ms,
                    f"must be less than session.timeout.ms ({self.session_timeout_ms})",
                )
            ]
        topics = {
            "config.storage.topic": self.config_storage_topic,
            "offset.storage.topic": self.offset_storage_topic,
            "status.storage.topic": self.status_storage_topic,
        }
        for key, topic in topics.items():
            if keys_with_same_topic := sorted(
                other_key for other_key in topics if other_key < key and topics[other_key] == topic
            ):
                errors[key] = [invalid_value_message(key, topic, f"{keys_with_same_topic[0]} has the same topic")]
        return errors


# -- where jars come from ---------------------------------------------------------------------------------------------


def check_repository_url(url: str) -> str:
    """Return ``url`` if it is the URL of a Maven repository.

    :raises ValueError: when ``url`` is not an http or https URL with a host. The message does not quote ``url``, which
        may contain a password.
    """
    try:
        url_parts = urlsplit(url)
        is_repository_url = url_parts.scheme in ("http", "https") and bool(url_parts.hostname) and url_parts.port != 0
    except ValueError:
        is_repository_url = False
    if not is_repository_url:
        raise ValueError("must be the http:// or https:// URL of a Maven repository")
    return url


# -- bootstrap.servers, static.connectors and static.tasks ------------------------------------------------------------


def check_bootstrap_servers(servers: tuple[str, ...]) -> tuple[str, ...]:
    """Check that each of ``servers`` is `host:port`, and return them.

    :raises ValueError: when one is not.
    """
    for server in servers:
        host, _, port = server.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{server} is not host:port")
    return servers


def check_no_empty_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``names`` if none of them is empty.

    :raises ValueError: when one of ``names`` is empty.
    """
    if "" in names:
        raise ValueError("a name is missing before or after a comma")
    return names


def parse_static_task(text: str) -> ConnectorTaskId:
    """The task id that ``text`` states as ``<connector>-<number>``.

    :raises ValueError: when ``text`` is not a task id, or its number has leading zeros or is above :data:`INT_MAX`.
    """
    number_size_max = len(str(INT_MAX))
    task = ConnectorTaskId.parse(text) if len(text.rpartition("-")[2]) <= number_size_max else None
    if task is None or str(task) != text or task.task > INT_MAX:
        raise ValueError(
            f"{text!r} is not a task id <connector>-<number> with a number from 0 to {INT_MAX}, without leading zeros"
        )
    return task


# -- helpers ----------------------------------------------------------------------------------------------------------


_FIELDS_OF_SEVERAL_KEYS = ("spark", "security", "rest_tls", "providers")
"""The fields of :class:`WorkerSettings` that hold the values of several config keys; their own names are no keys."""


def _config_keys(settings: type[BaseModel]) -> frozenset[str]:
    """The config keys of the fields of ``settings`` that have one key each, that is of all fields except
    :data:`_FIELDS_OF_SEVERAL_KEYS`."""
    return frozenset(
        str(field.alias) for name, field in settings.model_fields.items() if name not in _FIELDS_OF_SEVERAL_KEYS
    )
