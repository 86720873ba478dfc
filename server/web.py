"""The server's page at ``/web``: its numbers, its envs' frames, and an env to try by hand.

The page is HTML from templates with a small script, and needs nothing from elsewhere: its Content-Security-Policy
allows no inline script and no other host. The env to try is reached over ``/ws``, as by any client in OpenEnv's
dialect.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from openenv_gym.server.gate import Asked, Gate
from openenv_gym.server.json_choices import form_of
from openenv_gym.server.openenv_messages import encoded
from openenv_gym.server.overview import Overview
from openenv_gym.server.registry import Registry
from openenv_gym.server.widgets import Widget, example, widget
from openenv_gym.version import __version__

__all__ = ["web_routes"]

logger = logging.getLogger(__name__)

_HERE: Final = Path(__file__).parent
_PERIOD_S: Final = 1.0
_FORM_BYTES: Final = 8192
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # with no-referrer, a form's Origin would be `null`
    "cache-control": "no-store",
}

_templates: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def web_routes(registry: Registry, gate: Gate) -> list[BaseRoute]:
    """The page's routes.

    Args:
        registry: the server's sessions.
        gate: who is let in; it stands before all of these but ``/web`` and ``/web/static``.
    """
    pages = _Pages(registry, gate)
    return [
        Route("/", pages.root),
        Route("/web", pages.show),
        Route("/web", pages.sign_in, methods=["POST"]),
        Route("/web/sign-out", pages.sign_out, methods=["POST"]),
        Route("/web/events", pages.events),
        Route("/web/frames/{session}/{env:int}", pages.frame),
        Mount("/web/static", StaticFiles(directory=_HERE / "static")),
    ]


class _Pages:
    def __init__(self, registry: Registry, gate: Gate) -> None:
        self._registry = registry
        self._gate = gate
        self._overview = Overview(registry)

    async def root(self, _: Request) -> Response:
        return RedirectResponse("web", 303)

    async def show(self, request: Request) -> Response:
        """The page, or the form to sign in."""
        if not self._gate.signed_in(_asked(request)):
            return self._sign_in_form()
        return self._html("page.html", {**self._about(), "has_token": self._registry.settings.token is not None})

    async def sign_in(self, request: Request) -> Response:
        """Give a cookie for the token."""
        body = (await request.body())[:_FORM_BYTES]
        shown = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
        if not self._gate.is_token(shown):
            self._registry.counts.failed("UNAUTHORIZED")
            logger.info("a sign-in was refused", extra={"client": request.client.host if request.client else "?"})
            return self._sign_in_form("That isn't this server's token.", 401)
        value, seconds = self._gate.cookie()
        return self._with_cookie(request, value, seconds)

    async def sign_out(self, request: Request) -> Response:
        """Take the cookie back."""
        return self._with_cookie(request, "", 0)

    async def events(self, _: Request) -> Response:
        """The numbers once a second, as server-sent events, as long as somebody looks."""
        headers = {**_HEADERS, "x-accel-buffering": "no"}  # nginx would hold the events back
        return StreamingResponse(self._looks(), media_type="text/event-stream", headers=headers)

    async def frame(self, request: Request) -> Response:
        """What an env of a session shows now, as PNG; nothing if the session is gone, busy, or draws nothing."""
        image = await self._overview.frame(request.path_params["session"], request.path_params["env"])
        if image is None:
            return Response(status_code=204, headers=_HEADERS)
        return Response(image, media_type="image/png", headers=_HEADERS)

    async def _looks(self) -> AsyncIterator[str]:
        while not self._registry.draining:
            yield f"data: {msgspec.json.encode(await self._overview.look()).decode()}\n\n"
            await self._registry.pause(_PERIOD_S)

    def _about(self) -> dict[str, Any]:
        registry, probe = self._registry, self._registry.probe
        schema = json.loads(encoded(form_of(registry).schemas()))["action"]
        hosted = registry.source.openenv
        return {
            "name": registry.source.name,
            "version": __version__,
            "description": probe.description,
            "spaces": None if hosted else (str(probe.observation_space), str(probe.action_space)),
            "action": Widget("json", "", text=example(schema)) if hosted else widget(probe.action_space),
            "schema": json.dumps(schema, indent=2),
            "renders": _renders(registry),
            "hosted": hosted,
            "processes": registry.company.processes,
        }

    def _sign_in_form(self, problem: str = "", status: int = 200) -> Response:
        about = {"name": self._registry.source.name, "version": __version__, "problem": problem}
        return self._html("sign_in.html", about, status)

    def _html(self, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
        return HTMLResponse(_templates.get_template(template).render(values), status, _HEADERS)

    def _with_cookie(self, request: Request, value: str, seconds: int) -> Response:
        answer = RedirectResponse(f"{request.scope.get('root_path', '')}/web", 303, _HEADERS)
        answer.set_cookie(
            self._gate.cookie_name,
            value,
            max_age=seconds,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer


def _renders(registry: Registry) -> bool:
    metadata = registry.probe.metadata
    if metadata.get("render_mode") == "rgb_array":
        return True
    return "rgb_array" in (metadata.get("render_modes") or ()) and registry.source.takes_render_mode


def _asked(request: Request) -> Asked:
    return Asked("read", request.url.path, request.headers)
