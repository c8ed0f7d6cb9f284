"""What a client is told when something is wrong, in the shape of the API that it speaks.

Knows status codes and both shapes (OpenAI's and Anthropic's); not what went wrong.
"""

import json
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_implemented_error",
    503: "unavailable_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(HTTPException):
    """A refusal or a failure as a client hears of it.

    `param` names the field of the request, `code` is for programs. `retry_after` in seconds: trying again can help;
    without it clients are told not to repeat what failed on our side.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def __str__(self) -> str:
        return self.message


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path.startswith("/v1/messages")


def openai_error(error: ApiError) -> dict[str, Any]:
    """`{"error": {...}}` of the OpenAI API; also what a stream sends after its first byte."""
    kind = _OPENAI_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """`{"type": "error", ...}` of the Anthropic API; also the data of a stream's `error` event."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    where = f"{error.param}: " if error.param and error.param not in error.message else ""
    return {"type": "error", "error": {"type": kind, "message": where + error.message}, "request_id": request_id}


def error_headers(error: ApiError) -> Mapping[str, str]:
    """Whether and when the SDKs may repeat the request."""
    if error.retry_after is not None:
        return {"retry-after": str(error.retry_after)}
    return {"x-should-retry": "false"} if error.status >= 500 else {}


def error_response(path: str, error: ApiError, request_id: str) -> Response:
    """The whole answer, in the shape that belongs to the path."""
    body = anthropic_error(error, request_id) if is_anthropic(path) else openai_error(error)
    headers = dict(error_headers(error)) | ({"www-authenticate": "Bearer"} if error.status == 401 else {})
    return Response(
        json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace"),
        error.status,
        headers,
        media_type="application/json",
    )
