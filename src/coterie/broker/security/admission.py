"""The broker's security state: TLS context, users, ACLs and byte budgets."""

import ssl
from collections.abc import Sequence

from coterie.broker.security.authorizer import Rules, read_rules
from coterie.broker.security.budget import Budgets
from coterie.broker.security.denials import Denials
from coterie.broker.security.line_limit import LineLimit
from coterie.broker.security.tls import server_context
from coterie.broker.security.users import Users
from coterie.broker.security.watched import Watched
from coterie.broker.settings import BrokerSettings


class Admission:
    """The security state of one broker; created before the broker listens."""

    def __init__(self, settings: BrokerSettings) -> None:
        """:raises WorldError: a file is missing or invalid; the message names the file."""
        security = settings.security
        self.users = Users(settings.users_path)
        if security.protocol.has_sasl:
            # Raises an error at the start if the users cannot be read: no client could authenticate.
            self.users.names()
        self.denials = Denials()
        self.faults = LineLimit()
        """Limits the log messages about peers that break the protocol, by address and error."""
        self.budgets = Budgets(settings.principal_in_flight_size_max)
        self._tls: Watched[ssl.SSLContext] | None = None
        self._rules: Watched[Rules] | None = None
        if security.protocol.has_tls:
            paths = [path for path in (security.certificate_path, security.key_path, security.client_ca_path) if path]
            self._tls = Watched("TLS certificates", paths, lambda: server_context(security))
        if (acl_path := security.acl_path) is not None:
            self._rules = Watched("access rules", [acl_path], lambda: read_rules(acl_path))

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of new connections; None without TLS."""
        return self._tls.value if self._tls is not None else None

    @property
    def rules(self) -> Rules | None:
        """The ACL entries; None: every client may do everything."""
        return self._rules.value if self._rules is not None else None

    @property
    def watched(self) -> Sequence[Watched[ssl.SSLContext] | Watched[Rules]]:
        return [one for one in (self._tls, self._rules) if one is not None]
