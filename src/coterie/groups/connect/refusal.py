"""The exception that refuses a request of the connect protocol."""

from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.errors import Refusal


class ConnectRefusal(Refusal):
    """Refuses a request with the error code ``error``. ``message`` describes the error for the operator of the worker
    or client that has sent the request."""

    def __init__(self, error: ConnectErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
