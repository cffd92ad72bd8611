"""The exception that refuses a request of the connect protocol."""

from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.errors import Refusal


class ConnectRefusal(Refusal):
    """Refuses a request with the error code ``error``; ``message`` says what is wrong and what to do."""

    def __init__(self, error: ConnectErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
