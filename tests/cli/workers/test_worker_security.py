"""A worker whose login to the broker fails logs that once, and ends."""

import subprocess
import sys
from pathlib import Path

from tests.broker.secured import USER, secured_broker
from tests.certificates import Authority


def test_a_wrong_password_ends_a_worker_with_one_line(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    file = tmp_path / "worker.properties"
    with secured_broker(tmp_path, "SASL_SSL", authority=authority) as broker:
        file.write_text(
            f"""
            bootstrap.servers=localhost:{broker.port}
            security.protocol=SASL_SSL
            sasl.mechanism=SCRAM-SHA-512
            sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
                username="{USER}" password="a wrong one";
            ssl.truststore.type=PEM
            ssl.truststore.location={authority.certificate}
            group.id=workers
            config.storage.topic=config
            offset.storage.topic=offset
            status.storage.topic=status
            checkpoint.location={tmp_path}
            listeners=http://127.0.0.1:0
            log.level=ERROR
            """
        )
        command = [sys.executable, "-m", "coterie", "worker", "-c", str(file)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        f"coterie: the broker at localhost:{broker.port} rejects the user {USER}: Authentication failed: "
        "the user name or the password is wrong; check sasl.username and sasl.password"
    ]
