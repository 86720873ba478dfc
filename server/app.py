"""The FastAPI application: routes, and WebSockets handed to the dialects.

FastAPI is imported here and in `openenv_gym.server.openenv_routes` only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final

import msgspec
from fastapi import Body, FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError

from openenv_gym.messages import CONNECTIONS_HEADER, PROCESS_HEADER, SUBPROTOCOL
from openenv_gym.server import batch_dialect, harness, mcp_endpoint, openenv_dialect
from openenv_gym.server.admission import Admission
from openenv_gym.server.exact_messages import exact_errors
from openenv_gym.server.gate import Gate
from openenv_gym.server.hosting import Hosting
from openenv_gym.server.json_choices import form_of
from openenv_gym.server.json_sessions import JsonSessions
from openenv_gym.server.metrics import Metrics
from openenv_gym.server.openenv_messages import (
    DialectError,
    EnvMetadata,
    EnvState,
    Health,
    ResetRequest,
    Result,
    Schemas,
    StepRequest,
    error_list,
    options_from_query,
)
from openenv_gym.server.openenv_routes import CONTROL, FAILURES, add_openenv_routes, json_response
from openenv_gym.server.registry import Registry
from openenv_gym.server.stateless import reset_once, step_once
from openenv_gym.server.web import web_routes
from openenv_gym.spaces import describe

__all__ = ["create_app"]

logger = logging.getLogger(__name__)

_API_VERSION: Final = "1.0.0"
"""Version of OpenEnv's HTTP interface that is spoken here; ``openenv validate`` looks for it in /openapi.json."""

_STATUS: Final = {"VALIDATION_ERROR": 422, "CAPACITY_REACHED": 503, "SESSION_ERROR": 503}
"""HTTP status of an error code; 500 for the others, which are the env's."""


def create_app(  # noqa: PLR0917 - in the order of OpenEnv's own
    env: str | Callable[..., Any],
    action_cls: type[Any] | None = None,
    observation_cls: type[Any] | None = None,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: Any = None,
    **options: Any,
) -> FastAPI:
    """Build the server for one kind of environment: a Gymnasium env, or an OpenEnv environment.

    For OpenEnv environments this is the call that OpenEnv's own ``create_app`` takes. One env is built, looked at and
    closed before this returns, so that what can't be served is said here; an OpenEnv environment is also reset once,
    since its observation's shape is in no schema.

    Args:
        env: a Gymnasium id (``CartPole-v1``, ``module:EnvId``), ``package.module:callable``, or a callable that
            returns an env; for OpenEnv the environment's class or a factory. It may return a Gymnasium vector env, and
            is then called with those of ``num_envs``, ``autoreset_mode`` and ``render_mode`` that it has.
        action_cls: the pydantic model of an OpenEnv environment's actions; None takes the one that its class says.
        observation_cls: the model of its observations.
        env_name: the name to publish; None takes the env's own.
        max_concurrent_envs: OpenEnv's name for ``max_envs``.
        concurrency_config: OpenEnv's object with ``max_concurrent_envs`` and ``session_timeout``.
        **options: the fields of `openenv_gym.server.settings.ServerSettings`, such as ``max_envs``, ``max_workers``,
            ``token``; ``state_cls`` and ``reset_observation_cls``, as OpenEnv has them; and how the batch dialect sees
            an OpenEnv environment where that can't be inferred (see `openenv_gym.inference`): ``obs_key``,
            ``action_key``, ``observation_space``, ``action_space``.

    Returns:
        the ASGI application. Run it with ``openenv-gym serve``, or with uvicorn and ``ws="websockets-sansio"``,
        ``ws_per_message_deflate=False`` and ``ws_max_size`` of the same size as ``max_message_size_mb``.

    Raises:
        TypeError: for an env instance.
        OptionError: for an unknown option, a bad value, or more envs than an OpenEnv environment supports.
        FactoryError: if an env can't be built.
        SpaceError: if its spaces can't be described, naming the part.
    """
    named = {
        "env_name": env_name,
        "max_concurrent_envs": max_concurrent_envs,
        "concurrency_config": concurrency_config,
    }
    options |= {name: value for name, value in named.items() if value is not None}
    hosting = Hosting.of(env, action_cls, observation_cls, options)
    registry = Registry(hosting.source, hosting.settings)
    settings = registry.settings

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        registry.start()
        yield
        await registry.stop()

    app = FastAPI(
        title=registry.source.name,
        version=_API_VERSION,
        description="An environment server. Episodes run on the WebSocket endpoint /ws; these routes have no memory.",
        lifespan=lifespan,
    )
    app.state.registry = registry
    gate = Gate(settings)
    app.add_middleware(Admission, gate=gate, settings=settings, refused=registry.counts.failed)
    _add_error_handlers(app, exact=registry.source.openenv)
    _add_info_routes(app, registry)
    if registry.source.openenv:
        add_openenv_routes(app, registry)
    else:
        _add_gymnasium_info(app, registry)
        if settings.mode == "simulation":
            _add_gymnasium_control(app, registry)
    _add_metrics_route(app, registry)
    sessions = JsonSessions(registry)
    _add_mcp_routes(app, sessions)
    if settings.mode == "production" and registry.probe.agent:
        _add_harness(app, sessions)
    _add_websocket(app, sessions)
    if settings.web:
        app.router.routes += web_routes(registry, gate)
    return app


def _add_info_routes(app: FastAPI, registry: Registry) -> None:
    @app.get("/health", tags=["Health"])
    async def health() -> Health:
        """How the server is. Open to all, without a token."""
        processes = await registry.ask_all("snapshot")
        return Health(
            status="draining" if registry.draining else "healthy",
            active_envs=sum(process["active_envs"] for process in processes),
            max_envs=registry.capacity.maximum,
            sessions=sum(process["sessions"] for process in processes),
            processes=len(processes),
        )

    @app.get("/schema", tags=["Environment Info"], response_model=Schemas)
    async def schema(request: Request) -> Response:
        """JSON schemas of actions, observations and the state. Takes /ws's query parameters, such as `include`."""
        _, options = options_from_query(_query(request))
        return json_response(form_of(registry, options).schemas())


def _add_gymnasium_info(app: FastAPI, registry: Registry) -> None:
    @app.get("/metadata", tags=["Environment Info"])
    async def metadata() -> EnvMetadata:
        """What the environment is."""
        probe = registry.probe
        return EnvMetadata(
            name=registry.source.name,
            description=probe.description or f"The environment {registry.source.name}.",
            version=probe.version,
            render_modes=[str(mode) for mode in probe.metadata.get("render_modes") or []],
            render_fps=probe.metadata.get("render_fps"),
        )

    @app.get("/spaces", tags=["Environment Info"])
    async def spaces() -> dict[str, Any]:
        """The Gymnasium spaces, described as plain data."""
        return {
            "observation_space": describe(registry.probe.observation_space),
            "action_space": describe(registry.probe.action_space),
        }


def _add_gymnasium_control(app: FastAPI, registry: Registry) -> None:
    @app.post("/reset", tags=CONTROL, response_model=Result, responses=FAILURES)
    async def reset(request: Annotated[ResetRequest | None, Body()] = None) -> Response:
        """Build a fresh env, reset it, and close it. For episodes use /ws."""
        return json_response(await reset_once(registry, request or ResetRequest()))

    @app.post("/step", tags=CONTROL, response_model=Result, responses=FAILURES)
    async def step(request: StepRequest) -> Response:
        """Build a fresh env, reset it, step it once, and close it. For episodes use /ws."""
        return json_response(await step_once(registry, request))

    @app.get("/state", tags=CONTROL)
    async def state() -> EnvState:
        """The state of a fresh env, since there is no other behind this route. For an episode's state use /ws."""
        return EnvState(episode_id=None, step_count=0)


def _add_metrics_route(app: FastAPI, registry: Registry) -> None:
    metrics = Metrics(registry)

    @app.get("/metrics", tags=["Monitoring"])
    async def prometheus(request: Request) -> Response:
        """The server's numbers, for Prometheus."""
        text, media_type = await metrics.exposition(request.headers.get("accept", ""))
        return Response(text, media_type=media_type)


def _add_mcp_routes(app: FastAPI, sessions: JsonSessions) -> None:
    @app.post("/mcp", tags=["MCP"])
    async def mcp_request(request: Request) -> Response:
        """Answer a JSON-RPC 2.0 request of the Model Context Protocol."""
        return json_response(await mcp_endpoint.answer_text(sessions, await request.body()))

    @app.websocket("/mcp")
    async def mcp_socket(socket: WebSocket) -> None:
        """The same on a connection with an env of its own."""
        await _converse(socket, sessions, mcp_endpoint.converse)


def _add_harness(app: FastAPI, sessions: JsonSessions) -> None:
    @app.websocket("/harness")
    async def harness_socket(socket: WebSocket) -> None:
        """Talk to an agent that is this connection's own."""
        await _converse(socket, sessions, harness.converse)


async def _converse(socket: WebSocket, sessions: JsonSessions, converse: Callable[..., Awaitable[None]]) -> None:
    """Accept a connection, and have it served in texts until it ends."""
    try:
        await socket.accept()
        texts = _TextConnection(socket)
        await converse(sessions, texts, texts.receive)
    except ConnectionError as error:
        logger.debug("a connection ended: %s", error)


def _add_error_handlers(app: FastAPI, *, exact: bool) -> None:
    @app.exception_handler(DialectError)
    async def dialect_error(request: Request, error: DialectError) -> Response:
        """The same data as on the WebSocket; of a validation error only the list, as FastAPI has it."""
        if error.code == "VALIDATION_ERROR":
            where = "query" if request.method == "GET" else "body"
            errors = error.data.get("errors", [])
            return json_response(
                {"detail": errors if isinstance(errors, msgspec.Raw) else error_list(errors, where)}, 422
            )
        return json_response({"detail": error.data}, _STATUS.get(error.code, 500))

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> Response:
        """As FastAPI's own, which fails where the request holds a NaN."""
        return json_response({"detail": exact_errors(error.errors()) if exact else error_list(error.errors())}, 422)


def _add_websocket(app: FastAPI, sessions: JsonSessions) -> None:
    @app.websocket("/ws")
    async def websocket(socket: WebSocket) -> None:
        """A client that offers our subprotocol gets the batch dialect, any other OpenEnv's."""
        try:
            if SUBPROTOCOL in socket.scope["subprotocols"]:
                await socket.accept(subprotocol=SUBPROTOCOL, headers=_place(sessions.registry))
                frames = _Connection(socket)
                await batch_dialect.converse(sessions.registry, frames, frames.receive)
                await frames.close(1000, "closed")
            else:
                await socket.accept()
                texts = _TextConnection(socket)
                await openenv_dialect.converse(sessions, texts, texts.receive, _query(socket))
        except ConnectionError as error:
            logger.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            if not sessions.registry.draining:
                raise
            # The step that it waits for was given up at shutdown, which the client knows and the log says.
            logger.debug("a connection ended with the server")


def _place(registry: Registry) -> list[tuple[bytes, bytes]]:
    """Headers that say where a client came to, before it asks for anything."""
    company = registry.company
    place = {PROCESS_HEADER: company.process, CONNECTIONS_HEADER: 1 if registry.probe.vector else company.processes}
    return [(name.encode(), str(value).encode()) for name, value in place.items()]


def _query(request: Request | WebSocket) -> dict[str, str]:
    """The query's parameters; what is given several times is a list, which commas separate."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        query[name] = f"{query[name]},{value}" if name in query else value
    return query


class _Connection:
    """A WebSocket as the batch dialect sees it: no Starlette states, and one kind of error."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def receive(self) -> bytes:
        """The next binary message.

        Raises:
            ConnectionError: once the connection is gone, or if the message is text.
        """
        message = await self._next()
        if isinstance(message, str):
            await self.close(1003, "binary messages only")
            raise ConnectionError("a text message in the batch dialect")
        return message

    async def send(self, frame: bytes) -> None:
        await self._send({"type": "websocket.send", "bytes": frame})

    async def close(self, code: int, reason: str) -> None:
        try:
            await self._socket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect, OSError):
            logger.debug("closing a connection that is gone already")

    async def _next(self) -> bytes | str:
        try:
            message = await self._socket.receive()
        except (RuntimeError, WebSocketDisconnect) as error:
            raise ConnectionError(str(error)) from None
        if message["type"] == "websocket.disconnect":
            raise ConnectionError(f"closed with code {message.get('code')}")
        text: str | None = message.get("text")
        return bytes(message["bytes"]) if text is None else text

    async def _send(self, message: dict[str, Any]) -> None:
        try:
            await self._socket.send(message)
        except (RuntimeError, WebSocketDisconnect, OSError) as error:
            raise ConnectionError(str(error)) from None


class _TextConnection(_Connection):
    """A WebSocket as the OpenEnv dialect sees it: what it sends is text."""

    async def receive(self) -> bytes | str:  # type: ignore[override]
        """The next message, text or binary.

        Raises:
            ConnectionError: once the connection is gone.
        """
        return await self._next()

    async def send(self, frame: bytes) -> None:
        await self._send({"type": "websocket.send", "text": frame.decode()})
