"""A forged page in a real browser: a page of a foreign origin changes nothing on a worker, and reads nothing, unless
Connect's keys ``access.control.allow.*`` allow its origin. Needs Debian's ``chromium``."""

import asyncio
import base64
import json
import logging
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coterie.config.reloaded_files import ReloadedFiles
from coterie.rest.access import AccessRules
from coterie.rest.cross_origin import CrossOriginRules
from coterie.rest.endpoints import Role
from coterie.rest.users import PasswordHash, RestUser, Users
from coterie.wire.connect import ConnectProtocol
from tests.rest.served import JSON, ServedCluster, ServedWorker
from tests.worker.simulated import until

USER, PASSWORD = "alice", "hers"
USERS: Users = {USER: RestUser(role=Role.ADMIN, password_hash=PasswordHash.from_password(PASSWORD))}
ALICE = ReloadedFiles("users", [], lambda: USERS)
LOGIN = {**JSON, "Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}

pytestmark = pytest.mark.timeout(240)

PAGE = """<!doctype html><meta charset="utf-8"><iframe name="target"></iframe><pre id="results"></pre><script>
const worker = "%(worker)s";
const login = "%(login)s";
const config = {"connector.class": "simulated.Source", "tasks.max": "1"};
const credentials = login ? "include" : "same-origin";
const json = {"Content-Type": "application/json"};
const attempts = {
  "form": async () => {
    const form = document.createElement("form");
    form.method = "POST"; form.action = worker + "/connectors"; form.enctype = "text/plain"; form.target = "target";
    const input = document.createElement("input");
    input.name = '{"name": "forged-form", "config": {"connector.class": "simulated.Source", "x": "';
    input.value = '"}}';
    form.append(input); document.body.append(form);
    const loaded = new Promise(resolve => document.querySelector("iframe").onload = resolve);
    form.submit();
    await loaded;
    return "sent";
  },
  "text": () => fetch(worker + "/connectors", {method: "POST", mode: "no-cors", credentials,
    body: JSON.stringify({name: "forged-text", config})}),
  "json no-cors": () => fetch(worker + "/connectors", {method: "POST", mode: "no-cors", credentials, headers: json,
    body: JSON.stringify({name: "forged-no-cors", config})}),
  "bodyless": () => fetch(worker + "/connectors/kept/restart?includeTasks=true",
    {method: "POST", mode: "no-cors", credentials}),
  "json": () => fetch(worker + "/connectors", {method: "POST", credentials, headers: json,
    body: JSON.stringify({name: "forged-cors", config})}),
  "delete": () => fetch(worker + "/connectors/kept", {method: "DELETE", credentials}),
  "read": () => fetch(worker + "/connectors", {credentials}),
};
async function logIn() {
  const other = open(login);
  for (;;) {  // Until the worker has answered: then this page may no longer read the address of the other one.
    try { other.location.href; } catch { return; }
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}
(async () => {
  const results = {};
  if (login) await logIn();
  for (const [name, attempt] of Object.entries(attempts)) {
    try {
      const response = await attempt();
      results[name] = typeof response === "string" ? response : response.status;
    } catch (error) { results[name] = error.name; }
  }
  await fetch("/results", {method: "POST", body: JSON.stringify(results)});
})();
</script>"""


class ForeignSite:
    """A web server of another origin than the worker, with the forged page; it receives what the page has reached."""

    def __init__(self) -> None:
        self.page = ""
        self.results: str | None = None
        self.reported = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(site.page.encode())

            def do_POST(self) -> None:
                site.results = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(b"")
                site.reported.set()

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def site() -> Iterator[ForeignSite]:
    site = ForeignSite()
    thread = threading.Thread(target=site.server.serve_forever)
    thread.start()
    yield site
    site.server.shutdown()
    thread.join()
    site.server.server_close()


@pytest.fixture
async def cluster() -> AsyncIterator[ServedCluster]:
    async with ServedCluster(protocol=ConnectProtocol.STATIC) as cluster:
        yield cluster


def chromium() -> str:
    """The program. If it is missing, the test is skipped; with CI set it fails."""
    program = shutil.which("chromium")
    if program is None:
        message = "chromium is not on PATH (Debian: apt install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return program


async def visit(
    site: ForeignSite, worker: ServedWorker, profile: Path, *, logged_in: bool = False
) -> dict[str, object]:
    """What each attempt of the page reached, in a browser that opens it: a status, 0 for a response that the page
    cannot read, or the name of an error. ``logged_in``: the user has logged in at the worker in another window, so the
    browser has the credentials, and the page asks for them to be sent."""
    login_url = worker.url.replace("//", f"//{USER}:{PASSWORD}@") + "/connectors" if logged_in else ""
    site.page = PAGE % {"worker": worker.url, "login": login_url}
    browser = await asyncio.create_subprocess_exec(
        chromium(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-popup-blocking",
        f"--user-data-dir={profile}",
        site.origin + "/",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert await asyncio.to_thread(site.reported.wait, 120), "the page did not report"
    finally:
        os.killpg(browser.pid, 9)
        await browser.wait()
    assert site.results is not None
    results: dict[str, object] = json.loads(site.results)
    return results


async def create_kept(worker: ServedWorker) -> None:
    body = {"name": "kept", "config": {"connector.class": "simulated.Source", "tasks.max": "1"}}
    created = await worker.ask("POST", "/connectors", body, headers=LOGIN)
    assert created.status_code == 201, created.text
    await until(lambda: running_kept(worker))


async def running_kept(worker: ServedWorker) -> bool:
    response = await worker.ask("GET", "/connectors/kept/status", raw=b"", headers=LOGIN)
    return response.status_code == 200 and [task["state"] for task in response.json()["tasks"]] == ["RUNNING"]


async def connectors(worker: ServedWorker) -> list[str]:
    names: list[str] = (await worker.ask("GET", "/connectors", raw=b"", headers=LOGIN)).json()
    return sorted(names)


REACHED_BY_A_FOREIGN_PAGE = {
    "form": "sent",
    # 0 is the status of a response that the page cannot read.
    "text": 0,
    "json no-cors": 0,
    "bodyless": 0,
    # The browser has refused these.
    "json": "TypeError",
    "delete": "TypeError",
    "read": "TypeError",
}

NOT_JSON = [("create_connector", None, 415)] * 3
"""The audit lines of the attempts "form", "text" and "json no-cors": the browser sends no other type than text."""


@pytest.mark.parametrize("logged_in", [False, True], ids=["no log-in", "logged in"])
async def test_a_page_of_a_foreign_origin_changes_and_reads_nothing(
    cluster: ServedCluster, site: ForeignSite, tmp_path: Path, caplog: pytest.LogCaptureFixture, logged_in: bool
) -> None:
    worker = await cluster.serve(access=AccessRules(users=ALICE if logged_in else None))
    await create_kept(worker)
    caplog.set_level(logging.INFO, "coterie.audit")
    caplog.clear()
    starts = list(worker.running.runtime.starts)
    results = await visit(site, worker, tmp_path, logged_in=logged_in)
    assert results == REACHED_BY_A_FOREIGN_PAGE
    assert await connectors(worker) == ["kept"]
    assert worker.running.runtime.starts == starts, "no task was restarted"
    assert audited(caplog) == [*NOT_JSON, ("restart_connector", None, 403)]


async def test_the_browser_of_a_logged_in_user_sends_the_credentials_for_a_foreign_page(
    cluster: ServedCluster, site: ForeignSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the check of the origin protects a user who is logged in: a page of an allowed origin acts as this user."""
    rules = CrossOriginRules(allowed_origins=(site.origin,), allowed_methods=("POST",))
    worker = await cluster.serve(access=AccessRules(users=ALICE, cross_origin=rules))
    await create_kept(worker)
    caplog.set_level(logging.INFO, "coterie.audit")
    caplog.clear()
    await visit(site, worker, tmp_path, logged_in=True)
    assert audited(caplog) == [*NOT_JSON, ("restart_connector", USER, 202)]


def audited(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None, int]]:
    """Operation, user and status of each audit line."""
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "coterie.audit"]
    return [(line["operation"], line["user"], line["status"]) for line in lines]


async def test_a_page_of_an_allowed_origin_may_use_the_allowed_methods(
    cluster: ServedCluster, site: ForeignSite, tmp_path: Path
) -> None:
    rules = CrossOriginRules(allowed_origins=(site.origin,), allowed_methods=("GET", "POST"))
    worker = await cluster.serve(access=AccessRules(cross_origin=rules))
    await create_kept(worker)
    results = await visit(site, worker, tmp_path)
    assert (results["json"], results["read"], results["delete"]) == (201, 200, "TypeError")
    assert await connectors(worker) == ["forged-cors", "kept"]
