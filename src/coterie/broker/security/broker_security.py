"""The broker's security state: TLS context, users, ACLs, and the budgets of bytes in flight."""

import ssl
from collections.abc import Sequence

from coterie.broker.security.authentication_failures import AuthenticationFailureMessages
from coterie.broker.security.authorizer import Acls, read_acls
from coterie.broker.security.budget import PrincipalByteBudgets
from coterie.broker.security.users import BrokerUsersFile
from coterie.broker.settings import BrokerSettings, SecuritySettings
from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.tls import server_context
from coterie.nouns.errors import WorldError
from coterie.nouns.log_rate_limit import LogRateLimit


class BrokerSecurity:
    """The users, TLS certificates and access rules of one broker, and what limits its clients: the budgets of bytes in
    flight, and the limits of log messages about clients. Created before the broker listens."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Read the files that ``settings`` names.

        :raises WorldError: a file is invalid or, unless it is the users file, missing: the message names the file. Or
            the security protocol has TLS, and no certificate or no key is set.
        """
        security = settings.security
        self.users = BrokerUsersFile(settings.users_path)
        if security.protocol.has_sasl:
            # Raises an error at the start if the users cannot be read: no client could authenticate.
            self.users.read_names()
        self.authentication_failures = AuthenticationFailureMessages()
        self.protocol_error_rate_limit = LogRateLimit()
        """Limits the log messages about peers that break the protocol, by address and kind of error."""
        self.budgets = PrincipalByteBudgets(settings.principal_in_flight_size_max)
        """The budgets of bytes in flight: one for each principal, or for each IP address whose clients are not
        authenticated."""
        self._tls: ReloadedFiles[ssl.SSLContext] | None = None
        self._acls: ReloadedFiles[Acls] | None = None
        if security.protocol.has_tls:
            paths = [path for path in (security.certificate_path, security.key_path, security.client_ca_path) if path]
            self._tls = ReloadedFiles("TLS certificates", paths, lambda: _tls_context(security))
        if (acl_path := security.acl_path) is not None:
            self._acls = ReloadedFiles("access rules", [acl_path], lambda: read_acls(acl_path))

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context for new connections, from the newest valid certificates and key; None without TLS."""
        return self._tls.value if self._tls is not None else None

    @property
    def acls(self) -> Acls | None:
        """The access rules from the newest valid version of their file; None if the settings name no file: then every
        client may do everything."""
        return self._acls.value if self._acls is not None else None

    @property
    def reloaded_files(self) -> Sequence[ReloadedFiles[ssl.SSLContext] | ReloadedFiles[Acls]]:
        """The certificates and the access rules, as far as the settings name them: the caller must run
        :meth:`ReloadedFiles.run` of each, which reads changed files again."""
        return [one for one in (self._tls, self._acls) if one is not None]


def _tls_context(security: SecuritySettings) -> ssl.SSLContext:
    """The TLS context of the broker's listener. Client certificates are required if a CA for them is configured.

    :raises WorldError: a file is missing or invalid, or the certificate or the key is not set.
    """
    if security.certificate_path is None or security.key_path is None:
        raise WorldError("TLS needs a certificate and its key: set both --tls-certificate and --tls-key")
    return server_context(security.certificate_path, security.key_path, client_ca=security.client_ca_path)
