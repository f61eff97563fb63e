"""Refusals on the wire: a status, a sentence, and OpenAI's error shape."""

from typing import Any

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A request that gets no (whole) answer.

    status: HTTP status. code: a word for programs. param: the parameter at fault.
    retry_after: seconds, for 429 and 503.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """The JSON body, as OpenAI's clients expect it."""
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _TYPES.get(self.status, default)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
