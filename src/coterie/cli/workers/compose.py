"""Composes a worker of its parts: the only module that imports all of them.

Here mypy checks that each shell fits its seam. The parameters of `Worker` and `GroupMembership` are declared as
Protocols (`herder.seams`, `member.seams`, `engine.log`), and their implementations do not depend on each other.
"""

import asyncio
import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from coterie import __version__
from coterie.assignors.connect.interface import ConnectAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.cli.assignor_watch import AssignorMetadataWatch
from coterie.cli.assignors import assign_functions_by_name, check_assignors_installed, load_assignors
from coterie.cli.garbage_collection import raise_worker_gc_thresholds
from coterie.cli.listeners import RebalanceListenerThread, check_listeners_installed, load_listeners
from coterie.cli.workers import relaunch
from coterie.cli.workers.memberships import MembershipFactory, MembershipSpec, make_group_membership
from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.rest import RestListener
from coterie.config.tls import reloaded_client_context
from coterie.config.worker import WorkerSettings
from coterie.herder.messages import Exit
from coterie.herder.seams import Membership, TaskRuntime
from coterie.herder.session_keys import SessionKeySettings
from coterie.herder.state import HerderSettings
from coterie.kafka.broker_access import check_broker_access_if_reachable
from coterie.kafka.leader_log import transactional_id
from coterie.kafka.security import prepare_java_settings
from coterie.kafka.topics import TopicLog, TopicsClient
from coterie.member.classic.state import NEXT_ROUND_MARGIN_MS, MemberSettings
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId
from coterie.nouns.membership import ConnectMembershipHandover, GroupProtocolName, Handover
from coterie.rest.access import AccessRules
from coterie.rest.app import create_app
from coterie.rest.cross_origin import CrossOriginRules
from coterie.rest.endpoints import ADMIN_ENDPOINTS, ENDPOINTS, MAIN_ENDPOINTS
from coterie.rest.leader import HttpLeaderClient, open_http_client
from coterie.rest.server import BoundListener, RequestIntake, open_listeners, serve_while_work_runs
from coterie.rest.users import read_users
from coterie.spark.jars import default_jar_folder
from coterie.spark.plugins import source_version_by_name
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import JarSettings, PythonSettings, SparkConfig
from coterie.wire.connect import ConnectProtocol
from coterie.worker.worker import Worker

_ASSIGNORS_KEY, _LISTENERS_KEY = "group.local.assignors", "rebalance.listeners"

logger = logging.getLogger(__name__)


RuntimeFactory: TypeAlias = Callable[[WorkerSettings, str, Path], TaskRuntime]
"""Creates the task runtime of a worker with these settings and this name. As long as the worker runs, only its runtime
uses the given folder."""


def spark_runtime(settings: WorkerSettings, name: str, scratch: Path) -> TaskRuntime:
    """Create a runtime that runs tasks on Spark; see :data:`RuntimeFactory`.

    :raises WorldError: when the folder of jars cannot be used (:func:`jar_settings_unless_default_missing`), or a file
        with certificates or their key cannot be read.
    """
    return SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=Path(settings.checkpoint_location),
            scratch_folder=scratch,
            jvm_log_file=Path(
                settings.log_jvm_file or Path(tempfile.gettempdir()) / f"{_file_name_for_worker(name)}.jvm.log"
            ),
            user_settings=settings.spark,
            config_providers=settings.providers,
            jar_folder_settings=jar_settings_unless_default_missing(settings),
            python_settings=PythonSettings(
                allowed_modules=settings.pipeline_modules, executable=settings.python_executable
            ),
            offset_flush_interval_ms=settings.offset_flush_interval_ms,
            plugin_call_timeout_ms=settings.plugin_call_timeout_ms,
            worker_kafka_properties={
                "bootstrap.servers": ",".join(settings.bootstrap_servers),
                **prepare_java_settings(settings.security, scratch),
            },
        )
    )


def jar_settings_unless_default_missing(settings: WorkerSettings) -> JarSettings | None:
    """Return the folder of jars that the worker uses (``jars.dir``, or the default folder), and whether it fetches
    missing jars (``jars.fetch``).

    None if ``jars.dir`` is not set, ``jars.fetch`` is false, and the default folder does not exist or cannot be read.

    With ``jars.fetch``, the folder need not exist.

    :raises WorldError: when ``jars.dir`` is set, is not an existing folder, and ``jars.fetch`` is false; or when
        ``jars.dir`` is not set, ``jars.fetch`` is true, and the path of the default folder cannot be determined.
    """
    if settings.jars_dir:
        folder = Path(settings.jars_dir).absolute()
        if not settings.jars_fetch and not os.path.isdir(folder):
            raise WorldError(
                f"jars.dir: there is no folder {folder}; run `coterie jars fetch --to {folder}`, or set jars.fetch=true"
            )
    else:
        try:
            folder = default_jar_folder(os.environ)
        except WorldError:
            if settings.jars_fetch:
                raise
            return None
        if not settings.jars_fetch and not os.access(folder, os.R_OK | os.X_OK):
            return None
    return JarSettings(folder=folder, fetches_missing_jars=settings.jars_fetch, repository_url=settings.jars_mirror)


def run_worker(
    settings: WorkerSettings,
    runtime_factory: RuntimeFactory = spark_runtime,
    check_settings: Callable[[], object] = lambda: None,
) -> int:
    """Run one worker until it ends; returns the exit code. The REST port is bound before anything else starts.

    A worker that was ordered to restart replaces this process, and this function does not return. If the worker
    received a signal meanwhile, or its process cannot be replaced, the worker leaves its group instead.

    ``check_settings`` raises an error if the worker could not restart with its present settings file.

    :raises WorldError: when the worker cannot start (a port in use, no broker, no Java), or cannot replace its process.
    :raises ConfigError: when an assignor or a listener of rebalances cannot be used.
    """
    raise_worker_gc_thresholds()
    workers: list[Worker] = []

    def store_worker_and_add_handlers(worker: Worker) -> None:
        workers.append(worker)
        _shut_down_on_signals(worker)

    with (
        open_listeners(settings.rest_listeners, settings.rest_tls) as listeners,
        open_listeners(settings.rest_admin_listeners, settings.rest_tls, key="admin.listeners") as admin_listeners,
    ):
        member = member_settings(settings, listeners)
        membership_handover = _handover_if_same_protocol(settings, relaunch.inherited_handover(member))
        serving = run_worker_and_serve_rest(
            settings,
            listeners,
            runtime_factory,
            admin_listeners=admin_listeners,
            on_created=store_worker_and_add_handlers,
            membership_handover=membership_handover,
            check_settings=check_settings,
        )
        ended = asyncio.run(serving)
    if not ended.relaunches:
        return ended.exit_code
    # Checked only after everything is closed, which takes time. From here on a signal ends the process at once.
    if (reason := workers[0].shutdown_reason) is None:
        try:
            relaunch.relaunch_process(member, ended.handover)
        except WorldError as error:
            asyncio.run(_leave_group_of_handover(settings, member, ended.handover, str(error)))
            raise
    logger.info("This worker was ordered to restart, but ends instead: %s", reason)
    asyncio.run(_leave_group_of_handover(settings, member, ended.handover, reason))
    return 0


def check_listeners_for_restart(settings: WorkerSettings, *, running: WorkerSettings) -> None:
    """Check that a worker that listens as in ``running`` could listen as in ``settings`` after a restart.

    Of an address that both have, only the host is checked: its port is in use until the process ends.

    :raises WorldError: when another process uses a port, a host is not an address of this machine, or a certificate
        cannot be read.
    """
    own_listeners = [*map(_with_resolved_host, (*running.rest_listeners, *running.rest_admin_listeners))]

    def with_port_0_if_own(listener: RestListener) -> RestListener:
        """``listener`` with port 0 (any free port) if this process itself listens at its address, else unchanged. The
        process's own port becomes free only when the process ends, so with port 0 only the host is checked."""
        is_own = any(map(_with_resolved_host(listener).overlaps, own_listeners))
        return listener._replace(port=0) if is_own else listener

    with (
        open_listeners([*map(with_port_0_if_own, settings.rest_listeners)], settings.rest_tls),
        open_listeners(
            [*map(with_port_0_if_own, settings.rest_admin_listeners)], settings.rest_tls, key="admin.listeners"
        ),
    ):
        pass


def _with_resolved_host(listener: RestListener) -> RestListener:
    """``listener`` with its host's IPv4 address instead of the name; unchanged without such an address."""
    try:
        return listener._replace(host=socket.gethostbyname(listener.host))
    except OSError:
        return listener


def check_assignors_and_listeners_installed(settings: WorkerSettings) -> None:
    """Check that the assignors and listeners of ``settings`` are installed, as a worker needs them after a restart.
    They are not imported: this process may use other versions of their packages.

    :raises ConfigError: when no installed package, or several, register one of them.
    """
    if _is_connect_group(settings):
        check_assignors_installed(settings.local_assignors, key=_ASSIGNORS_KEY)
        check_listeners_installed(settings.rebalance_listeners, key=_LISTENERS_KEY)


def member_settings(settings: WorkerSettings, listeners: Sequence[BoundListener]) -> MemberSettings:
    """Return the settings of the worker's membership. ``listeners``: the bound listeners of ``settings``, in the same
    order; the URL has the port of the advertised one."""
    return MemberSettings(
        group_id=settings.group_id,
        instance_id=InstanceId(settings.group_instance_id) if settings.group_instance_id else None,
        url=settings.advertised_url(bound_port=advertised_listener_bound_port(settings, listeners)),
        worker_name=settings.worker_name,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        rebalance_heartbeat_interval_ms=settings.rebalance_heartbeat_interval_ms,
        next_round_window_ms=settings.task_shutdown_graceful_timeout_ms + NEXT_ROUND_MARGIN_MS,
        protocols=ConnectProtocol.from_setting(settings.connect_protocol).versions_to_offer,
        claims=settings.claims,
    )


def access_rules(settings: WorkerSettings) -> AccessRules:
    """Who may use the REST API of a worker with these settings, and the headers that are added to its responses.

    :raises WorldError: when the file of users cannot be read or is invalid; the message names the file.
    """
    users = None
    if settings.rest_users_file is not None:
        path = Path(settings.rest_users_file)
        users = ReloadedFiles("users of the REST API", [path], lambda: read_users(path))
    return AccessRules(
        users=users,
        health_needs_no_login=settings.rest_health_open,
        cross_origin=CrossOriginRules(
            allowed_origins=settings.allowed_origins,
            allowed_methods=settings.allowed_methods,
            own_hosts=settings.own_hosts,
        ),
        added_headers=settings.response_headers,
    )


def advertised_listener_bound_port(settings: WorkerSettings, listeners: Sequence[BoundListener]) -> int:
    """The bound port of the advertised listener, also if ``rest.advertised.port`` is another port. ``listeners``: the
    bound listeners of ``settings``, in the same order."""
    return listeners[settings.rest_listeners.index(settings.advertised_listener)].port


async def run_worker_and_serve_rest(
    settings: WorkerSettings,
    listeners: Sequence[BoundListener],
    runtime_factory: RuntimeFactory = spark_runtime,
    *,
    admin_listeners: Sequence[BoundListener] = (),
    on_created: Callable[[Worker], None],
    membership_factory: MembershipFactory = make_group_membership,
    membership_handover: Handover | None = None,
    check_settings: Callable[[], object] = lambda: None,
) -> Exit:
    """Run a worker until it ends or must restart; returns its exit code, the reason, and the membership to hand over.

    ``listeners`` and ``admin_listeners`` are the bound listeners of ``settings``, in the same order.
    ``membership_handover`` is the membership of the worker's previous process, which the worker continues; None to join
    as a new member. ``on_created`` is called with the worker before the worker starts. ``check_settings`` raises an
    error if the worker could not restart with its present settings file. Several workers can run in one process.

    :raises WorldError: when the worker cannot start, for example because no broker responds.
    :raises ConfigError: when an assignor or a listener of rebalances cannot be used.
    """
    port = advertised_listener_bound_port(settings, listeners)
    name, member = settings.display_name(bound_port=port), member_settings(settings, listeners)
    client_id = settings.client_id or name
    logger.info("%s is starting; its REST address is %s", name, member.url)
    policy = RebalancePolicy(
        max_delay_ms=settings.scheduled_rebalance_max_delay_ms,
        moves_per_round_max=settings.rebalance_max_moves_per_round,
        round_interval_ms=settings.rebalance_round_interval_ms,
    )
    access = access_rules(settings)
    client_contexts = reloaded_client_context(settings.rest_tls.files)
    assignors = _load_assignors(settings, policy)
    watch = AssignorMetadataWatch(assignors)
    rebalance_listeners = _make_listener_thread(settings, assignors, watch)
    offers = await watch.read_offered_assignors()
    async with (
        _open_or_create_config_status_logs(settings, client_id) as (topics, config_log, status_log),
        open_http_client(client_contexts) as client,
    ):
        spec = MembershipSpec(
            worker_settings=settings,
            member_settings=member,
            client_id=client_id,
            inherited_handover=membership_handover,
            offered_assignors=offers,
            config_topic_id=await config_log.topic_id() if _is_connect_group(settings) else None,
        )
        with tempfile.TemporaryDirectory(prefix="coterie-", ignore_cleanup_errors=True) as scratch:
            runtime = runtime_factory(settings, name, Path(scratch))
            membership = membership_factory(spec)
            intake = RequestIntake()
            worker = Worker(
                settings=HerderSettings(
                    worker_id=settings.worker_id(bound_port=port),
                    url=member.url,
                    coterie_version=__version__,
                    version_by_plugin_name=source_version_by_name(),
                    name=settings.worker_name,
                    instance_id=member.instance_id,
                    group_protocol=settings.group_protocol,
                    session_timeout_ms=settings.session_timeout_ms,
                    rebalance_timeout_ms=settings.rebalance_timeout_ms,
                    sync_timeout_ms=settings.worker_sync_timeout_ms,
                    stop_grace_ms=settings.task_shutdown_graceful_timeout_ms,
                    lost_threads_max=settings.plugin_lost_threads_max,
                    rebalance_window_ms=settings.config_rebalance_window_ms,
                    topic_tracking_enabled=settings.topic_tracking_enable,
                    topic_reset_allowed=settings.topic_tracking_allow_reset,
                    rebalance_policy=policy,
                    must_protocol_sign_requests=settings.rest_users_file is not None,
                    session_key_settings=SessionKeySettings(
                        ttl_ms=settings.inter_worker_key_ttl_ms,
                        key_algorithm=settings.inter_worker_key_generation_algorithm,
                        key_size_bytes=settings.inter_worker_key_size_bytes,
                        signature_algorithm=settings.inter_worker_signature_algorithm,
                        verification_algorithms=settings.inter_worker_verification_algorithms,
                    ),
                ),
                config_log=config_log,
                leader_log=topics.new_leader_log(config_log, transactional_id=transactional_id(settings.group_id)),
                status_log=status_log,
                membership=membership,
                runtime=runtime,
                leader_client=HttpLeaderClient(client),
                handover=membership_handover,
                check_settings=check_settings,
                assignors=assign_functions_by_name(assignors),
                listeners=rebalance_listeners,
                close_intake=intake.close,
            )
            on_created(worker)
            cluster_id = await topics.cluster_id()
            create = partial(
                create_app, worker, client, cluster_id=cluster_id, group_id=settings.group_id, access=access
            )
            app = create(endpoints=ENDPOINTS if settings.admin_listeners is None else MAIN_ENDPOINTS)
            try:
                work = _run_worker_and_watch_assignors(worker, watch, membership)
                if admin_listeners:
                    work = serve_while_work_runs(
                        create(endpoints=ADMIN_ENDPOINTS), admin_listeners, work, intake=intake
                    )
                users = () if access.users is None else (access.users,)
                ended = await serve_while_work_runs(app, listeners, work, (client_contexts, *users), intake=intake)
            finally:
                await rebalance_listeners.close()
    logger.log(logging.ERROR if ended.exit_code else logging.INFO, "%s has ended: %s", name, ended.reason)
    return ended


async def _run_worker_and_watch_assignors(worker: Worker, watch: AssignorMetadataWatch, membership: Membership) -> Exit:
    """Run the worker, and report the changes of its assignors to its group meanwhile.

    :raises ExceptionGroup: for a bug in Coterie.
    """
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch.run(membership.order))
        try:
            return await worker.run()
        finally:
            watching.cancel()


async def _leave_group_of_handover(
    settings: WorkerSettings, member: MemberSettings, membership_handover: Handover | None, reason: str
) -> None:
    """Leave the group as the member with the membership ``membership_handover``, which no process will continue.

    Do nothing if ``membership_handover`` is None.
    """
    if membership_handover is not None:
        offers = await AssignorMetadataWatch(_load_assignors(settings, RebalancePolicy())).read_offered_assignors()
        spec = MembershipSpec(
            worker_settings=settings,
            member_settings=member,
            client_id=settings.client_id or "coterie",
            inherited_handover=membership_handover,
            offered_assignors=offers,
        )
        membership = make_group_membership(spec)
        await asyncio.gather(membership.run(), membership.leave(reason))


def _is_connect_group(settings: WorkerSettings) -> bool:
    return settings.group_protocol is GroupProtocolName.CONNECT


def _load_assignors(settings: WorkerSettings, policy: RebalancePolicy) -> Sequence[ConnectAssignor]:
    """The assignors that the worker offers to its group; none in a classic group.

    :raises ConfigError: when an assignor is not installed or cannot be created.
    """
    if not _is_connect_group(settings):
        return ()
    return load_assignors(settings.local_assignors, policy, key=_ASSIGNORS_KEY)


def _make_listener_thread(
    settings: WorkerSettings, assignors: Sequence[ConnectAssignor], watch: AssignorMetadataWatch
) -> RebalanceListenerThread:
    """The listeners of the worker's rebalances, and its ``assignors``, which are called with them; none in a classic
    group. After a call of an assignor, ``watch`` looks for a change of its metadata.

    :raises ConfigError: when a listener is not installed or cannot be created.
    """
    names = settings.rebalance_listeners if _is_connect_group(settings) else ()
    loaded = load_listeners(names, key=_LISTENERS_KEY)
    return RebalanceListenerThread(loaded, assignors, after_assignment=watch.read_metadata_soon)


def _handover_if_same_protocol(settings: WorkerSettings, membership_handover: Handover | None) -> Handover | None:
    """``membership_handover``, if it is a membership under the group protocol of ``settings``. Otherwise None, with a
    warning: ``group.protocol`` has changed since the previous process handed the membership over."""
    if membership_handover is None or isinstance(membership_handover, ConnectMembershipHandover) is _is_connect_group(
        settings
    ):
        return membership_handover
    logger.warning(
        "group.protocol is %s, but the previous process of this worker was a member by the other protocol; the worker "
        "joins as a new member",
        settings.group_protocol.value,
    )
    return None


def _shut_down_on_signals(worker: Worker) -> None:
    """Shut ``worker`` down on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.order_shutdown, signal.Signals(number).name)


@asynccontextmanager
async def _open_or_create_config_status_logs(
    settings: WorkerSettings, client_id: str
) -> AsyncIterator[tuple[TopicsClient, TopicLog, TopicLog]]:
    """Open the worker's topics, and create missing topics; yields the client, the config log and the status log.

    The offset topic is created as well, as Connect does; nothing writes to the offset topic yet.

    :raises WorldError: when the broker cannot be reached, or a topic cannot be opened or created.
    """
    await check_broker_access_if_reachable(
        settings.bootstrap_servers,
        client_id=client_id,
        security=settings.security,
        transactional_id=transactional_id(settings.group_id),
    )
    topics = TopicsClient(settings.bootstrap_servers, client_id=client_id, security=settings.security)
    try:
        config_log = await topics.open_or_create_log(
            settings.config_storage_topic,
            partitions=1,
            replication_factor=settings.config_storage_replication_factor,
            setting_key="config.storage.topic",
            needs_one_partition=True,
        )
        status_log = await topics.open_or_create_log(
            settings.status_storage_topic,
            partitions=settings.status_storage_partitions,
            replication_factor=settings.status_storage_replication_factor,
            setting_key="status.storage.topic",
        )
        await topics.open_or_create_log(
            settings.offset_storage_topic,
            partitions=settings.offset_storage_partitions,
            replication_factor=settings.offset_storage_replication_factor,
            setting_key="offset.storage.topic",
        )
        yield topics, config_log, status_log
    finally:
        await topics.close()


def _file_name_for_worker(name: str) -> str:
    """A file name for the worker ``name``: ``coterie-`` and the name, with ``_`` for each special character."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in f"coterie-{name}")
