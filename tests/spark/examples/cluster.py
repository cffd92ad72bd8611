"""Commands of the pages for users, run by a shell unchanged except for ports."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from coterie.cli.fleet import HOST
from tests.cli.command import ENVIRONMENT
from tests.cli.waiting import wait_until
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[3]
TUTORIAL = REPOSITORY / "docs" / "tutorial.md"


def scripts(page: Path) -> list[str]:
    """The blocks of shell commands of a page, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


class Cluster:
    """A user's two terminals: one runs the cluster, the other one everything else."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.servers = f"{HOST}:{free_port()}"
        self.url = f"http://{HOST}:{free_port()}"
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, **ENVIRONMENT, "PATH": programs, **variables}
        self._output_path = folder / "output"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def logs(self) -> Path:
        return self.folder / "coterie-data" / "logs"

    def start(self, script: str) -> None:
        """Run a script that does not end; returns when its output states that the workers are up."""
        with self._output_path.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(script),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.folder,
                process_group=0,
            )
        process = self._process
        wait_until(lambda: "All workers are up." in self.output() or process.poll() is not None, "up", within_s=240)
        assert process.poll() is None, self.output()

    def interrupt(self) -> None:
        """Ctrl-C in the terminal of the cluster."""
        if self._process is None:
            return
        os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            raise

    def run(self, script: str) -> str:
        """Run a script to its end; returns what it printed."""
        ended = subprocess.run(
            self._command(script),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=self._environment,
            cwd=self.folder,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}{ended.stderr}{self.output()}"
        return ended.stdout

    def output(self) -> str:
        return self._output_path.read_text()

    def everything_logged(self) -> str:
        """What the cluster has printed and logged so far."""
        return self.output() + "".join(path.read_text(errors="replace") for path in sorted(self.logs.iterdir()))

    def _command(self, script: str) -> list[str]:
        """``script`` with the ports of this cluster."""
        broker, rest = (address.rpartition(":")[2] for address in (self.servers, self.url))
        script = script.replace("coterie up ", f"coterie up --broker-port {broker} --rest-port {rest} ")
        script = script.replace("127.0.0.1:9092", self.servers)
        script = re.sub(r"coterie connectors (\w+)", rf"coterie connectors \1 --url {self.url}", script)
        return ["sh", "-euc", script]
