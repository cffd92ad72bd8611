"""A worker's settings: Kafka Connect's own keys and defaults, and the few that Coterie adds."""

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from coterie.config import defaults
from coterie.config.definition import as_list
from coterie.config.inter_worker import InterWorkerSettings
from coterie.config.security import KEYS as SECURITY_KEYS
from coterie.config.security import KafkaSecurity
from coterie.config.sentences import sentences
from coterie.nouns.errors import ConfigError
from coterie.nouns.ids import GroupId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs

INSTANCE_ID = r"[a-zA-Z0-9._-]{1,249}"
"""As brokers check it."""
INT_MAX = 2**31 - 1
"""The most that Kafka's INT holds: times, counts and tasks' numbers are such on the wire."""
REPLICAS_MAX = 2**15 - 1
JARS_OF_USER = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
"""Spark's settings with which a user chooses the jars; with any of them a worker adds and fetches none."""
Name = Annotated[str, Field(min_length=1)]
Milliseconds = Annotated[int, Field(ge=1, le=INT_MAX)]
MillisecondsOrZero = Annotated[int, Field(ge=0, le=INT_MAX)]
Port = Annotated[int, Field(ge=1, le=65535)]
_AsList = BeforeValidator(lambda value: as_list(value) if isinstance(value, str) else value)
Names = Annotated[tuple[Name, ...], _AsList]
"""A LIST value: items between commas."""
Claims = Annotated[tuple[str, ...], _AsList]
"""A LIST value that is checked as a whole: whoever reads the error sees all of it."""


class Listener(NamedTuple):
    """Where the REST API listens. An empty ``host`` means every interface, port 0 a port that the system gives."""

    host: str
    port: int


class WorkerSettings(InterWorkerSettings):
    """What one worker is told at its start; every field's key is its name with dots.

    Made by :meth:`from_properties` alone, so that whatever is wrong is told key by key.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=lambda name: name.replace("_", "."),
        use_attribute_docstrings=True,
        str_strip_whitespace=True,
    )

    # -- the group --------------------------------------------------------------------------------------------------

    bootstrap_servers: Annotated[Names, Field(min_length=1)] = ("localhost:9092",)
    """Brokers to begin with, `host:port` each."""
    group_id: Annotated[GroupId, Field(min_length=1)]
    """The group of workers that share the work; all of them name the same."""
    group_instance_id: Name | None = None
    """Who this worker is to its group over all of its starts (KIP-345). A worker that has one does not leave when it
    stops: its jobs wait for it, and when it is back it gets them at once. No two may run with the same. If nobody else
    is to notice a restart, `session.timeout.ms` has to be longer than one takes (with Spark, some 20 s)."""
    client_id: str = ""
    """What the brokers' logs call this worker."""
    heartbeat_interval_ms: Milliseconds = defaults.HEARTBEAT_INTERVAL_MS
    session_timeout_ms: Milliseconds = defaults.SESSION_TIMEOUT_MS
    """A worker unheard of for so long is dead to its group."""
    rebalance_heartbeat_interval_ms: Milliseconds = defaults.REBALANCE_HEARTBEAT_INTERVAL_MS
    """How often after a rebalance, when the next one may follow soon, until what was revoked has had the time to stop:
    all learn of that next one at once, and jobs that move are down so much less. Never less often than
    `heartbeat.interval.ms`. (Coterie's own key.)"""
    rebalance_timeout_ms: Milliseconds = defaults.REBALANCE_TIMEOUT_MS
    """How long a round waits for a worker to rejoin."""
    worker_sync_timeout_ms: Milliseconds = defaults.WORKER_SYNC_TIMEOUT_MS
    """How long to wait for the config topic's end. A round whose leader has not read as far as its members by then
    gives nobody anything new, and another follows when it has; a GET answers what is known by then."""
    config_rebalance_window_ms: MillisecondsOrZero = defaults.CONFIG_REBALANCE_WINDOW_MS
    """Connectors and tasks that come and go within so short a time make one rebalance; 0 makes one of each change.
    (Coterie's own key.)"""
    scheduled_rebalance_max_delay_ms: MillisecondsOrZero = defaults.SCHEDULED_REBALANCE_MAX_DELAY_MS
    """How long a lost worker's jobs wait for it before others get them; 0 means not at all."""
    rebalance_max_moves_per_round: Annotated[int, Field(ge=1, le=INT_MAX)] | None = None
    """At most so many jobs are taken from workers at a time for balance or a drain; without it, all that have to move.
    (Coterie's own key.)"""
    rebalance_round_interval_ms: MillisecondsOrZero = defaults.REBALANCE_ROUND_INTERVAL_MS
    """How long after so many moves the next ones follow. (Coterie's own key.)"""
    connect_protocol: str = "static"
    """The newest protocol that this worker offers its group: eager, compatible, sessioned or static, each with all
    older ones. The group speaks the newest that all its workers offer. With eager every rebalance stops every task."""
    static_connectors: Claims | None = None
    """The connectors that this worker may run (KIP-987); a worker that names any job, were it none, runs nothing else.
    Ignored as long as one worker of the group does not speak static."""
    static_tasks: Claims | None = None
    """The tasks that this worker may run, each as `<connector>-<number>` (KIP-987)."""

    # -- the topics -------------------------------------------------------------------------------------------------

    config_storage_topic: Name
    """The topic of all configs of the group's connectors; it is made where it is missing, as the next two are."""
    config_storage_replication_factor: Annotated[int, Field(le=REPLICAS_MAX)] = 3
    offset_storage_topic: Name
    """The topic of the group's offsets."""
    offset_storage_replication_factor: Annotated[int, Field(le=REPLICAS_MAX)] = 3
    offset_storage_partitions: Annotated[int, Field(le=INT_MAX)] = 25
    status_storage_topic: Name
    """The topic of the states of the group's connectors and tasks."""
    status_storage_replication_factor: Annotated[int, Field(le=REPLICAS_MAX)] = 3
    status_storage_partitions: Annotated[int, Field(le=INT_MAX)] = 5

    # -- REST -------------------------------------------------------------------------------------------------------

    listeners: Annotated[Names, Field(min_length=1)] = ("http://:8083",)
    """One `http://host:port`."""
    rest_advertised_host_name: Name | None = None
    rest_advertised_port: Port | None = None
    rest_advertised_listener: str | None = None
    """The scheme under which others reach this worker."""

    # -- the work ---------------------------------------------------------------------------------------------------

    task_shutdown_graceful_timeout_ms: MillisecondsOrZero = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS
    """For all tasks of this worker together: after it they are interrupted, and their last batch is replayed."""
    offset_flush_interval_ms: Milliseconds = defaults.OFFSET_FLUSH_INTERVAL_MS
    """How often the offsets that tasks have read in Kafka are committed to group `connect-<connector>`, where Kafka's
    tools show the lag. Tasks never read them from there."""
    checkpoint_location: Name
    """A folder that all workers of the group reach by the same name. (Coterie's own key.)"""
    worker_name: Name | None = None
    """What people call this worker; by default `host:port`. (Coterie's own key.)"""
    log_level: str = "INFO"
    """How much is logged: DEBUG, INFO, WARNING or ERROR. (Coterie's own key.)"""
    log_jvm_file: Name | None = None
    """Where the JVM's own output goes; by default a file in the system's temporary folder. (Coterie's own key.)"""
    jars_dir: Name | None = None
    """The folder whose jars this worker's Spark gets; by default coterie/jars in the user's cache folder, where
    `coterie jars fetch` puts them. (Coterie's own key.)"""
    jars_fetch: bool = False
    """Whether the worker fetches the jars that this folder lacks before it starts. (Coterie's own key.)"""
    jars_mirror: Annotated[str, Field(repr=False)] = defaults.MAVEN_CENTRAL
    """The Maven repository that jars are fetched from. (Coterie's own key.)"""
    pipeline_modules: Claims = ()
    """The Python modules, and packages with all their modules, from which connectors may run functions; by default
    none. Who may write connectors' configs may run any function of these. (Coterie's own key.)"""
    python_executable: Name | None = None
    """The Python in which functions over rows run; by default the worker's own. It needs PySpark and pyarrow of the
    worker's versions. (Coterie's own key.)"""
    spark: Mapping[str, str] = Field(default={}, exclude=True)
    """Every `spark.…` key, handed to the Spark session as it is."""
    security: KafkaSecurity = Field(default=KafkaSecurity(), exclude=True)
    """How this worker comes to its brokers: the keys of `config.security`."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """Settings from the keys and values of a worker file; keys that nobody knows are ignored.

        :raises ConfigError: names each wrong key, with its value and why.
        """
        spark = {key: value for key, value in properties.items() if key.startswith("spark.")}
        known = {key: value for key, value in properties.items() if key in _keys(cls)}
        wrong: dict[str, Sequence[str]] = {}
        security = KafkaSecurity()
        try:
            security = KafkaSecurity.from_properties(properties)
        except ConfigError as error:
            wrong |= error.errors
        try:
            settings = cls.model_validate({**known, "spark": spark, "security": security})
        except ValidationError as error:
            raise ConfigError(sentences(error, cls) | wrong) from None
        if wrong:
            raise ConfigError(wrong)
        if errors := settings._errors_between_keys():
            raise ConfigError(errors)
        return settings

    @classmethod
    def unknown_keys(cls, properties: Mapping[str, str]) -> list[str]:
        """Keys that mean nothing to a worker: Connect ignores such keys and warns of them, and so does Coterie."""
        known = _keys(cls) | SECURITY_KEYS
        return sorted(key for key in properties if key not in known and not key.startswith("spark."))

    def idle_keys(self) -> Mapping[str, str]:
        """Keys that are set and come to nothing, and why."""
        given = {key for name in self.model_fields_set if (key := type(self).model_fields[name].alias) is not None}
        idle: dict[str, str] = {}
        if self.connect_protocol != "static":
            why = f"with connect.protocol={self.connect_protocol} this worker names no jobs; it takes static"
            idle = dict.fromkeys(sorted(given & {"static.connectors", "static.tasks"}), why)
        if "rebalance.round.interval.ms" in given and self.rebalance_max_moves_per_round is None:
            idle["rebalance.round.interval.ms"] = "without rebalance.max.moves.per.round there is no next portion"
        if chosen := [key for key in JARS_OF_USER if self.spark.get(key)]:
            why = f"with {chosen[0]} a worker adds no jars of its own"
            idle |= dict.fromkeys(sorted(given & {"jars.dir", "jars.fetch", "jars.mirror"}), why)
        elif "jars.mirror" in given and not self.jars_fetch:
            idle["jars.mirror"] = "without jars.fetch=true a worker fetches no jars"
        return idle

    @property
    def claims(self) -> Jobs | None:
        """The only jobs that this worker takes, were it none; None when it takes any."""
        if self.static_connectors is None and self.static_tasks is None:
            return None
        return Jobs(
            frozenset(map(ConnectorName, self.static_connectors or ())),
            frozenset(map(ConnectorTaskId.parse, self.static_tasks or ())),
        )

    @property
    def listener(self) -> Listener:
        return _listener(self.listeners[0])

    def advertised(self, *, bound_port: int | None = None) -> Listener:
        """Host and port under which other workers and users reach this one.

        ``bound_port`` is the port that the system gave when the listener asks for any.
        """
        listener = self.listener
        host = listener.host if listener.host not in ("", "0.0.0.0", "::") else socket.gethostname()
        port = self.rest_advertised_port or (bound_port if listener.port == 0 else None) or listener.port
        return Listener(self.rest_advertised_host_name or host, port)

    def worker_id(self, *, bound_port: int | None = None) -> WorkerId:
        """``<advertised host>:<advertised port>``, as Connect shows a worker."""
        host, port = self.advertised(bound_port=bound_port)
        return WorkerId(f"{host}:{port}")

    def url(self, *, bound_port: int | None = None) -> WorkerUrl:
        """The URL of this worker's REST API as its group is told it, with a slash at the end."""
        host, port = self.advertised(bound_port=bound_port)
        return WorkerUrl(f"http://{f'[{host}]' if ':' in host else host}:{port}/")

    def name(self, *, bound_port: int | None = None) -> str:
        return self.worker_name or self.worker_id(bound_port=bound_port)

    # -- checks of one key --------------------------------------------------------------------------------------------

    @field_validator("bootstrap_servers")
    @classmethod
    def _are_hosts_and_ports(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        for server in servers:
            host, _, port = server.rpartition(":")
            if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise ValueError(f"{server} is not host:port")
        return servers

    @field_validator("group_instance_id")
    @classmethod
    def _is_a_name_to_kafka(cls, instance_id: str | None) -> str | None:
        if instance_id is not None and (instance_id in (".", "..") or not re.fullmatch(INSTANCE_ID, instance_id)):
            raise ValueError("must be 1 to 249 letters, digits, dots, underscores or hyphens, not . or ..")
        return instance_id

    @field_validator("listeners")
    @classmethod
    def _is_one_http_listener(cls, listeners: tuple[str, ...]) -> tuple[str, ...]:
        if len(listeners) != 1:
            raise ValueError("a worker listens at one address; name one")
        _listener(listeners[0])
        return listeners

    @field_validator("rest_advertised_listener")
    @classmethod
    def _is_http(cls, scheme: str | None) -> str | None:
        if scheme not in (None, "", "http"):
            raise ValueError("only http can be served")
        return scheme

    @field_validator("connect_protocol")
    @classmethod
    def _is_a_protocol(cls, protocol: str) -> str:
        if protocol.lower() not in ("eager", "compatible", "sessioned", "static"):
            raise ValueError("must be one of eager, compatible, sessioned, static")
        return protocol.lower()

    @field_validator("static_connectors", "static_tasks")
    @classmethod
    def _are_names(cls, claims: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return claims if claims is None else claimed(claims)

    @field_validator("static_tasks")
    @classmethod
    def _are_tasks(cls, tasks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for text in tasks or ():
            claimed_task(text)
        return tasks

    @field_validator(
        "config_storage_replication_factor",
        "offset_storage_replication_factor",
        "status_storage_replication_factor",
        "offset_storage_partitions",
        "status_storage_partitions",
    )
    @classmethod
    def _is_positive_or_the_brokers_default(cls, count: int) -> int:
        if count != -1 and count < 1:
            raise ValueError("must be at least 1, or -1 for the broker's own default")
        return count

    @field_validator("log_level")
    @classmethod
    def _is_a_level(cls, level: str) -> str:
        if level.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ValueError("must be one of DEBUG, INFO, WARNING, ERROR")
        return level.upper()

    @field_validator("jars_dir")
    @classmethod
    def _fits_into_a_class_path(cls, folder: str | None) -> str | None:
        if folder is not None and any(letter in folder for letter in ":,*"):
            raise ValueError("Java cannot have jars of a folder with : , or * in its name")
        return folder

    @field_validator("pipeline_modules")
    @classmethod
    def _are_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        for module in modules:
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"{module!r} is not the name of a Python module")
        return modules

    @field_validator("python_executable")
    @classmethod
    def _is_a_program(cls, executable: str | None) -> str | None:
        if executable is not None and not executable.startswith("/"):
            raise ValueError("must be an absolute path")
        return executable

    @field_validator("jars_mirror")
    @classmethod
    def _is_a_repository(cls, url: str) -> str:
        return repository(url)

    # -- checks between keys ------------------------------------------------------------------------------------------

    def _errors_between_keys(self) -> dict[str, list[str]]:
        errors = self.signature_errors()
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            errors["heartbeat.interval.ms"] = [
                f"Invalid value {self.heartbeat_interval_ms} for configuration heartbeat.interval.ms: "
                f"must be less than session.timeout.ms ({self.session_timeout_ms})"
            ]
        topics = {
            "config.storage.topic": self.config_storage_topic,
            "offset.storage.topic": self.offset_storage_topic,
            "status.storage.topic": self.status_storage_topic,
        }
        for key, topic in topics.items():
            if others := sorted(other for other in topics if other < key and topics[other] == topic):
                errors[key] = [f"Invalid value {topic} for configuration {key}: {others[0]} has the same topic"]
        return errors


# -- where jars come from ---------------------------------------------------------------------------------------------


def repository(url: str) -> str:
    """:raises ValueError: when ``url`` is not that of a Maven repository on a web server. It is not repeated: it may
    hold a password."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError("must be the http:// or https:// URL of a Maven repository")
    return url


# -- what a worker claims ---------------------------------------------------------------------------------------------


def claimed(names: tuple[str, ...]) -> tuple[str, ...]:
    """:raises ValueError: when one of ``names`` is none."""
    if "" in names:
        raise ValueError("a name is missing between two commas, or behind the last one")
    return names


def claimed_task(text: str) -> ConnectorTaskId:
    """:raises ValueError: when no task can be called ``text``."""
    number_size_max = len(str(INT_MAX))
    task = ConnectorTaskId.parse(text) if len(text.rpartition("-")[2]) <= number_size_max else None
    if task is None or str(task) != text or task.task > INT_MAX:
        raise ValueError(f"{text!r} is no task: its number is 0 to {INT_MAX}, without zeros in front")
    return task


# -- small hands ------------------------------------------------------------------------------------------------------


_GATHERED = ("spark", "security")
"""Fields made of keys of other names."""


def _keys(settings: type[BaseModel]) -> frozenset[str]:
    """The keys of a worker file that have a field."""
    return frozenset(str(field.alias) for name, field in settings.model_fields.items() if name not in _GATHERED)


def _listener(text: str) -> Listener:
    """:raises ValueError: when ``text`` is no ``http://host:port``."""
    parts = urlsplit(text)
    if parts.scheme == "https":
        raise ValueError("https is not served; put a proxy before the worker, or set http://host:port")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or port is None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{text} is not http://host:port")
    return Listener(parts.hostname or "", port)
