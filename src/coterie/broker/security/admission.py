"""What the broker knows of who may come in, what they may do and how much of it, in one place."""

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
    """Made once a broker, before it listens."""

    def __init__(self, settings: BrokerSettings) -> None:
        """:raises WorldError: names the file that is missing or no good."""
        security = settings.security
        self.users = Users(settings.users_path)
        if security.protocol.has_sasl:
            # A broker that could let nobody in does not start.
            self.users.names()
        self.denials = Denials()
        self.faults = LineLimit()
        """Of the log's lines on peers that break the protocol, by address and line."""
        self.budgets = Budgets(settings.principal_in_flight_size_max)
        self._tls: Watched[ssl.SSLContext] | None = None
        self._rules: Watched[Rules] | None = None
        if security.protocol.has_tls:
            paths = [path for path in (security.certificate_path, security.key_path, security.client_ca_path) if path]
            self._tls = Watched("the TLS certificates", paths, lambda: server_context(security))
        if (acl_path := security.acl_path) is not None:
            self._rules = Watched("the access rules", [acl_path], lambda: read_rules(acl_path))

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What a new connection is secured with; None: it is not."""
        return self._tls.value if self._tls is not None else None

    @property
    def rules(self) -> Rules | None:
        """None: everybody who is in may do everything."""
        return self._rules.value if self._rules is not None else None

    @property
    def watched(self) -> Sequence[Watched[ssl.SSLContext] | Watched[Rules]]:
        return [one for one in (self._tls, self._rules) if one is not None]
