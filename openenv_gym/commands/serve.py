"""``openenv-gym serve``: one environment, until Ctrl+C."""

from __future__ import annotations

import difflib
import errno
import functools
import importlib
import importlib.util
import ipaddress
import os
import signal
import socket
import sys
import textwrap
import traceback
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import gymnasium as gym
import typer
from pydantic import SecretStr, ValidationError

from openenv_gym.commands.common import (
    TokenEnv,
    TokenFile,
    import_namespace,
    keyword_arguments,
    read_token,
    refuse,
    refuse_missing,
)
from openenv_gym.errors import OpenEnvGymError, OptionError
from openenv_gym.local import plain
from openenv_gym.registered import spec_of
from openenv_gym.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Self

    from openenv_gym.server.registry import Registry
    from openenv_gym.server.run import Server

__all__ = ["serve"]


_SHORT: Final = 12
"""Characters of a token that is worth guessing."""


class _LogLevel(str, Enum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class _Mode(str, Enum):
    simulation = "simulation"
    production = "production"


def serve(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV_OR_FACTORY",
            help="CartPole-v1: a Gymnasium id. module:EnvId: an id that importing the module registers. "
            "module:callable: a class or function that returns an env. module:app: what create_app returned.",
        ),
    ],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    max_envs: Annotated[int, typer.Option(help="Envs that exist at a time, over all clients.")] = 1024,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that share the envs, behind one address: for envs that compute.")
    ] = 1,
    max_workers: Annotated[
        int | None,
        typer.Option(help="Threads that run envs, in each process: for envs that wait.", show_default="automatic"),
    ] = None,
    token_env: TokenEnv = None,
    token_file: TokenFile = None,
    env_kwargs: Annotated[
        str, typer.Option(metavar="JSON", help="Keyword arguments for the env: '{\"size\": 3}'.")
    ] = "{}",
    idle_timeout_s: Annotated[float, typer.Option(help="Seconds until an idle session is closed; 0: never.")] = 3600.0,
    grace_s: Annotated[float, typer.Option(help="Seconds that a session outlives a broken connection.")] = 60.0,
    max_step_s: Annotated[float, typer.Option(help="Seconds for one step or reset of an env; 0: no limit.")] = 0.0,
    opening_timeout_s: Annotated[float, typer.Option(help="Seconds for a request, and for a first message.")] = 30.0,
    shutdown_s: Annotated[float, typer.Option(help="Seconds that running steps have to end at shutdown.")] = 5.0,
    max_message_size_mb: Annotated[float, typer.Option(help="The largest message, in MiB.")] = 100.0,
    ping_interval_s: Annotated[float, typer.Option(help="Seconds between pings; 0: no pings.")] = 60.0,
    ping_timeout_s: Annotated[float, typer.Option(help="Seconds to wait for a pong; 0: no limit.")] = 60.0,
    allow_call: Annotated[str, typer.Option(metavar="A,B", help="Methods that clients may call; *: all.")] = "",
    allow_set: Annotated[str, typer.Option(metavar="A,B", help="Attributes that clients may set; *: all.")] = "",
    allow_get: Annotated[str, typer.Option(metavar="A,B", help="Attributes that clients may read; *: all.")] = "*",
    allow_origin: Annotated[list[str] | None, typer.Option(help="Origin of web pages to admit; repeatable.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file with the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with its key.")] = None,
    mode: Annotated[_Mode, typer.Option(envvar="OPENENV_MODE", help="Whether /reset and /step are served.")] = (
        _Mode.simulation
    ),
    no_web: Annotated[bool, typer.Option("--no-web", help="Serve no page at /web.")] = False,
    log_level: Annotated[_LogLevel, typer.Option(help="The least level of events that are logged.")] = _LogLevel.info,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log each event as a line of JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks, here and to clients.")] = False,
) -> None:
    """Serve a Gymnasium or OpenEnv environment until Ctrl+C.

    Modules are looked for in the current folder, too. Examples:

    openenv-gym serve CartPole-v1 --port 8001

    openenv-gym serve my_env:Corridor --env-kwargs '{"length": 10}' --workers 4

    openenv-gym serve my_walk:app --host 0.0.0.0
    """
    with _Ending() as ending:
        options = _options(locals())  # by the names that ServerSettings has for them
        _log(log_level, log_json)
        sys.path.insert(0, str(Path.cwd()))
        application, configuration = _built(env, options, debug)
        listener = _listener(host, port)
        how = _how(tls_cert, tls_key)
        registry = application.state.registry

        def announce() -> None:
            _announce(registry, listener, host, workers, tls=tls_cert is not None)

        server = _server(application, announce, how)
        if workers == 1:
            ending.end = functools.partial(setattr, server, "should_exit", True)
            server.run(sockets=[listener])
        else:
            typer.echo(f"starting {workers} processes …", err=True)
            configuration["log"] = {"level": log_level.value, "as_json": log_json}
            _supervise(ending, configuration, workers, listener, registry.settings, announce=announce, how=how)


# -------------------------------------------------------------------------------------------------- what is given


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The command's arguments as `openenv_gym.server.settings.ServerSettings` takes them."""
    try:
        from openenv_gym.server.settings import ServerSettings
    except ModuleNotFoundError as error:
        refuse_missing(error, "server")
    options = {name: given[name] for name in ServerSettings.model_fields if name in given}
    for name in ("idle_timeout_s", "max_step_s", "ping_interval_s", "ping_timeout_s"):
        options[name] = options[name] or None
    for name in ("allow_call", "allow_set", "allow_get"):
        options[name] = _names(options[name])
    options["allowed_origins"] = given["allow_origin"] or ()
    options["web"] = not given["no_web"]
    options["token"] = read_token(given["token_env"], given["token_file"])
    options["env_kwargs"] = keyword_arguments(given["env_kwargs"])
    try:
        ServerSettings(**options)
    except ValidationError as error:
        refuse("; ".join(f"--{str(e['loc'][0]).replace('_', '-')}: {e['msg']}" for e in error.errors()))
    return options


def _log(level: _LogLevel, as_json: bool) -> None:
    from openenv_gym.server.logs import configure

    configure(level.value, as_json=as_json)


def _names(text: str) -> frozenset[str] | None:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    return None if names == {"*"} else names


# ------------------------------------------------------------------------------------------------ what is started


class _Ending:
    """Makes Ctrl+C and SIGTERM end the command with exit code 0, however far it has come.

    Attributes:
        end: ends what runs, once it does.
    """

    def __init__(self) -> None:
        self.end: Callable[[], None] | None = None

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self)
        return self

    def __call__(self, *_: object) -> None:
        """Handle a signal. While it runs a server does so itself, and afterwards raises the signal once more."""
        if self.end is None:
            raise KeyboardInterrupt
        self.end()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is KeyboardInterrupt


def _built(env: str, options: dict[str, Any], debug: bool) -> tuple[Any, dict[str, Any]]:
    """The application, and how another process makes it (see `openenv_gym.server.parent.application`)."""
    from openenv_gym.server import create_app
    from openenv_gym.server.drawing import draw_unseen

    draw_unseen(os.environ)
    try:
        import_namespace(env)
        application = _application(env, options)
        if application is not None:
            return application, {"env": env, "app": env}
        return create_app(env, **options), {"env": env, "spec": spec_of(env), "options": plain(options)}
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        if debug:
            traceback.print_exc()
        if isinstance(error.__cause__, gym.error.UnregisteredEnv):
            refuse(f"unknown environment {env!r}: {_suggested(env, str(error.__cause__))}")
        text = str(error) if isinstance(error, OpenEnvGymError) else f"{type(error).__name__}: {error}"
        refuse(text if debug else f"{text} (--debug shows the traceback)")


def _application(name: str, options: dict[str, Any]) -> Any:
    """The application that ``package.module:app`` names, if it does, as ``create_app`` made it in that module.

    Raises:
        OptionError: if it is another one, or for options: an application has its own, a token among them.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return None
    from openenv_gym.server.settings import ServerSettings

    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception:  # noqa: BLE001 - `create_app` says what is wrong
        return None
    if found is None or isinstance(found, type) or not (hasattr(found, "state") and hasattr(found, "router")):
        return None
    if not hasattr(found.state, "registry"):
        raise OptionError(f"{name} wasn't made by openenv_gym.server.create_app: run it with `uvicorn {name}`")
    given, usual = ServerSettings(**options), ServerSettings()
    extra = [f"--{key.replace('_', '-')}" for key in options if getattr(given, key) != getattr(usual, key)]
    if extra:
        raise OptionError(f"{name} is an application with settings of its own: leave out {', '.join(extra)}")
    return found


def _suggested(env: str, reason: str) -> str:
    """Gymnasium's reason, with whole ids rather than the bare names that it suggests."""
    module, colon, name = env.rpartition(":")
    known = {id: id for id in gym.registry}
    if colon:
        known.update({key: f"{module}:{key}" for key, value in vars(sys.modules[module]).items() if callable(value)})
    close = [known[key] for key in difflib.get_close_matches(name, known)]
    own = "Write module:callable for one of your own, and module:EnvId for an id that importing the module registers."
    hint = f"Did you mean {' or '.join(close)}?" if close else own
    return f"{reason.partition(' Did you mean')[0]} {hint}"


def _listener(host: str, port: int) -> socket.socket:
    from openenv_gym.server.run import listen

    try:
        return listen(host, port)
    except OSError as error:
        hint = "; choose another with --port, or 0 for a free one" if error.errno == errno.EADDRINUSE else ""
        refuse(f"can't listen on {host} port {port}: {error.strerror}{hint}")


def _how(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """Arguments of `openenv_gym.server.run.make_server`: the certificate; all events go where ours do."""
    if key is not None and cert is None:
        refuse("--tls-key needs --tls-cert")
    paths = {"ssl_certfile": cert, "ssl_keyfile": key}
    given = {name: str(path) for name, path in paths.items() if path is not None}
    return {"log_level": None, "log_config": None, "last_resort": True, **given}


def _server(application: Any, announce: Callable[[], None], how: dict[str, Any]) -> Server:
    from openenv_gym.server.run import make_server

    server = make_server(application, application.state.registry.settings, on_started=announce, **how)
    try:
        server.config.load()
    except OSError as error:  # ssl.SSLError too
        refuse(f"--tls-cert and --tls-key can't be used: {error}")
    return server


def _supervise(ending: _Ending, *serving: Any, announce: Callable[[], None], how: dict[str, Any]) -> None:
    from openenv_gym.server.supervisor import Supervisor

    try:
        supervisor = Supervisor(*serving, on_started=announce, server=how)
        ending.end = supervisor.end
        supervisor.run()
    except OpenEnvGymError as error:
        refuse(str(error))


# -------------------------------------------------------------------------------------------------- what is said


def _announce(registry: Registry, listener: socket.socket, host: str, workers: int, *, tls: bool) -> None:
    settings, probe = registry.settings, registry.probe
    address, port = listener.getsockname()[:2]
    ip = ipaddress.ip_address(address)
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, host)  # noqa: S104 - compared, not bound
    url = f"{'https' if tls else 'http'}://{f'[{shown}]' if ':' in shown else shown}:{port}"
    if not ip.is_loopback:
        _warn_of_strangers(host, port, settings.token)
    elsewhere = ", and at every other address of this machine" if ip.is_unspecified else ""
    token = "not needed" if settings.token is None else "needed; a client takes it from $OPENENV_GYM_TOKEN"
    lines = (
        f"openenv-gym {__version__} serves {registry.source.name} at {url}{elsewhere}",
        f"  observations  {probe.problem or _short(probe.observation_space)}",
        f"  actions       {_short(probe.action_space) if probe.problem is None else 'see /schema'}",
        f"  capacity      {settings.max_envs} envs{'' if workers == 1 else f', in {workers} processes'}",
        f"  token         {token}",
        *([f"  page          {url}/web"] if settings.web else []),
        "Ctrl+C stops it.",
    )
    typer.echo("\n".join(lines))  # at once, for whoever reads may stop after the first line


def _warn_of_strangers(host: str, port: int, token: SecretStr | None) -> None:
    if token is None:
        why, what = "there is no token", "Give it one"
    elif len(token) < _SHORT:
        why, what = f"a token of {len(token)} characters can be guessed", "Give it a longer one"
    else:
        return
    text = f"WARNING: {host} lets other machines in, and {why}: whoever reaches port {port} can use this server."
    typer.secho(f"{text} {what} with --token-env or --token-file.", err=True, bold=True, fg="red")


def _short(space: gym.Space[Any]) -> str:
    return textwrap.shorten(str(space), 200, placeholder=" …")
