"""Certificates for tests, made with the `openssl` command: an authority, a broker on loopback, a client."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, each a PEM file."""

    certificate: Path
    key: Path

    @property
    def both(self) -> Path:
        """Key and certificate in one PEM file, as Kafka's own keystores of type PEM have them."""
        path = self.certificate.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path


class Authority:
    """Signs a test's certificates; the other side trusts the authority's own certificate."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._own = Pair(folder / "ca.pem", folder / "ca.key")
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self._own.key, "-out", self._own.certificate,
            "-subj", f"/CN={name}", "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def pair(self, name: str, *, subject: str = "/CN=localhost", host: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
        """A certificate for ``subject``, valid for a server at ``host`` and for a client."""
        made = Pair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={host}\nextendedKeyUsage=serverAuth,clientAuth\n")
        _openssl("req", "-new", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", subject)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self._own.certificate, "-CAkey", self._own.key, "-CAcreateserial",
            "-days", "2", "-extfile", extensions, "-out", made.certificate,
        )  # fmt: skip
        return made


def encrypted(key: Path) -> Path:
    """A copy of ``key`` that is encrypted with a password."""
    path = key.with_suffix(".encrypted")
    _openssl("ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", path)
    return path


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
