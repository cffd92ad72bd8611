"""A worker that the broker refuses logs that once, and ends."""

import subprocess
import sys
from pathlib import Path

from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.certificates import Authority


def output_of_worker(tmp_path: Path, port: int, authority: Authority, password: str) -> list[str]:
    """The lines that a worker of the user prints, which must end by itself."""
    file = tmp_path / "worker.properties"
    file.write_text(
        f"""
        bootstrap.servers=localhost:{port}
        security.protocol=SASL_SSL
        sasl.mechanism=SCRAM-SHA-512
        sasl.username={USER}
        sasl.password={password}
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
    return run.stderr.splitlines()


def test_a_wrong_password_ends_a_worker_with_one_line(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    with secured_broker(tmp_path, "SASL_SSL", authority=authority) as broker:
        assert output_of_worker(tmp_path, broker.port, authority, "a wrong one") == [
            f"coterie: the broker at localhost:{broker.port} rejects the user {USER}: Authentication failed: "
            "the user name or the password is wrong; check sasl.username and sasl.password"
        ]


def test_a_missing_right_to_the_transactional_id_ends_a_worker_with_one_line(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    rules = f"allow User:{USER} all topic:*\nallow User:{USER} all group:*\n"
    with secured_broker(tmp_path, "SASL_SSL", authority=authority, rules=rules) as broker:
        assert output_of_worker(tmp_path, broker.port, authority, PASSWORD) == [
            "coterie: the brokers do not allow this worker to write with the transactional id "
            "connect-cluster-workers, with which the leader of the group writes to the config topic: give the worker's "
            "user the operations Write and Describe for this transactional id"
        ]
