"""Request bodies as JSON, strictly: what two readers could understand differently is refused.

Knows JSON and HTTP 400; not what a request means.
"""

import codecs
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from strata.server.errors import ApiError

DEEPEST = 100  # levels of arrays and objects; a tool's schema has a dozen
LONGEST_INTEGER = 400  # digits; Python itself refuses above 4300, with an error of its own


class StrictRoute(APIRoute):
    """A route whose JSON body is read by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler over a request that reads JSON strictly."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        return parse(await self.body())


def parse(body: bytes) -> Any:
    """The value of a JSON text. ApiError 400 for anything else, with what is wrong and where."""
    if body.startswith(codecs.BOM_UTF8):
        raise _refusal("not valid JSON: it begins with a byte order mark (EF BB BF); leave it out")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refusal(f"not valid UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise _refusal(f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    _check(value, 0)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise _refusal(f"not usable: the key {name[:100]!r} stands twice in one object")
        made[name] = value
    return made


def _constant(name: str) -> Any:
    raise _refusal(f"not valid JSON: {name} is no number")


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_INTEGER:
        raise _refusal(f"not usable: a number has {len(digits)} digits; at most {LONGEST_INTEGER} work")
    return int(digits)


def _check(value: Any, depth: int) -> None:
    """Refuse depth, halves of surrogate pairs and numbers that became infinite (1e999)."""
    if depth > DEEPEST:
        raise _too_deep()
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check_text(name)
            _check(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth + 1)
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise _refusal("not usable: a number is larger than a double holds")


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _refusal(f"not usable: a string holds half of a surrogate pair at character {error.start}") from None


def _too_deep() -> ApiError:
    return _refusal(f"not usable: nested deeper than {DEEPEST} levels")


def _refusal(what: str) -> ApiError:
    return ApiError(400, f"the request's body is {what}", code="invalid_json")
