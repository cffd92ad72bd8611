"""A forged page in a real browser: a page of a foreign origin changes nothing on a worker, and reads nothing, unless
Connect's keys ``access.control.allow.*`` allow its origin. Needs Debian's ``chromium``."""

import asyncio
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from coterie.rest.access import AccessRules
from coterie.rest.cross_origin import CrossOriginRules
from tests.rest.served import ServedCluster, ServedWorker

pytestmark = pytest.mark.timeout(240)

PAGE = """<!doctype html><meta charset="utf-8"><iframe name="target"></iframe><pre id="results"></pre><script>
const worker = "%s";
const config = {"connector.class": "simulated.Source", "tasks.max": "1"};
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
  "text": () => fetch(worker + "/connectors", {method: "POST", mode: "no-cors",
    body: JSON.stringify({name: "forged-text", config})}),
  "json no-cors": () => fetch(worker + "/connectors", {method: "POST", mode: "no-cors", headers: json,
    body: JSON.stringify({name: "forged-no-cors", config})}),
  "bodyless": () => fetch(worker + "/connectors/kept/restart?includeTasks=true", {method: "POST", mode: "no-cors"}),
  "json": () => fetch(worker + "/connectors", {method: "POST", headers: json,
    body: JSON.stringify({name: "forged-cors", config})}),
  "delete": () => fetch(worker + "/connectors/kept", {method: "DELETE"}),
  "read": () => fetch(worker + "/connectors"),
};
(async () => {
  const results = {};
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
    async with ServedCluster() as cluster:
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


async def visit(site: ForeignSite, worker: ServedWorker, profile: Path) -> dict[str, object]:
    """What each attempt of the page reached, in a browser that opens it: a status, 0 for a response that the page
    cannot read, or the name of an error."""
    site.page = re.sub("%s", worker.url, PAGE)
    browser = await asyncio.create_subprocess_exec(
        chromium(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
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
    assert (await worker.ask("POST", "/connectors", body)).status_code == 201
    await worker.until_running("kept", 1)


async def test_a_page_of_a_foreign_origin_changes_and_reads_nothing(
    cluster: ServedCluster, site: ForeignSite, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = await cluster.serve()
    await create_kept(worker)
    caplog.set_level(logging.INFO, "coterie.audit")
    caplog.clear()
    starts = list(worker.running.runtime.starts)
    results = await visit(site, worker, tmp_path)
    opaque, refused = 0, "TypeError"
    assert results == {
        "form": "sent",
        "text": opaque,
        "json no-cors": opaque,
        "bodyless": opaque,
        "json": refused,
        "delete": refused,
        "read": refused,
    }
    assert (await worker.get("/connectors")).json() == ["kept"]
    assert worker.running.runtime.starts == starts, "no task was restarted"
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "coterie.audit"]
    # Each mutation that the browser sent is refused, those with another body than JSON for their type before the audit.
    assert {(line["operation"], line["status"]) for line in lines} == {("restart_connector", 403)}


async def test_a_page_of_an_allowed_origin_may_use_the_allowed_methods(
    cluster: ServedCluster, site: ForeignSite, tmp_path: Path
) -> None:
    rules = CrossOriginRules(allowed_origins=(site.origin,), allowed_methods=("GET", "POST"))
    worker = await cluster.serve(access=AccessRules(cross_origin=rules))
    await create_kept(worker)
    results = await visit(site, worker, tmp_path)
    assert (results["json"], results["read"], results["delete"]) == (201, 200, "TypeError")
    assert sorted((await worker.get("/connectors")).json()) == ["forged-cors", "kept"]
