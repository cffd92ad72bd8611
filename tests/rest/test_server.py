"""Listening at addresses, errors in doing so, and https: certificates of both sides, also renewed ones."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from coterie.cli import rest_request
from coterie.config import reloaded_files
from coterie.config.rest import ClientAuth, RestListener, RestScheme, RestTls
from coterie.config.security import TlsFiles
from coterie.nouns.errors import WorldError
from coterie.rest import bodies, leader, server
from coterie.rest.callers import client_address_or_unknown
from coterie.rest.server import (
    CLIENT_CERTIFICATE_NAME_KEY,
    RequestIntake,
    open_listeners,
    open_listening_socket,
    serve_while_work_runs,
)
from tests.certificates import Authority, Pair, encrypted
from tests.ports import free_port

HTTP, HTTPS = RestListener(RestScheme.HTTP, "127.0.0.1", 0), RestListener(RestScheme.HTTPS, "127.0.0.1", 0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def tls_of(
    pair: Pair, authority: Authority, *, client_auth: ClientAuth = ClientAuth.NONE, password: str | None = None
) -> RestTls:
    files = TlsFiles(
        trusted_ca_location=str(authority.certificate),
        certificate_location=str(pair.certificate),
        key_location=str(pair.key),
        key_password=password,
    )
    return RestTls(files=files, client_auth=client_auth)


async def show_client(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.url.scheme} {getattr(request.state, CLIENT_CERTIFICATE_NAME_KEY, 'no name')}")


@asynccontextmanager
async def served(tls: RestTls, *listeners: RestListener) -> AsyncIterator[list[int]]:
    """The ports of a server that responds with scheme and client; its listeners end with the block."""
    app = Starlette(routes=[Route("/", show_client)])
    ended = asyncio.Event()
    with open_listeners(listeners, tls) as bound:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_while_work_runs(app, bound, ended.wait()))
            try:
                yield [listener.port for listener in bound]
            finally:
                ended.set()


class LateAnswer:
    """A handler whose response waits until the test allows it."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def respond(self, request: Request) -> PlainTextResponse:
        self.begun.set()
        await self.may_end.wait()
        return PlainTextResponse("late")


async def test_a_closed_intake_refuses_connections_and_returns_when_the_running_requests_are_answered() -> None:
    late_answer, ended, intake = LateAnswer(), asyncio.Event(), RequestIntake()
    app = Starlette(routes=[Route("/", show_client), Route("/late", late_answer.respond)])
    with open_listeners([HTTP], RestTls()) as bound:
        url = f"http://127.0.0.1:{bound[0].port}"
        async with asyncio.TaskGroup() as group, httpx.AsyncClient(trust_env=False) as client:
            group.create_task(serve_while_work_runs(app, bound, ended.wait(), intake=intake))
            assert (await client.get(url)).status_code == 200
            late = group.create_task(client.get(f"{url}/late"))
            await late_answer.begun.wait()
            closing = group.create_task(intake.close())
            await until_refused(url)
            assert not closing.done(), "a request is not answered"
            late_answer.may_end.set()
            await closing
            assert (await late).text == "late"
            ended.set()


async def test_a_closed_intake_receives_nothing_at_one_listener_while_another_still_answers() -> None:
    late_answer, ended, intake = LateAnswer(), asyncio.Event(), RequestIntake()
    app = Starlette(routes=[Route("/", show_client), Route("/late", late_answer.respond)])
    with open_listeners([HTTP, HTTP], RestTls()) as bound:
        busy, idle = (f"http://127.0.0.1:{listener.port}" for listener in bound)
        async with asyncio.TaskGroup() as group, httpx.AsyncClient(trust_env=False) as client:
            group.create_task(serve_while_work_runs(app, bound, ended.wait(), intake=intake))
            assert (await client.get(idle)).status_code == 200  # This connection stays open.
            late = group.create_task(client.get(f"{busy}/late"))
            await late_answer.begun.wait()
            closing = group.create_task(intake.close())
            await until_refused(idle, client)
            assert not closing.done(), "a request of the other listener is not answered"
            late_answer.may_end.set()
            await closing
            assert (await late).text == "late"
            ended.set()


async def until_refused(url: str, client: httpx.AsyncClient | None = None) -> None:
    """Send requests until one is refused: on the connection of ``client``, or each on a new connection."""
    async with asyncio.timeout(10):
        while True:
            try:
                if client is not None:
                    await client.get(url)
                    continue
                async with httpx.AsyncClient(trust_env=False) as new_client:
                    await new_client.get(url)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                pass  # The connection was closed while the request was sent.
            except httpx.ConnectError:
                return


def client_context(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


async def get(port: int, context: ssl.SSLContext | None) -> str:
    scheme = "http" if context is None else "https"
    async with httpx.AsyncClient(verify=True if context is None else context, trust_env=False) as client:
        return (await client.get(f"{scheme}://127.0.0.1:{port}/")).text


def test_a_taken_port_is_named_with_advice() -> None:
    with open_listening_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(WorldError, match=rf"Port {port} .* is in use.* set another port in listeners$"):
            open_listening_socket("127.0.0.1", port)
        taken = RestListener(RestScheme.HTTP, "127.0.0.1", port)
        with (
            pytest.raises(WorldError, match=rf"Port {port} .* is in use.* set another port in admin\.listeners$"),
            open_listeners([taken], RestTls(), key="admin.listeners"),
        ):
            pass


def test_two_listeners_may_have_the_same_port_on_different_hosts() -> None:
    port = free_port()
    listeners = [RestListener(RestScheme.HTTP, host, port) for host in ("127.0.0.1", "127.0.0.2")]
    with open_listeners(listeners, RestTls()) as bound:
        assert [listener.bound_url for listener in bound] == [f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}"]


async def test_the_headers_of_a_proxy_count_only_from_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn itself would trust the addresses in this environment variable."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    headers = {"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https"}
    shown = {}

    async def show_client_and_scheme(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{client_address_or_unknown(request)} {request.url.scheme}")

    ended = asyncio.Event()
    with open_listeners([HTTP], RestTls()) as bound:
        async with asyncio.TaskGroup() as group:
            app = Starlette(routes=[Route("/", show_client_and_scheme)])
            group.create_task(serve_while_work_runs(app, bound, ended.wait()))
            for address in ("127.0.0.1", "127.0.0.2"):
                transport = httpx.AsyncHTTPTransport(local_address=address)
                async with httpx.AsyncClient(transport=transport) as client:
                    shown[address] = (await client.get(f"http://127.0.0.1:{bound[0].port}/", headers=headers)).text
            ended.set()
    assert shown == {"127.0.0.1": "10.9.9.9 https", "127.0.0.2": "127.0.0.2 http"}


@pytest.mark.parametrize(("host", "client_host"), [("::1", "::1"), ("::", "::1"), ("::", "127.0.0.1")])
def test_a_listener_may_have_an_ipv6_address(host: str, client_host: str) -> None:
    with open_listening_socket(host, 0) as listener, socket.create_connection((client_host, listener.getsockname()[1])):
        listener.accept()[0].close()


def test_responses_are_sent_without_waiting_for_the_acknowledgement_of_their_headers() -> None:
    with open_listening_socket("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_an_address_of_another_host_is_named() -> None:
    with pytest.raises(WorldError, match=r"Cannot listen at 192\.0\.2\.1:0"):
        open_listening_socket("192.0.2.1", 0)


async def test_one_server_listens_with_and_without_tls(authority: Authority) -> None:
    async with served(tls_of(authority.pair("worker"), authority), HTTP, HTTPS) as (http, https):
        assert await get(http, None) == "http no name"
        assert await get(https, client_context(authority)) == "https no name"
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await get(https, ssl.create_default_context())


async def test_clients_read_the_systems_certificates_once_for_their_first_connection_with_tls(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted, reads = client_context(authority), 0

    def read_certificates() -> ssl.SSLContext:
        nonlocal reads
        reads += 1
        return trusted

    async with served(tls_of(authority.pair("worker"), authority), HTTP, HTTPS) as (http, https):
        monkeypatch.setattr(ssl, "create_default_context", read_certificates)
        urls = [f"http://127.0.0.1:{http}/", *2 * [f"https://127.0.0.1:{https}/"]]
        headers = {"Connection": "close"}
        async with leader.open_http_client() as client:
            assert reads == 0
            texts = [(await client.get(url, headers=headers)).text for url in urls]
        assert (texts, reads) == (["http no name", *2 * ["https no name"]], 1)
        with rest_request.open_http_client() as blocking:
            assert reads == 1
            texts = [(await asyncio.to_thread(blocking.get, url, headers=headers)).text for url in urls]
        assert (texts, reads) == (["http no name", *2 * ["https no name"]], 2)


@pytest.mark.parametrize("client_auth", [ClientAuth.REQUESTED, ClientAuth.REQUIRED])
async def test_the_name_in_a_clients_certificate_is_known(authority: Authority, client_auth: ClientAuth) -> None:
    tls = tls_of(authority.pair("worker"), authority, client_auth=client_auth)
    client = authority.pair("loader", subject="/O=Big Co/CN=loader")
    async with served(tls, HTTPS) as (port,):
        assert await get(port, client_context(authority, client)) == "https CN=loader,O=Big Co"


async def test_a_client_without_a_certificate_is_refused_only_if_certificates_are_required(
    authority: Authority,
) -> None:
    pair = authority.pair("worker")
    async with served(tls_of(pair, authority, client_auth=ClientAuth.REQUESTED), HTTPS) as (port,):
        assert await get(port, client_context(authority)) == "https no name"
    async with served(tls_of(pair, authority, client_auth=ClientAuth.REQUIRED), HTTPS) as (port,):
        with pytest.raises(httpx.TransportError):
            await get(port, client_context(authority))


async def test_a_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger").pair("stranger")
    async with served(tls_of(authority.pair("worker"), authority, client_auth=ClientAuth.REQUESTED), HTTPS) as (port,):
        with pytest.raises(httpx.TransportError):
            await get(port, client_context(authority, stranger))


async def test_a_renewed_certificate_is_used_for_new_connections(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloaded_files, "CHECK_INTERVAL_S", 0.01)
    other = Authority(tmp_path / "other", "other authority")
    pair, renewed = authority.pair("renewed"), other.pair("renewed")
    async with served(tls_of(pair, authority), HTTPS) as (port,):
        assert await get(port, client_context(authority)) == "https no name"
        renewed.key.replace(pair.key)
        renewed.certificate.replace(pair.certificate)
        async with asyncio.timeout(10):
            while True:
                try:
                    assert await get(port, client_context(other)) == "https no name"
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.02)  # The server reads the files at its own interval.


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    pair = authority.pair("encrypted")
    locked = Pair(pair.certificate, encrypted(pair.key))
    with open_listeners([HTTPS], tls_of(locked, authority, password="secret")):
        pass
    with (
        pytest.raises(WorldError, match="the key must not be encrypted"),
        open_listeners([HTTPS], tls_of(locked, authority)),
    ):
        pass
    with (
        pytest.raises(WorldError, match="its password must be right"),
        open_listeners([HTTPS], tls_of(locked, authority, password="wrong")),
    ):
        pass


# -- connections that wait for their clients ---------------------------------------------------------------------------


async def connect(port: int, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def test_connections_that_send_nothing_keep_no_client_out() -> None:
    async with served(RestTls(), HTTP) as (port,), httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}")).status_code == 200
        idle = [await connect(port) for _ in range(server.CONNECTIONS_MAX)]
        try:
            # The client's own connection, which has waited for the longest time, was closed first.
            responses = [await client.get(f"http://127.0.0.1:{port}") for _ in range(3)]
            assert {response.status_code for response in responses} == {200}
            assert await idle[0][0].read() == b"", "the connection that has waited for the longest time is closed"
            assert not idle[-1][0].at_eof()
        finally:
            for _, writer in idle:
                writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost:",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
        # uvicorn pauses reading when it has this much of a body.
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n" + b" " * 100_000,
    ],
    ids=["nothing", "a part of the headers", "a part of a body", "a large part of a body"],
)
async def test_a_client_that_does_not_send_a_whole_request_is_disconnected(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CLIENT_TIMEOUT_S", 0.2)
    received: list[bytes] = []

    async def read(request: Request) -> PlainTextResponse:
        received.append(await bodies.read_body(request))
        return PlainTextResponse("read")

    app, ended = Starlette(routes=[Route("/", read, methods=["POST"])]), asyncio.Event()
    with open_listeners([HTTP], RestTls()) as bound:
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_while_work_runs(app, bound, ended.wait()))
            try:
                reader, writer = await connect(bound[0].port, sent)
                assert await asyncio.wait_for(reader.read(), 20) == b""
                writer.close()
            finally:
                ended.set()
    assert received == []


@asynccontextmanager
async def large_response_requested(size: int) -> AsyncIterator[socket.socket]:
    """A client that has requested a response with a body of ``size`` bytes, and has not read anything of it."""
    app, ended = Starlette(routes=[Route("/", lambda _: PlainTextResponse("x" * size))]), asyncio.Event()
    with open_listeners([HTTP], RestTls()) as bound, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with asyncio.TaskGroup() as group:
            group.create_task(serve_while_work_runs(app, bound, ended.wait()))
            try:
                client.connect(("127.0.0.1", bound[0].port))
                client.setblocking(False)
                client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                yield client
            finally:
                ended.set()


async def until_closed_by_server(client: socket.socket) -> None:
    """Wait until the server has closed the connection of ``client``. The client itself does not see this before it has
    read what the kernel still sends."""
    port, own_port = client.getpeername()[1], client.getsockname()[1]
    server_end = re.compile(rf": [0-9A-F]{{8}}:{port:04X} [0-9A-F]{{8}}:{own_port:04X} 01 ")
    async with asyncio.timeout(60):
        while server_end.search(await asyncio.to_thread(Path("/proc/net/tcp").read_text)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_client_that_reads_nothing_of_a_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLIENT_TIMEOUT_S", 0.2)
    async with large_response_requested(20_000_000) as client:
        await until_closed_by_server(client)


async def test_a_client_that_reads_slowly_receives_the_whole_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CLIENT_TIMEOUT_S", 0.5)
    size, received, loop = 8_000_000, 0, asyncio.get_running_loop()
    async with large_response_requested(size) as client, asyncio.timeout(60):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        begun_s = loop.time()
        while received < size:
            received += len(await loop.sock_recv(client, 1 << 16))
            await asyncio.sleep(0.01)
        assert loop.time() - begun_s > 2 * server.CLIENT_TIMEOUT_S


async def test_above_the_limit_clients_that_read_nothing_are_disconnected_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 2)
    async with large_response_requested(20_000_000) as silent:
        port = silent.getpeername()[1]
        async with httpx.AsyncClient(trust_env=False) as polite:
            await asyncio.get_running_loop().sock_recv(silent, 1)  # The response has begun.
            first = await polite.get(f"http://127.0.0.1:{port}/")
            reader, writer = await connect(port)
            await until_closed_by_server(silent)
            assert first.status_code == 200
            assert not reader.at_eof()
            writer.close()


async def test_requests_that_are_sent_without_waiting_for_responses_are_answered() -> None:
    async with served(RestTls(), HTTP) as (port,):
        reader, writer = await connect(port, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)
        for _ in range(3):
            assert (await reader.readuntil(b"http no name")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_the_log_line_of_an_invalid_request_has_the_clients_address(caplog: pytest.LogCaptureFixture) -> None:
    async with served(RestTls(), HTTP) as (port,):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client_port = writer.get_extra_info("sockname")[1]
        writer.write(b"no request\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.name == "uvicorn.error"] == [
        f"127.0.0.1:{client_port} - Invalid HTTP request received."
    ]


async def test_an_offer_of_http2_is_ignored_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Java's own HTTP client, which Strimzi uses, sends this offer with its requests."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
    caplog.set_level("WARNING")
    async with served(RestTls(), HTTP) as (port,):
        reader, writer = await connect(port, b"GET / HTTP/1.1\r\nHost: a\r\n" + offer + b"\r\n")
        assert (await reader.readuntil(b"http no name")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await reader.readuntil(b"http no name")).startswith(b"HTTP/1.1 200"), "on the same connection"
        writer.close()
    assert caplog.messages == []


async def test_a_request_that_takes_longer_than_the_clients_time_limit_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "CLIENT_TIMEOUT_S", 0.1)

    async def answer_late(_: Request) -> PlainTextResponse:
        await asyncio.sleep(0.5)
        return PlainTextResponse("late")

    app, ended = Starlette(routes=[Route("/", answer_late)]), asyncio.Event()
    with open_listeners([HTTP], RestTls()) as bound:
        async with asyncio.TaskGroup() as group, httpx.AsyncClient(trust_env=False) as client:
            group.create_task(serve_while_work_runs(app, bound, ended.wait()))
            assert (await client.get(f"http://127.0.0.1:{bound[0].port}")).text == "late"
            ended.set()


async def test_a_request_above_the_limit_is_503_in_connects_form_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "REQUESTS_MAX", 1)
    begun, may_answer, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer_late(_: Request) -> PlainTextResponse:
        begun.set()
        await may_answer.wait()
        return PlainTextResponse("late")

    app = Starlette(routes=[Route("/", answer_late)])
    with open_listeners([HTTP], RestTls()) as bound:
        url = f"http://127.0.0.1:{bound[0].port}"
        async with asyncio.TaskGroup() as group, httpx.AsyncClient(trust_env=False) as client:
            group.create_task(serve_while_work_runs(app, bound, ended.wait()))
            late = group.create_task(client.get(url))
            await begun.wait()
            refused = [await client.get(url) for _ in range(3)][-1]
            assert (refused.status_code, refused.json()["error_code"]) == (503, 503)
            assert refused.headers["retry-after"] == "1"
            assert len(caplog.messages) == 1, "one line in each interval"
            monkeypatch.setattr(server, "REFUSALS_LOG_INTERVAL_S", 0)
            await client.get(url)
            assert [line.partition(". ")[0] for line in caplog.messages] == [
                f"The REST listener {url} has refused {count} request(s) with 503 since it last logged this: it "
                "handles 1 requests at the same time, the maximum"
                for count in (1, 3)
            ], "the first refusal, then all since then"
            may_answer.set()
            assert (await late).text == "late"
            assert (await client.get(url)).status_code == 200, "the next one is answered"
            ended.set()
