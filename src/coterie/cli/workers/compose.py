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
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

from coterie import __version__
from coterie.assignors.members import Policy
from coterie.cli.collector import collect_seldom
from coterie.cli.workers import relaunch
from coterie.config.worker import WorkerSettings
from coterie.herder.messages import Exit
from coterie.herder.seams import Membership, TaskRuntime
from coterie.herder.session_keys import SessionKeySettings
from coterie.herder.state import HerderSettings
from coterie.kafka.admission import check_admission
from coterie.kafka.coordinator import KafkaCoordinator
from coterie.kafka.security import java_settings
from coterie.kafka.topics import TopicLog, Topics
from coterie.member.classic.machine import step
from coterie.member.classic.state import QUIET_MARGIN_MS, Member, MemberSettings
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import InstanceId
from coterie.nouns.membership import PlaceHandover
from coterie.rest.app import create_app
from coterie.rest.leader import HttpLeaderClient, open_client
from coterie.rest.server import bind, serve_while
from coterie.spark.jars import default_folder
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import JarSettings, PythonSettings, SparkConfig
from coterie.wire.connect import ConnectProtocol
from coterie.worker.membership import GroupMembership
from coterie.worker.worker import Worker

logger = logging.getLogger(__name__)


RuntimeOf: TypeAlias = Callable[[WorkerSettings, str, Path], TaskRuntime]
"""Creates the runtime of a worker with these settings and this name. While it runs, only it uses the given folder."""


MembershipOf: TypeAlias = Callable[[WorkerSettings, MemberSettings, str, PlaceHandover | None], Membership]
"""Creates the membership of a worker with these settings and this client id. It continues the membership of the
worker's previous process if one is given."""


def spark_runtime(settings: WorkerSettings, name: str, scratch: Path) -> TaskRuntime:
    return SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=Path(settings.checkpoint_location),
            scratch=scratch,
            log_file=Path(settings.log_jvm_file or Path(tempfile.gettempdir()) / f"{_file_name(name)}.jvm.log"),
            settings=settings.spark,
            jars=jar_settings(settings),
            python=PythonSettings(modules=settings.pipeline_modules, executable=settings.python_executable),
            offset_flush_interval_ms=settings.offset_flush_interval_ms,
            kafka={
                "bootstrap.servers": ",".join(settings.bootstrap_servers),
                **java_settings(settings.security, scratch),
            },
        )
    )


def jar_settings(settings: WorkerSettings) -> JarSettings | None:
    """:raises WorldError: when jars.dir is not a folder, or jars are to be fetched and there is no default folder."""
    if settings.jars_dir:
        folder = Path(settings.jars_dir).absolute()
        if not settings.jars_fetch and not os.path.isdir(folder):
            raise WorldError(
                f"jars.dir: there is no folder {folder}; run `coterie jars fetch --to {folder}`, or set jars.fetch=true"
            )
    else:
        try:
            folder = default_folder(os.environ)
        except WorldError:
            if settings.jars_fetch:
                raise
            return None
        if not settings.jars_fetch and not os.access(folder, os.R_OK | os.X_OK):
            return None
    return JarSettings(folder=folder, fetch=settings.jars_fetch, mirror=settings.jars_mirror)


def kafka_coordinator(settings: WorkerSettings, member: MemberSettings, client_id: str) -> KafkaCoordinator:
    return KafkaCoordinator(
        settings.bootstrap_servers,
        client_id=client_id,
        request_timeout_ms=member.lease.request_timeout_ms,
        parked_timeout_ms=member.answer_timeout_ms,
        security=settings.security,
    )


def classic_membership(
    settings: WorkerSettings, member: MemberSettings, client_id: str, place: PlaceHandover | None
) -> Membership:
    return GroupMembership(step, Member(member, place), kafka_coordinator(settings, member, client_id))


def run_worker(
    settings: WorkerSettings, runtime_of: RuntimeOf = spark_runtime, check_settings: Callable[[], object] = lambda: None
) -> int:
    """Run one worker until it ends; returns the exit code. Its REST port is bound before anything else starts.

    ``check_settings`` raises an error if the worker could not restart with its present settings file.

    A worker that was ordered to restart leaves its group if it does not restart: because it received a signal
    meanwhile, or because its process could not be replaced.

    :raises WorldError: when it cannot start (a port in use, no broker, no Java), or cannot replace its process.
    """
    collect_seldom()
    workers: list[Worker] = []

    def made(worker: Worker) -> None:
        workers.append(worker)
        _obey_signals(worker)

    with bind(*settings.listener) as listener:
        member = member_settings(settings, listener)
        place = relaunch.handed_on(member)
        life = serve_life(settings, listener, runtime_of, made=made, place=place, check_settings=check_settings)
        ended = asyncio.run(life)
    if not ended.restarts:
        return ended.code
    # Checked only after everything is closed, which takes time. From here on a signal ends the process at once.
    if (reason := workers[0].ordered) is None:
        try:
            relaunch.begin_anew(member, ended.place)
        except WorldError as error:
            asyncio.run(_leave(settings, member, ended.place, str(error)))
            raise
    logger.info("This worker was ordered to restart, but ends instead: %s", reason)
    asyncio.run(_leave(settings, member, ended.place, reason))
    return 0


def check_listener(settings: WorkerSettings, *, running: WorkerSettings) -> None:
    """Check that a worker that listens as in ``running`` could listen as in ``settings``.

    :raises WorldError: when another process uses the port, or the host is not an address of this machine.
    """
    host, port = settings.listener
    bind(host, 0 if port == running.listener.port else port).close()  # 0: its own port is free after the process ends


def member_settings(settings: WorkerSettings, listener: socket.socket) -> MemberSettings:
    return MemberSettings(
        group_id=settings.group_id,
        instance_id=InstanceId(settings.group_instance_id) if settings.group_instance_id else None,
        url=settings.url(bound_port=listener.getsockname()[1]),
        name=settings.worker_name,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        rebalance_heartbeat_interval_ms=settings.rebalance_heartbeat_interval_ms,
        quiet_ms=settings.task_shutdown_graceful_timeout_ms + QUIET_MARGIN_MS,
        protocols=ConnectProtocol.named(settings.connect_protocol).offered,
        claims=settings.claims,
    )


async def serve_life(
    settings: WorkerSettings,
    listener: socket.socket,
    runtime_of: RuntimeOf = spark_runtime,
    *,
    made: Callable[[Worker], None],
    membership_of: MembershipOf = classic_membership,
    place: PlaceHandover | None = None,
    check_settings: Callable[[], object] = lambda: None,
) -> Exit:
    """Run a worker until it ends or must restart, with the membership ``place`` of its previous process, if any.

    ``made`` is called with the worker before the worker starts. Several workers can run in one process.
    """
    port = listener.getsockname()[1]
    name, member = settings.name(bound_port=port), member_settings(settings, listener)
    client_id = settings.client_id or name
    logger.info("%s serves REST at %s and is starting", name, member.url)
    async with _topics(settings, client_id) as (topics, config_log, status_log), open_client() as client:
        with tempfile.TemporaryDirectory(prefix="coterie-", ignore_cleanup_errors=True) as scratch:
            runtime = runtime_of(settings, name, Path(scratch))
            worker = Worker(
                settings=HerderSettings(
                    worker_id=settings.worker_id(bound_port=port),
                    url=member.url,
                    version=__version__,
                    name=settings.worker_name,
                    instance_id=member.instance_id,
                    session_timeout_ms=settings.session_timeout_ms,
                    rebalance_timeout_ms=settings.rebalance_timeout_ms,
                    sync_timeout_ms=settings.worker_sync_timeout_ms,
                    stop_grace_ms=settings.task_shutdown_graceful_timeout_ms,
                    rebalance_window_ms=settings.config_rebalance_window_ms,
                    policy=Policy(
                        max_delay_ms=settings.scheduled_rebalance_max_delay_ms,
                        moves_per_round_max=settings.rebalance_max_moves_per_round,
                        round_interval_ms=settings.rebalance_round_interval_ms,
                    ),
                    session_keys=SessionKeySettings(
                        ttl_ms=settings.inter_worker_key_ttl_ms,
                        algorithm=settings.inter_worker_key_generation_algorithm,
                        size_bytes=settings.inter_worker_key_size_bytes,
                        signature_algorithm=settings.inter_worker_signature_algorithm,
                        verification_algorithms=settings.inter_worker_verification_algorithms,
                    ),
                ),
                config_log=config_log,
                status_log=status_log,
                membership=membership_of(settings, member, client_id, place),
                runtime=runtime,
                leader_client=HttpLeaderClient(client),
                place=place,
                check_settings=check_settings,
            )
            made(worker)
            app = create_app(worker, client, cluster_id=await topics.cluster_id())
            ended = await serve_while(app, listener, worker.run())
    logger.log(logging.ERROR if ended.code else logging.INFO, "%s has ended: %s", name, ended.reason)
    return ended


async def _leave(settings: WorkerSettings, member: MemberSettings, place: PlaceHandover | None, reason: str) -> None:
    """Leave the group with the membership ``place``, because no process will continue it."""
    if place is not None:
        membership = classic_membership(settings, member, settings.client_id or "coterie", place)
        await asyncio.gather(membership.run(), membership.leave(reason))


def _obey_signals(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.order_shutdown, signal.Signals(number).name)


@asynccontextmanager
async def _topics(settings: WorkerSettings, client_id: str) -> AsyncIterator[tuple[Topics, TopicLog, TopicLog]]:
    """Open the worker's topics, and create missing ones; yields the client, the config log and the status log.

    The offset topic is created as well, as Connect does; nothing writes to it yet.
    """
    await check_admission(settings.bootstrap_servers, client_id=client_id, security=settings.security)
    topics = Topics(settings.bootstrap_servers, client_id=client_id, security=settings.security)
    try:
        config_log = await topics.open(
            settings.config_storage_topic,
            partitions=1,
            replication=settings.config_storage_replication_factor,
            key="config.storage.topic",
            ordered=True,
        )
        status_log = await topics.open(
            settings.status_storage_topic,
            partitions=settings.status_storage_partitions,
            replication=settings.status_storage_replication_factor,
            key="status.storage.topic",
        )
        await topics.open(
            settings.offset_storage_topic,
            partitions=settings.offset_storage_partitions,
            replication=settings.offset_storage_replication_factor,
            key="offset.storage.topic",
        )
        yield topics, config_log, status_log
    finally:
        await topics.close()


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in f"coterie-{name}")
