"""An unmodified Kafka Connect worker as a process: started from Kafka's jars, used over HTTP, stopped or frozen."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.kafka.real_kafka import TIED_TO_ITS_PARENT
from tests.kafka.tools import Tools

DEADLINE_S = 100

_PROPERTIES: Mapping[str, str] = {
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "listeners": "http://127.0.0.1:0",
    "plugin.discovery": "service_load",
}


_BASIC_AUTH = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
_LOGIN_MODULE = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"


class JvmWorker:
    """One worker of Kafka Connect. Restart it only after :meth:`end`, which may be called at any time."""

    def __init__(
        self,
        tools: Tools,
        folder: Path,
        properties: Mapping[str, str],
        *,
        plugin_jars: Path | None = None,
        passwords: Mapping[str, str] | None = None,
    ) -> None:
        """``properties`` override those of every such worker; they name the brokers, group and topics.

        ``plugin_jars`` is the folder with the jars of its plug-ins. Unless ``passwords`` is None, only these users may
        use its REST API, with these passwords.
        """
        self._tools = tools
        self._plugin_jars = plugin_jars
        self._java_options: list[str] = []
        if passwords is not None:
            properties = {**properties, "rest.extension.classes": _BASIC_AUTH}
            self._java_options.append(f"-Djava.security.auth.login.config={_write_logins(folder, passwords)}")
        self._properties_path = folder / "jvm.properties"
        self._pid_path = folder / "jvm.pid"
        self.log = folder / "jvm.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._properties_path.write_text(
            "".join(f"{key}={value}\n" for key, value in {**_PROPERTIES, **properties}.items())
        )

    def start(self) -> None:
        """Start the process; returns at once."""
        command = self._tools.command(
            "connect-distributed",
            str(self._properties_path),
            log_level="INFO",
            java_options=self._java_options,
            further_jars=self._plugin_jars,
        )
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                ["sh", "-c", TIED_TO_ITS_PARENT, str(self._pid_path), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )

    @property
    def url(self) -> str | None:
        """Its REST URL, or None before it listens; with a slash at the end, as in the group's metadata."""
        advertised = re.search(r"advertising URL (\S+)", self.log.read_text())
        return advertised[1] if advertised else None

    def logged(self, sentence: str) -> bool:
        return sentence in self.log.read_text()

    def starts_of(self, task: str) -> int:
        """How often it has started ``task``, or tried to, since its own start."""
        return len(re.findall(rf"] Starting task {re.escape(task)}\s", self.log.read_text()))

    def wait_logged(self, sentence: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not self.logged(sentence):
            assert time.monotonic() < deadline_s, self.tail()
            time.sleep(0.1)

    def signal(self, number: signal.Signals) -> None:
        """SIGTERM stops its tasks, then it leaves the group and ends; SIGSTOP freezes it, SIGCONT resumes it."""
        os.kill(int(self._pid_path.read_text()), number)

    def tail(self) -> str:
        return self.log.read_text()[-4000:]

    def end(self) -> None:
        """Kill its remaining processes."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(DEADLINE_S)
            self._process = None


def _write_logins(folder: Path, passwords: Mapping[str, str]) -> Path:
    """Write the files with which users log in; returns the path of the one for Java."""
    users = folder / "jvm.users"
    users.write_text("".join(f"{user}={password}\n" for user, password in passwords.items()))
    logins = folder / "jvm.logins"
    logins.write_text(f'KafkaConnect {{ {_LOGIN_MODULE} required file="{users}"; }};\n')
    return logins
