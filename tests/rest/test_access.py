"""Who may do what: every operation with every role at every listener; users of forwarded requests; masked values; pages
of other addresses; the audit log.
"""

import asyncio
import base64
import itertools
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.rest import ClientAuth, ResponseHeader, RestListener, RestScheme, RestTls
from coterie.config.security import TlsFiles
from coterie.config.tls import server_context
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.kinds import Request as HerderRequest
from coterie.herder.requests.signatures import ContentSignature, SignContent
from coterie.herder.requests.writes import WriteAttempt
from coterie.herder.session_keys import Signature, SigningKey
from coterie.nouns.instants import instant_text
from coterie.rest import access, bodies, unverified_bodies
from coterie.rest.access import AccessRules
from coterie.rest.app import create_app
from coterie.rest.callers import SignFunction, add_caller_headers_if_signable
from coterie.rest.cross_origin import CrossOriginRules
from coterie.rest.endpoints import ADMIN_ENDPOINTS, ENDPOINTS, MAIN_ENDPOINTS, USER_ROLES, Endpoint, Operation, Role
from coterie.rest.leader import open_http_client
from coterie.rest.request_context import Caller
from coterie.rest.server import open_listeners, serve_while_work_runs
from coterie.rest.signatures import signature_headers
from coterie.rest.users import PasswordHash, RestUser, Users, read_users, write_users
from coterie.wire.connect import ConnectProtocol
from coterie.worker.worker import Worker
from tests.certificates import Authority
from tests.rest.served import GROUP_ID, JSON, ServedCluster, ServedWorker
from tests.worker.simulated import until

PASSWORDS = {role.value: f"{role.value}'s password" for role in USER_ROLES}
USERS: Users = {
    **{
        role.value: RestUser(role=role, password_hash=PasswordHash.from_password(password))
        for role, password in zip(USER_ROLES, PASSWORDS.values(), strict=True)
    },
    "CN=loader,O=Big Co": RestUser(role=Role.ADMIN, password_hash=None),
    **{f"CN={role}": RestUser(role=role, password_hash=None) for role in USER_ROLES},
}
NEW = {"name": "a", "config": {"connector.class": "SimulatedSource", "tasks.max": "1", "db.password": "hunter2"}}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def rules(tmp_path: Path) -> AccessRules:
    path = tmp_path / "users.json"
    write_users(path, USERS)
    return AccessRules(users=ReloadedFiles("users", [path], lambda: read_users(path)))


@pytest.fixture
async def workers() -> AsyncIterator[ServedCluster]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield cluster


def login(user: str | None) -> Mapping[str, str]:
    """The headers of a request of ``user``."""
    if user is None:
        return JSON
    encoded = base64.b64encode(f"{user}:{PASSWORDS[user]}".encode()).decode()
    return {**JSON, "Authorization": f"Basic {encoded}"}


def filled(endpoint: Endpoint) -> str:
    path = endpoint.path.replace("{connector}", "nope").replace("{task}", "0").replace("{worker:path}", "nope")
    assert "{" not in path.replace("{logger}", "x").replace("{plugin}", "x")
    return path


async def create(worker: ServedWorker) -> None:
    created = await worker.ask("POST", "/connectors", raw=json.dumps(NEW).encode(), headers=login("admin"))
    assert created.status_code == 201, created.text


# -- every operation with every role at every listener -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerCase:
    """A listener and the endpoints that it serves."""

    name: str
    is_https: bool
    endpoints: Sequence[Endpoint]


LISTENERS = (
    ListenerCase(name="listeners, http", is_https=False, endpoints=ENDPOINTS),
    ListenerCase(name="listeners, https", is_https=True, endpoints=ENDPOINTS),
    ListenerCase(name="listeners beside admin.listeners", is_https=False, endpoints=MAIN_ENDPOINTS),
    ListenerCase(name="admin.listeners, http", is_https=False, endpoints=ADMIN_ENDPOINTS),
    ListenerCase(name="admin.listeners, https", is_https=True, endpoints=ADMIN_ENDPOINTS),
)
WORKERS_SIGNATURE, WRONG_SIGNATURE = "the signature of a worker", "a wrong signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerCase:
    """The sender of a request."""

    role: Role | None
    """None: a stranger."""
    has_certificate: bool = False
    """Whether the sender proves its name with a client certificate and not with a password."""
    signature: str | None = None
    """:data:`WORKERS_SIGNATURE` or :data:`WRONG_SIGNATURE`: the request is signed as Connect's workers sign theirs."""


STRANGERS = (CallerCase(role=None), CallerCase(role=None, has_certificate=True))
CALLERS = (
    *STRANGERS,
    *(CallerCase(role=role) for role in USER_ROLES),
    *(CallerCase(role=role, has_certificate=True) for role in USER_ROLES),
    CallerCase(role=Role.WORKER, signature=WORKERS_SIGNATURE),
    CallerCase(role=None, signature=WRONG_SIGNATURE),
)


def expected_access(endpoint: Endpoint, listener: ListenerCase, caller: CallerCase) -> str:
    """What the table of endpoints says about a request."""
    if endpoint not in listener.endpoints:
        return "no such path"
    if endpoint.role is Role.WORKER:
        return {None: "unsigned", WRONG_SIGNATURE: "wrong signature", WORKERS_SIGNATURE: "served"}[caller.signature]
    if caller.role is None or caller.role is Role.WORKER:  # A worker's signature is no log-in.
        return "no log-in"
    return "served" if USER_ROLES.index(endpoint.role) <= USER_ROLES.index(caller.role) else "role missing"


def observed_access(endpoint: Endpoint, response: httpx.Response) -> str:
    """Which of the results of :func:`expected_access` the response shows."""
    if response.status_code == 401:
        is_connects = response.text == "User cannot access the resource." and "www-authenticate" in response.headers
        return "no log-in" if is_connects else f"another 401: {response.text}"
    message = response.json()["message"] if response.is_error else ""
    match response.status_code, message:
        case 404, "HTTP 404 Not Found":
            return "no such path"
        case 400, "Internal request missing required signature":
            return "unsigned"
        case 403, "Internal request contained invalid signature.":
            return "wrong signature"
        case 403, _ if message.endswith(f"needs the role {endpoint.role}"):
            return "role missing"
        case 403 | 405 | 415 | 500 | 503 as status, _:
            return f"{status}: {message}"
        case _:
            return "served"


def connects_signature(body: bytes, key: bytes) -> Mapping[str, str]:
    """The headers with which Connect's workers sign ``body``."""
    return signature_headers(SigningKey(key=key, algorithm="HmacSHA256").signature(body))


@asynccontextmanager
async def served_listeners(worker: Worker, rules: AccessRules, authority: Authority) -> AsyncIterator[list[str]]:
    """The URLs of :data:`LISTENERS`, at which ``worker`` is served."""
    pair, ended = authority.pair("worker"), asyncio.Event()
    files = TlsFiles(
        trusted_ca_location=str(authority.certificate),
        certificate_location=str(pair.certificate),
        key_location=str(pair.key),
    )
    schemes = [RestScheme.HTTPS if listener.is_https else RestScheme.HTTP for listener in LISTENERS]
    with open_listeners(
        [RestListener(scheme, "127.0.0.1", 0) for scheme in schemes],
        RestTls(files=files, client_auth=ClientAuth.REQUESTED),
    ) as bound:
        async with open_http_client() as client, asyncio.TaskGroup() as group:
            for listener, socket in zip(LISTENERS, bound, strict=True):
                app = create_app(
                    worker,
                    client,
                    cluster_id="simulated",
                    group_id=GROUP_ID,
                    access=rules,
                    endpoints=listener.endpoints,
                )
                group.create_task(serve_while_work_runs(app, [socket], ended.wait()))
            try:
                yield [one.bound_url for one in bound]
            finally:
                ended.set()


async def test_each_role_may_use_exactly_the_endpoints_of_the_table_at_each_listener(
    workers: ServedCluster, rules: AccessRules, authority: Authority
) -> None:
    worker = await workers.serve(access=rules)
    await until_keys(worker)
    own_key = workers.session_key()
    key_of = {WORKERS_SIGNATURE: own_key, WRONG_SIGNATURE: b"another key"}
    contexts: dict[Role | None, ssl.SSLContext] = {}
    for role in (None, *USER_ROLES):
        pair = authority.pair(f"user-{role}", subject=f"/CN={role}")
        contexts[role] = ssl.create_default_context(cafile=authority.certificate)
        contexts[role].load_cert_chain(pair.certificate, pair.key)
    without_certificate = ssl.create_default_context(cafile=authority.certificate)
    differences, served = [], set()
    async with served_listeners(worker.running.worker, rules, authority) as urls:
        for caller in CALLERS:
            context = contexts[caller.role] if caller.has_certificate else without_certificate
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                for (listener, url), endpoint in itertools.product(zip(LISTENERS, urls, strict=True), ENDPOINTS):
                    is_served = endpoint in listener.endpoints
                    if (caller.has_certificate and not listener.is_https) or not (is_served or caller in STRANGERS):
                        continue
                    is_task_list = endpoint.operation is Operation.PUT_TASK_CONFIGS
                    body = b"" if endpoint.request_body_type is None else b"[]" if is_task_list else b"{}"
                    headers = {**JSON}
                    if caller.signature is not None:
                        headers |= connects_signature(body, key_of[caller.signature])
                    elif caller.role is not None and not caller.has_certificate:
                        headers |= login(caller.role)
                    response = await client.request(
                        endpoint.method, url + filled(endpoint), content=body, headers=headers
                    )
                    expected = expected_access(endpoint, listener, caller)
                    if (observed := observed_access(endpoint, response)) != expected:
                        differences.append((caller, listener.name, endpoint.operation, expected, observed))
                    if expected == "served":
                        served.add(endpoint.operation)
    assert differences == []
    assert served == set(Operation), "every operation is served for a caller"
    assert workers.session_key() == own_key


async def test_task_configs_need_a_good_signature_and_no_log_in(workers: ServedCluster, rules: AccessRules) -> None:
    leader, follower = await workers.serve(access=rules), await workers.serve(access=rules)
    await until_keys(leader, follower)
    paused = json.dumps({**NEW, "initial_state": "PAUSED"}).encode()
    assert (await leader.ask("POST", "/connectors", raw=paused, headers=login("admin"))).status_code == 201
    body, key = b'[{"share":"0 of 1"}]', workers.session_key()
    statuses = [
        (await worker.ask("POST", "/connectors/a/tasks", raw=body, headers={**JSON, **signature})).status_code
        for worker in (leader, follower)
        for signature in ({}, connects_signature(body, b"another key"), connects_signature(body + b" ", key))
    ]
    assert statuses == [400, 403, 403] * 2
    assert (await leader.ask("GET", "/connectors/a/tasks", raw=b"", headers=login("read"))).json() == []
    # An administrator may not do what only workers may.
    as_admin = await leader.ask("POST", "/connectors/a/tasks", raw=body, headers=login("admin"))
    assert as_admin.status_code == 400
    for worker in (leader, follower):
        signed = {**JSON, **connects_signature(body, key)}
        accepted = await worker.ask("POST", "/connectors/a/tasks", raw=body, headers=signed)
        assert (accepted.status_code, accepted.content) == (204, b"")
        fence = await worker.ask("PUT", "/connectors/a/fence", raw=b"", headers=connects_signature(b"", key))
        assert fence.status_code == 400
        assert fence.json()["message"].startswith("The tasks of connector a cannot be fenced by a request")
        forged = await worker.ask("PUT", "/connectors/a/fence", raw=b"", headers=connects_signature(b"", b"another"))
        assert (forged.status_code, forged.json()["message"]) == (403, "Internal request contained invalid signature.")
    assert len((await leader.ask("GET", "/connectors/a/tasks", raw=b"", headers=login("read"))).json()) == 1


@pytest.mark.parametrize(
    "authorization",
    ["Basic eDp5", "Bearer x", "Basic %%%", "Basic \xe9", "Basic", "", "Basic " + base64.b64encode(b"admin").decode()],
)
async def test_a_wrong_login_is_401_as_in_connect(
    workers: ServedCluster, rules: AccessRules, authorization: str
) -> None:
    worker = await workers.serve(access=rules)
    headers = httpx.Headers({"Authorization": authorization}, encoding="latin-1")
    answer = await worker.ask("GET", "/connectors", raw=b"", headers=headers)
    assert (answer.status_code, answer.text) == (401, "User cannot access the resource.")


async def test_refused_logins_of_one_address_are_one_warning_a_minute(
    workers: ServedCluster, rules: AccessRules, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(access, "time", SimpleNamespace(monotonic=lambda: now_s))
    caplog.set_level(logging.WARNING)
    worker = await workers.serve(access=rules)
    caplog.clear()

    async def status(authorization: str | None) -> int:
        headers = {} if authorization is None else {"Authorization": authorization}
        return (await worker.ask("GET", "/connectors", raw=b"", headers=headers)).status_code

    wrong = "Basic " + base64.b64encode(b"admin:guessed-password").decode()
    assert await status(None) == 401
    assert caplog.messages == [], "a browser sends its first request without a log-in"
    assert [await status(header) for header in (wrong, wrong, "Bearer x", wrong)] == [401] * 4
    first = "The REST API has refused a log-in from 127.0.0.1: the password of 'admin' is wrong, or the user is unknown"
    assert caplog.messages == [first]
    now_s += 61
    assert await status("Bearer x") == 401
    assert caplog.messages[1:] == [
        "The REST API has refused a log-in from 127.0.0.1: the header Authorization has another form than Basic "
        "authentication; 3 more refused log-ins from 127.0.0.1 since the last such message"
    ]
    assert "guessed-password" not in caplog.text
    assert (await worker.ask("GET", "/connectors", raw=b"", headers=login("read"))).status_code == 200


async def test_an_unknown_path_is_404_and_options_need_a_login(workers: ServedCluster, rules: AccessRules) -> None:
    worker = await workers.serve(access=rules)
    assert (await worker.get("/nope")).status_code == 404
    assert (await worker.ask("OPTIONS", "/connectors")).status_code == 401
    assert (await worker.ask("OPTIONS", "/connectors", raw=b"", headers=login("read"))).status_code == 200


async def test_health_may_be_open(workers: ServedCluster, rules: AccessRules) -> None:
    worker = await workers.serve(access=AccessRules(users=rules.users, health_needs_no_login=True))
    assert (await worker.get("/health")).status_code == 200
    assert (await worker.get("/")).status_code == 401


async def test_a_removed_user_and_a_changed_password_are_refused_at_once(
    workers: ServedCluster, rules: AccessRules
) -> None:
    worker = await workers.serve(access=rules)
    assert rules.users is not None
    assert (await worker.ask("GET", "/", raw=b"", headers=login("read"))).status_code == 200
    rules.users.value = {"read": RestUser(role=Role.READ, password_hash=PasswordHash.from_password("another"))}
    assert (await worker.ask("GET", "/", raw=b"", headers=login("read"))).status_code == 401
    assert (await worker.ask("GET", "/", raw=b"", headers=login("admin"))).status_code == 401


# -- requests that another worker forwards ----------------------------------------------------------------------------


async def test_a_users_request_is_forwarded_with_the_users_name(
    workers: ServedCluster, rules: AccessRules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    leader, follower = await workers.serve(access=rules), await workers.serve(access=rules)
    await until_keys(leader, follower)
    await create(follower)
    assert (await follower.ask("DELETE", "/connectors/a", raw=b"", headers=login("operate"))).status_code == 403
    entries = audit_entries(caplog)
    assert [(entry["user"], entry["operation"], entry["status"]) for entry in entries] == [
        ("admin", "create_connector", 201),
        ("operate", "delete_connector", 403),
    ], "one line each: the leader's of the creation, and the follower's of the refusal"
    assert leader.running.worker.settings.url != follower.running.worker.settings.url


async def test_a_certificate_that_only_the_forwarding_worker_sees_counts_at_the_leader(
    workers: ServedCluster, rules: AccessRules, authority: Authority
) -> None:
    leader = await workers.serve(access=rules)
    client_pair = authority.pair("loader", subject="/O=Big Co/CN=loader")
    follower = await workers.serve(access=rules, tls=client_certificate_contexts(authority))
    await until_keys(leader, follower)
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(client_pair.certificate, client_pair.key)
    url = follower.url.replace("http:", "https:")
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        assert (await client.post(f"{url}/connectors", json=NEW)).status_code == 201
        assert (await client.delete(f"{url}/connectors/a")).status_code == 204
    async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=authority.certificate)) as client:
        assert (await client.get(f"{url}/connectors")).status_code == 401, "without the certificate"


async def test_the_leader_sees_the_states_of_members_that_need_a_login(
    workers: ServedCluster, rules: AccessRules
) -> None:
    leader, follower = await workers.serve(access=rules), await workers.serve(access=rules)
    await until_keys(leader, follower)
    group = (await leader.ask("GET", "/coterie/group", raw=b"", headers=login("read"))).json()
    assert len(group["members"]) == 2
    assert all(member["life"] is not None for member in group["members"]), group["members"]


@pytest.mark.parametrize("change", ["user", "role", "time", "method", "path", "query", "body", "signature"])
async def test_a_name_in_a_header_counts_only_with_a_good_signature(
    workers: ServedCluster, rules: AccessRules, change: str
) -> None:
    worker = await workers.serve(access=rules)
    await until_keys(worker)

    signed = httpx.Request(
        "PUT", f"{worker.url}/connectors/a/config?x=1", content=json.dumps(NEW["config"]), headers=JSON
    )
    caller = Caller(user="alicé", role=Role.ADMIN, address="10.0.0.7")
    await add_caller_headers_if_signable(signed, caller, signer_of(worker))
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.send(signed)).status_code == 201, "it is accepted as it is"
        method, url, body = signed.method, signed.url, signed.content
        headers = dict(signed.headers)
        del headers["content-length"]
        match change:
            case "user" | "role":
                headers[f"x-coterie-{change}"] = "read" if change == "role" else "bob"
            case "time":
                headers["x-coterie-time"] = str(int(headers["x-coterie-time"]) + 1)
            case "signature":
                headers["x-coterie-signature"] = base64.b64encode(bytes(32)).decode()
            case "method":
                method = "PATCH"
            case "path":
                url = url.copy_with(path="/connectors/b/config")
            case "query":
                url = url.copy_with(query=b"x=2")
            case _:
                body += b" "
        changed = await client.request(method, url, content=body, headers=headers)
        assert (changed.status_code, changed.headers["retry-after"]) == (503, "1"), changed.text
        assert "made with another session key" in changed.json()["message"]


@pytest.mark.parametrize("difference_s", [-61, 61])
async def test_a_signature_counts_only_if_the_clocks_of_both_workers_differ_by_at_most_a_minute(
    workers: ServedCluster, rules: AccessRules, difference_s: int, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await workers.serve(access=rules)
    await until_keys(worker)
    request = httpx.Request("GET", f"{worker.url}/connectors")
    signed_at_s = 1_800_000_000

    async def response_at(now_s: int) -> httpx.Response:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coterie.rest.callers.time", SimpleNamespace(time_ns=lambda: now_s * 1_000_000_000))
            if "x-coterie-time" not in request.headers:
                caller = Caller(user="alice", role=Role.READ, address="::1")
                await add_caller_headers_if_signable(request, caller, signer_of(worker))
            async with httpx.AsyncClient(trust_env=False) as client:
                return await client.send(request)

    assert (await response_at(signed_at_s)).status_code == 200
    refused = [await response_at(signed_at_s + difference_s) for _ in range(3)]
    assert [response.status_code for response in refused] == [503] * 3
    received_at = instant_text((signed_at_s + difference_s) * 1000)
    times = (
        "signed at 2027-01-15T08:00:00Z by the clock of the worker that forwarded the request, and it is "
        f"{received_at} by this worker's clock"
    )
    assert times in refused[0].json()["message"]
    (warning,) = signature_warnings(caplog)
    assert warning.startswith("The signature of a request that 127.0.0.1 forwarded for a user is not valid: ")
    assert times in warning


async def test_a_request_with_a_password_is_served_without_a_valid_signature_and_the_reason_is_logged(
    workers: ServedCluster, rules: AccessRules, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await workers.serve(access=rules)
    await until_keys(worker)
    wrong_key = SigningKey(key=b"k" * 32, algorithm="HmacSHA256")
    for user, headers, status in (("read", login("read"), 200), ("x", {"Authorization": "Basic eDp5"}, 401)):
        request = httpx.Request("GET", f"{worker.url}/connectors", headers=headers)
        await add_caller_headers_if_signable(
            request, Caller(user=user, role=Role.READ, address="::1"), signer_with(wrong_key)
        )
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.send(request)).status_code == status
    (warning,) = signature_warnings(caplog)
    assert "made with another session key" in warning


async def test_a_worker_without_users_serves_a_request_whose_signature_is_not_valid(
    workers: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await workers.serve()
    await until_keys(worker)
    request = httpx.Request("GET", f"{worker.url}/connectors")
    wrong_key = SigningKey(key=b"k" * 32, algorithm="HmacSHA256")
    await add_caller_headers_if_signable(
        request, Caller(user=None, role=Role.ADMIN, address="::1"), signer_with(wrong_key)
    )
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.send(request)).status_code == 200
    assert len(signature_warnings(caplog)) == 1


async def test_a_write_that_was_signed_with_an_old_key_is_signed_again_and_resent(
    workers: ServedCluster, rules: AccessRules, authority: Authority
) -> None:
    leader = await workers.serve(access=rules)
    follower = await workers.serve(access=rules, tls=client_certificate_contexts(authority))
    await until_keys(leader, follower)
    signatures = 0
    ask = follower.running.worker.ask
    old_key = SigningKey(key=b"k" * 32, algorithm="HmacSHA256")

    async def ask_with_old_key(request: HerderRequest, attempt: WriteAttempt | None = None) -> Answer:
        nonlocal signatures
        if not isinstance(request, SignContent):
            return await ask(request, attempt)
        signatures += 1
        return ContentSignature(signature=old_key.signature(request.content)) if signatures < 3 else await ask(request)

    follower.running.worker.ask = ask_with_old_key  # type: ignore[method-assign]
    client_pair = authority.pair("loader", subject="/O=Big Co/CN=loader")
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(client_pair.certificate, client_pair.key)
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        created = await client.post(f"{follower.url.replace('http:', 'https:')}/connectors", json=NEW)
    assert created.status_code == 201, created.text
    assert signatures == 3


def client_certificate_contexts(authority: Authority) -> ReloadedFiles[ssl.SSLContext]:
    """The TLS context of a listener that requests a certificate from clients."""
    pair = authority.pair("worker")
    return ReloadedFiles(
        "certificates",
        [],
        lambda: server_context(
            pair.certificate, pair.key, client_ca=authority.certificate, requires_client_certificate=False
        ),
    )


def signer_of(worker: ServedWorker) -> SignFunction:
    """Signs with the session key that ``worker`` has read."""

    async def sign(content: bytes) -> Signature | None:
        answer = await worker.running.worker.ask(SignContent(content=content))
        assert isinstance(answer, ContentSignature)
        return answer.signature

    return sign


def signer_with(key: SigningKey) -> SignFunction:
    async def sign(content: bytes) -> Signature | None:
        return key.signature(content)

    return sign


def signature_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "coterie.rest.access" and "signature" in record.getMessage()
    ]


FORGED = {"User": "a", "Role": "admin", "Address": "::1", "Signature": "AAAA", "Signature-Algorithm": "HmacSHA256"}


@pytest.mark.parametrize("is_forwarded", [True, False], ids=["forwarded by a worker", "task configs"])
async def test_few_long_bodies_are_read_before_their_signatures_are_verified(
    workers: ServedCluster, rules: AccessRules, monkeypatch: pytest.MonkeyPatch, is_forwarded: bool
) -> None:
    monkeypatch.setattr(unverified_bodies, "LONG_BODIES_MAX", 2)
    worker = await workers.serve(access=rules)
    await until_keys(worker)
    headers = {**JSON, **connects_signature(b"", b"another key")}
    method, path, refused_status = "POST", "/connectors/a/tasks", 403
    if is_forwarded:
        now_ms = str(time.time_ns() // 1_000_000)
        headers = {**JSON, **{f"X-Coterie-{name}": value for name, value in {**FORGED, "Time": now_ms}.items()}}
        method, path, refused_status = "PUT", "/connectors/a/config", 503
    bodies_begun: list[int] = []
    body = b"[" + b" " * 100_000 + b"]"

    async def send_slowly() -> AsyncIterator[bytes]:
        yield body[:-1]
        await may_end.wait()
        yield body[-1:]

    read_body = bodies.read_body

    async def observed_read_body(request: Request) -> bytes:
        bodies_begun.append(1)
        return await read_body(request)

    monkeypatch.setattr(bodies, "read_body", observed_read_body)
    may_end = asyncio.Event()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client, asyncio.TaskGroup() as group:
        sent = [
            group.create_task(
                client.request(
                    method,
                    worker.url + path,
                    content=send_slowly(),
                    headers=headers if number % 2 else {**headers, "Content-Length": str(len(body))},
                )
            )
            for number in range(6)
        ]
        await until(lambda: len(bodies_begun) >= 2)
        # A short body does not wait for the long ones.
        short = await client.request(method, worker.url + path, content=b"[]", headers=headers)
        assert short.status_code == refused_status
        assert len(bodies_begun) == 3, "two long bodies and the short one"
        may_end.set()
    assert [task.result().status_code for task in sent] == [refused_status] * 6
    assert len(bodies_begun) == 7


async def test_an_unverified_long_body_must_arrive_in_time(
    workers: ServedCluster, rules: AccessRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unverified_bodies, "TIME_LIMIT_S", 0.2)
    worker = await workers.serve(access=rules)
    reader, writer = await asyncio.open_connection(*worker.url.removeprefix("http://").split(":"))
    writer.write(b"POST /connectors/a/tasks HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n")
    writer.write(b"Content-Length: 100000\r\n\r\n[")
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()


# -- what readers see -------------------------------------------------------------------------------------------------


async def test_readers_see_secrets_masked_and_an_admin_reads_exactly_what_was_put(
    workers: ServedCluster, rules: AccessRules
) -> None:
    worker = await workers.serve(access=rules)
    await create(worker)

    async def tasks_are_there() -> bool:
        return bool((await worker.ask("GET", "/connectors/a/tasks", raw=b"", headers=login("read"))).json())

    await until(tasks_are_there)
    paths = ("/connectors/a", "/connectors/a/config", "/connectors?expand=info", "/connectors/a/tasks")
    for path in paths:
        answers = {user: await worker.ask("GET", path, raw=b"", headers=login(user)) for user in PASSWORDS}
        assert "hunter2" in answers["admin"].text, path
        assert "hunter2" not in answers["operate"].text, path
        assert "hunter2" not in answers["read"].text, path
        assert "[hidden]" in answers["read"].text, path
    config = (await worker.ask("GET", "/connectors/a/config", raw=b"", headers=login("admin"))).json()
    assert config == {**NEW["config"], "name": "a"}  # type: ignore[dict-item]


# -- pages of other addresses, and headers ----------------------------------------------------------------------------

PAGE = "http://ui.example"


async def test_pages_of_allowed_origins_may_use_the_allowed_methods(workers: ServedCluster) -> None:
    cross_origin = CrossOriginRules(allowed_origins=[PAGE], allowed_methods=["GET", "POST", "PUT"])
    worker = await workers.serve(access=AccessRules(cross_origin=cross_origin))
    preflight = await worker.ask(
        "OPTIONS",
        "/connectors",
        raw=b"",
        headers={
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert preflight.headers["access-control-allow-methods"] == "GET,POST,PUT"
    assert "Content-Type" in preflight.headers["access-control-allow-headers"]
    created = await worker.ask("POST", "/connectors", raw=json.dumps(NEW).encode(), headers={**JSON, "Origin": PAGE})
    assert (created.status_code, created.headers["access-control-allow-origin"]) == (201, PAGE)
    assert created.headers["vary"] == "Origin"
    deleted = await worker.ask("DELETE", "/connectors/a", raw=b"", headers={"Origin": PAGE})
    assert deleted.status_code == 403, "DELETE is not among the allowed methods"
    foreign = await worker.ask("GET", "/connectors", raw=b"", headers={"Origin": "http://evil.example"})
    assert (foreign.status_code, foreign.headers.get("access-control-allow-origin")) == (200, None)
    stranger = await worker.ask("PUT", "/connectors/a/pause", raw=b"", headers={"Origin": "http://evil.example"})
    assert stranger.status_code == 403


async def test_without_an_allowed_origin_no_response_has_headers_for_pages(workers: ServedCluster) -> None:
    worker = await workers.serve()
    answer = await worker.ask("GET", "/connectors", raw=b"", headers={"Origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]


async def test_configured_headers_are_in_every_response(workers: ServedCluster) -> None:
    added = [ResponseHeader("X-Frame-Options", "DENY", replaces_existing=True)]
    worker = await workers.serve(access=AccessRules(added_headers=added))
    for path in ("/", "/nope", "/connectors/nope/status"):
        assert (await worker.get(path)).headers["x-frame-options"] == "DENY"


# -- the audit log ----------------------------------------------------------------------------------------------------


async def test_each_mutation_has_one_line_with_the_config_before_and_after(
    workers: ServedCluster, rules: AccessRules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    worker = await workers.serve(access=rules)
    await create(worker)
    changed = {**NEW["config"], "tasks.max": "2"}  # type: ignore[dict-item]
    for method, path, body, user in [
        ("PUT", "/connectors/a/config", json.dumps(changed).encode(), "admin"),
        ("PUT", "/connectors/a/pause", b"", "operate"),
        ("PUT", "/connectors/a/pause", b"", "read"),
        ("PUT", "/connectors/nope/pause", b"", "operate"),
        ("GET", "/connectors/a", b"", "read"),
        ("DELETE", "/connectors/a", b"", "admin"),
    ]:
        await worker.ask(method, path, raw=body, headers=login(user))
    hidden = {"connector.class": "SimulatedSource", "tasks.max": "1", "db.password": "[hidden]", "name": "a"}
    entries = audit_entries(caplog)
    assert [(entry["user"], entry["operation"], entry["connector"], entry["status"]) for entry in entries] == [
        ("admin", "create_connector", "a", 201),
        ("admin", "put_config", "a", 200),
        ("operate", "pause_connector", "a", 202),
        ("read", "pause_connector", "a", 403),
        ("operate", "pause_connector", "nope", 404),
        ("admin", "delete_connector", "a", 204),
    ]
    assert {entry["address"] for entry in entries} == {"127.0.0.1"}
    assert "before" not in entries[0]
    assert entries[0]["after"] == hidden
    assert entries[1]["before"] == hidden
    assert entries[1]["after"] == {**hidden, "tasks.max": "2"}
    assert entries[3]["message"].startswith("User read has the role read")
    assert entries[5]["before"] == {**hidden, "tasks.max": "2"}
    assert "hunter2" not in caplog.text


async def test_the_audit_line_of_a_write_contains_the_config_that_the_write_before_it_has_written(
    workers: ServedCluster, rules: AccessRules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    leader, follower = await workers.serve(access=rules), await workers.serve(access=rules)
    await create(leader)

    async def write(worker: ServedWorker, number: int) -> None:
        if number == 5:
            await worker.ask("PATCH", "/connectors/a/config", raw=b'{"patched": "yes"}', headers=login("admin"))
            return
        body = json.dumps({**NEW["config"], "number": str(number)}).encode()  # type: ignore[dict-item]
        assert (await worker.ask("PUT", "/connectors/a/config", raw=body, headers=login("admin"))).status_code == 200

    # All arrive before the first is performed.
    await asyncio.gather(*(write((leader, follower)[number % 2], number) for number in range(10)))
    await follower.ask("DELETE", "/connectors/a", raw=b"", headers=login("admin"))
    entries = audit_entries(caplog)
    assert len(entries) == 12
    # The next writer's line contains what the writer before it has left: no line can be missing between them.
    for earlier, later in itertools.pairwise(entries):
        assert later["before"] == earlier["after"]


async def test_the_audit_line_of_an_invalid_config_does_not_quote_its_values(
    workers: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    worker = await workers.serve()
    invalid = {"name": "a", "config": {"connector.class": "SimulatedSource", "tasks.max": "hunter2"}}
    assert "hunter2" in (await worker.ask("POST", "/connectors", invalid)).text
    (entry,) = audit_entries(caplog)
    assert entry["status"] == 400
    assert entry["message"].startswith("Connector configuration is invalid and contains ")
    assert entry["message"].endswith(" error(s); the response lists them")
    assert "hunter2" not in caplog.text


async def test_a_refused_login_has_an_audit_line_without_a_user(
    workers: ServedCluster, rules: AccessRules, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    worker = await workers.serve(access=rules)
    await worker.ask("DELETE", "/connectors/a", raw=b"", headers=JSON)
    (entry,) = audit_entries(caplog)
    assert (entry["user"], entry["operation"], entry["status"]) == (None, "delete_connector", 401)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/connectors", b"{}", {"Content-Type": "text/plain"}, 415),
        ("POST", "/connectors", b"{}", {}, 415),
        ("PUT", "/connectors/a/config", b"{}", {**JSON, "Accept": "text/html"}, 406),
        ("POST", "/connectors", b"{", JSON, 400),
        ("PUT", "/connectors/a/config", b"[]", JSON, 400),
        ("PUT", "/connectors/a/config", b" " * (8 * 1024 * 1024 + 1), JSON, 413),
        ("POST", "/connectors", b" " * (8 * 1024 * 1024 + 1), JSON, 413),
        ("DELETE", "/connectors/a", b"", {"Origin": "http://foreign.example"}, 403),
        ("DELETE", "/connectors/a", b"", {}, 404),
    ],
)
async def test_each_refused_mutation_has_one_audit_line(
    workers: ServedCluster,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    status: int,
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    worker = await workers.serve()
    assert (await worker.ask(method, path, raw=body, headers=headers)).status_code == status
    (entry,) = audit_entries(caplog)
    assert (entry["address"], entry["status"]) == ("127.0.0.1", status)
    assert entry["message"]


async def test_a_client_that_disconnects_in_its_body_leaves_an_audit_line_and_no_trace(
    workers: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    worker = await workers.serve()
    _, writer = await asyncio.open_connection(*worker.url.removeprefix("http://").split(":"))
    head = "PUT /connectors/a/config HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    writer.write(head.encode() + b"{")
    await writer.drain()
    writer.close()
    await until(lambda: audit_entries(caplog) != [])
    (entry,) = audit_entries(caplog)
    assert (entry["status"], entry["connector"]) == (400, "a")
    assert "before the whole body" in entry["message"]
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text


async def test_the_audit_line_of_a_config_without_a_class_does_not_quote_its_values(
    workers: ServedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.audit")
    worker = await workers.serve()
    answer = await worker.ask("PUT", "/connectors/a/config", {"db.password": "hunter2"})
    assert (answer.status_code, answer.json()["message"]) == (
        400,
        "Connector config {db.password=[hidden], name=a} contains no connector type",
    )
    (entry,) = audit_entries(caplog)
    assert (entry["status"], entry["operation"]) == (400, "put_config")
    assert "hunter2" not in caplog.text


def audit_entries(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "coterie.audit"]


async def until_keys(*workers: ServedWorker) -> None:
    """Until each worker has read the group's session key."""

    async def have_keys() -> bool:
        answers = [await worker.running.worker.ask(SignContent(content=b"x")) for worker in workers]
        return all(isinstance(answer, ContentSignature) and answer.signature is not None for answer in answers)

    async with asyncio.timeout(10):
        await until(have_keys)
