"""The HTTP application: which routes there are, and how every failure becomes an answer in the right shape.

Knows no route from inside; what a route does is in its file.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from strata import __version__
from strata.errors import EngineError, RequestError, StrataError
from strata.server.access_log import AccessLog, bug_error, record_of, request_id_of, write_to_stderr
from strata.server.asking import as_api_error
from strata.server.errors import ApiError, error_response
from strata.server.field_errors import mistakes
from strata.server.guard import Guard
from strata.server.parts import Parts
from strata.server.routes import ROUTES
from strata.server.security import Rules

_SHOWN_ERRORS = 3  # of a body with many mistakes


def create_app(parts: Parts, rules: Rules, write_log: Callable[[str], None] = write_to_stderr) -> ASGIApp:
    """Everything between the socket and the engine's process."""
    return AccessLog(Guard(routes_of(parts), rules), write_log)


def routes_of(parts: Parts) -> FastAPI:
    """The routes alone, which know nothing of who may call them."""
    app = FastAPI(
        title="Strata", version=__version__, docs_url=None, redoc_url=None, openapi_url="/openapi.json",
        description="OpenAI's and Anthropic's APIs, and those of llama.cpp and vLLM, over one local model.",
    )  # fmt: skip
    for module_router in ROUTES:
        router: APIRouter = module_router(parts)
        app.include_router(router)
    app.add_exception_handler(HTTPException, _http_failure)
    app.add_exception_handler(StrataError, _strata_failure)
    app.add_exception_handler(RequestValidationError, _invalid_body)
    app.add_exception_handler(Exception, _bug)
    made = app.openapi
    app.openapi = lambda: _described(made())  # type: ignore[method-assign]
    return app


async def _http_failure(request: Request, failure: Exception) -> Response:
    if not isinstance(failure, ApiError):
        assert isinstance(failure, HTTPException)
        sentences = {
            404: f"there is no {request.url.path}; GET /openapi.json lists what there is",
            405: f"{request.method} is not what {request.url.path} takes",
        }
        allowed = dict(failure.headers or {})
        failure = ApiError(failure.status_code, sentences.get(failure.status_code, str(failure.detail)))
        answer = _answer(request, failure)
        answer.headers.update(allowed)
        return answer
    return _answer(request, failure)


async def _strata_failure(request: Request, failure: Exception) -> Response:
    if isinstance(failure, RequestError):
        return _answer(request, as_api_error(failure))
    return _answer(request, ApiError(500 if isinstance(failure, EngineError) else 400, str(failure)))


async def _invalid_body(request: Request, failure: Exception) -> Response:
    assert isinstance(failure, RequestValidationError)
    named = mistakes(failure.errors())
    shown = "; ".join(sentence for _, sentence in named[:_SHOWN_ERRORS])
    more = f"; and {len(named) - _SHOWN_ERRORS} more" if len(named) > _SHOWN_ERRORS else ""
    return _answer(request, ApiError(400, shown + more, param=named[0][0] or None))


async def _bug(request: Request, failure: Exception) -> Response:
    return _answer(request, bug_error(failure, request_id_of(request.scope)))


def _answer(request: Request, error: ApiError) -> Response:
    record = record_of(request.scope)
    record.end = record.end or f"error {error.status}"
    return error_response(request.url.path, error, request_id_of(request.scope))


def _described(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with our 400 in place of the framework's 422."""
    for path in document.get("paths", {}).values():
        for operation in path.values():
            responses = operation.get("responses", {})
            responses.pop("422", None)
            if operation.get("requestBody") or operation.get("parameters"):
                responses.setdefault("400", {"description": "The request cannot be served as asked."})
            responses.setdefault("401", {"description": "An API key is needed."})
            responses.setdefault("503", {"description": "The engine is not ready; Retry-After says when to ask again."})
    return document
