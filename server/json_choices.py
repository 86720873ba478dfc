"""What a client of the OpenEnv dialect chose, beside what its server's envs have: the form of values, and frames."""

from __future__ import annotations

from openenv_gym.errors import SpaceError
from openenv_gym.server.json_form import GymnasiumForm, JsonForm, Trimming
from openenv_gym.server.openenv_form import OpenEnvForm
from openenv_gym.server.openenv_messages import Options, misfit
from openenv_gym.server.registry import Registry

__all__ = ["form_of", "render_mode_of"]


def form_of(registry: Registry, options: Options | None = None) -> JsonForm:
    """How the values of a server's envs look.

    Args:
        registry: the server's sessions.
        options: what the client wants to be sent; None for everything.

    Raises:
        DialectError: if the options name what isn't there.
    """
    wanted = options or Options()
    trimming = Trimming(
        include=None if wanted.include is None else tuple(wanted.include),
        exclude=None if wanted.exclude is None else tuple(wanted.exclude),
        obs_dtype=wanted.obs_dtype,
        info_keys=None if wanted.info_keys is None else tuple(wanted.info_keys),
    )
    probe, models = registry.probe, registry.source.known_models
    try:
        if models is not None:
            return OpenEnvForm(models, trimming)
        return GymnasiumForm(probe.observation_space, probe.action_space, trimming)
    except SpaceError as error:
        raise misfit([], str(error), wanted.model_dump(exclude_unset=True)) from None


def render_mode_of(registry: Registry, asked: str | None) -> str:
    """The mode to render in so that a frame can be sent: the one that was asked for, if any was.

    Raises:
        DialectError: if there is none.
    """
    metadata = registry.probe.metadata
    current = metadata.get("render_mode")
    if current not in (None, "human") and asked in (None, current):
        return str(current)
    modes = metadata.get("render_modes") or []
    if registry.source.takes_render_mode:
        for mode in ("rgb_array", "ansi") if asked is None else (asked,):
            if mode in modes and mode != "human":
                return mode
    how = "" if asked is None else f" in the mode {asked!r}"
    problem = f"{registry.source.name} can't be rendered here{how}; its render modes are {list(modes)}"
    raise misfit(["render"], problem, True)
