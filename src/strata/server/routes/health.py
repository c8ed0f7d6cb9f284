"""GET /health and /v1/health: whether requests are served, in llama.cpp's words."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.responding import json_response

_UNAVAILABLE: dict[int | str, dict[str, Any]] = {503: {"description": "The model is not loaded, or was given up."}}


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["operation"])

    @routes.get("/health", responses=_UNAVAILABLE)
    @routes.get("/v1/health", responses=_UNAVAILABLE)
    async def health() -> Response:
        """200 if requests are served; 503 while the model is loaded, when the engine is lost, and while stopping."""
        condition = parts.service.condition
        if condition.is_ready:
            return json_response({"status": "ok"})
        error = {"code": 503, "message": str(condition.refusal()), "type": "unavailable_error"}
        progress = {"stage": condition.stage, "done": condition.done, "total": condition.total}
        return json_response({"error": error, "state": condition.phase.value, "progress": progress}, 503)

    return routes
