"""GET /v1/models: the one model that is served, in the words of OpenAI, vLLM, llama.cpp and Codex."""

import time
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from strata.engine.messages import ModelFacts
from strata.server.errors import ApiError
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.responding import json_response


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["models"])
    created = int(time.time())

    @routes.get("/v1/models")
    async def list_models() -> Response:
        """All models: one."""
        _, facts = parts.loaded()
        model = _model(parts.model_name, facts, created)
        page = {"has_more": False, "first_id": model["id"], "last_id": model["id"]}
        return json_response({"object": "list", "data": [model], "models": [_codex_model(model)], **page})

    @routes.get("/v1/models/{name:path}", responses={404: {"description": "There is no such model."}})
    async def get_model(name: str) -> Response:
        """The model if it is called so."""
        _, facts = parts.loaded()
        if name != parts.model_name:
            raise ApiError(
                404, f"there is no model {name!r}; this server has {parts.model_name!r}", "model", "model_not_found"
            )
        return json_response(_model(parts.model_name, facts, created))

    return routes


def _model(name: str, facts: ModelFacts, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": created,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
        "owned_by": "strata",
        "max_model_len": facts.context,
        "meta": {
            "n_ctx": facts.context,
            "n_ctx_train": facts.trained_context,
            "n_params": facts.parameters,
            "n_vocab": facts.vocabulary_size,
            "size": facts.weight_bytes,
        },
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"], "family": facts.family},
    }


def _codex_model(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "slug": model["id"],
        "name": model["id"],
        "display_name": model["id"],
        "context_window": model["max_model_len"],
        "supported_in_api": True,
    }
