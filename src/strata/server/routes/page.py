"""The page for people: static files of `server/web`, served to anybody; what the page asks for then needs the key."""

import mimetypes
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import APIRouter
from starlette.responses import Response

from strata.server.errors import ApiError
from strata.server.parts import Parts

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def router(parts: Parts) -> APIRouter:
    """The routes of this file."""
    routes = APIRouter(tags=["page"], include_in_schema=False)
    folder = files("strata.server").joinpath("web")

    @routes.head("/")  # Claude Code asks whether anybody is there
    @routes.get("/")
    async def page() -> Response:
        """The page."""
        return _file(folder, "index.html")

    @routes.get("/favicon.ico")
    async def icon() -> Response:
        """The page's icon."""
        return _file(folder, "favicon.ico")

    @routes.get("/assets/{name}")
    async def asset(name: str) -> Response:
        """A script, a style or an image of the page."""
        return _file(folder.joinpath("assets"), name)

    return routes


def _file(folder: Traversable, name: str) -> Response:
    """A file of a folder by its plain name."""
    found = folder.joinpath(name) if folder.is_dir() and name not in ("", ".", "..") and "\\" not in name else None
    if found is None or not found.is_file():
        raise ApiError(404, f"there is no {name[:100]!r} here; GET /openapi.json lists what there is")
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(found.read_bytes(), headers=HEADERS, media_type=kind)
