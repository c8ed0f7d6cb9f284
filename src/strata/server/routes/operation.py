"""What a running server says about itself in the words of llama.cpp and Prometheus: /props, /slots, /metrics, ..."""

from typing import Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from strata import __version__
from strata.engine.messages import SlotView
from strata.sampling.options import SamplingOptions
from strata.server.errors import ApiError
from strata.server.json_body import StrictRoute
from strata.server.parts import Parts
from strata.server.responding import json_response

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(route_class=StrictRoute, tags=["operation"])

    @routes.get("/props")
    async def props() -> Response:
        """The model and what a request gets that says nothing."""
        text, facts = parts.loaded()
        usual = SamplingOptions(**parts.sampling_defaults)
        defaults = {name: getattr(usual, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        defaults["n_predict"] = usual.max_tokens or -1
        return json_response(
            {
                "default_generation_settings": {"n_ctx": facts.context, "params": defaults},
                "total_slots": facts.slots,
                "model_alias": parts.model_name,
                "model_path": facts.name,
                "chat_template": text.files.chat_template or "",
                "modalities": {"vision": False, "audio": False},
                "build_info": f"strata {__version__}",
                "is_sleeping": False,
            }
        )

    @routes.get("/slots", responses={503: {"description": "fail_on_no_slot was given and no slot is free."}})
    async def slots(fail_on_no_slot: int = Query(0)) -> Response:
        """What every slot does."""
        _, facts = parts.loaded()
        views = parts.service.statistics.slots if parts.service.statistics is not None else ()
        if fail_on_no_slot and parts.service.running >= facts.slots:
            raise ApiError(503, "no slot is free", code="no_slot_available", retry_after=1)
        return json_response([slot_json(view, facts.context) for view in views])

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Numbers for Prometheus."""
        return Response(parts.metrics.exposition(), media_type=_PROMETHEUS)

    @routes.get("/version")
    async def version() -> Response:
        """Of Strata."""
        return json_response({"version": __version__})

    @routes.get("/ping")
    async def ping() -> Response:
        """200 while the server runs."""
        return json_response({})

    return routes


def slot_json(view: SlotView, context: int) -> dict[str, Any]:
    """A slot as llama.cpp shows it, and as the monitor does."""
    return {
        "id": view.slot,
        "id_task": view.request_id if view.request_id is not None else -1,
        "n_ctx": context,
        "is_processing": view.phase not in ("idle", "waiting"),
        "phase": view.phase,
        "prompt_tokens": view.prompt_tokens,
        "read_tokens": view.read_tokens,
        "reply_tokens": view.reply_tokens,
        "kept_tokens": view.kept_tokens,
        "longest_gap_ms": round(view.longest_gap_ms, 3),
    }
