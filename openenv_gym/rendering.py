"""The render modes of remote envs: what can be asked for, and what comes of it.

Frames are drawn on the server and travel as arrays. No mode draws on the learner's screen by itself: for
``render_mode="human"`` ``gym.make`` puts ``gymnasium.wrappers.HumanRendering`` around the env, because the classes here
don't list that mode; other constructors refuse it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from openenv_gym.errors import OptionError, RemoteProtocolError
from openenv_gym.spaces.fields import DTYPES

__all__ = ["METADATA", "NO_FRAMES", "check_render_mode", "frame_from_json", "metadata_here"]

METADATA: Final[dict[str, Any]] = {"render_modes": ["rgb_array", "depth_array", "ansi"], "render_fps": 30}
"""What is known of an env before its server was asked. ``gym.make`` makes ``human`` and lists of frames from these."""

NO_FRAMES: Final = 'there is nothing to render: the env was made without a render mode, such as render_mode="rgb_array"'
"""What is told instead of what envs say about it themselves, which only their server hears."""


def check_render_mode(mode: str | None, wrapper: str) -> None:
    """Refuse a mode that would draw on the server's screen.

    Args:
        mode: the mode that the user asks for.
        wrapper: the class that shows frames in a window.

    Raises:
        OptionError: for ``human``.
    """
    if mode == "human":
        raise OptionError(
            f'render_mode="human" would open a window on the server; take render_mode="rgb_array" and wrap the env in '
            f"{wrapper}, which opens one here"
        )


def metadata_here(
    remote: Mapping[str, Any], asked: str | None, warn: Callable[[str], None]
) -> tuple[dict[str, Any], str | None]:
    """The metadata that an env has here, and its render mode.

    Args:
        remote: the metadata that the server sent, with the render mode that its envs run in.
        asked: the render mode that the user asked for.
        warn: called if the envs don't have it.

    Returns:
        a dict of the caller's own, without ``human``, and the mode that the envs run in.
    """
    metadata = {key: value for key, value in remote.items() if key != "render_mode"}
    metadata["render_modes"] = [mode for mode in metadata.get("render_modes") or () if mode != "human"]
    mode = remote.get("render_mode")
    if asked is not None and mode != asked:
        known = ", ".join(map(str, metadata["render_modes"])) or "none"
        warn(f"the server's env renders in mode {mode}, not {asked}; its render modes are: {known}")
    elif asked is not None and asked not in metadata["render_modes"]:
        known = ", ".join(map(str, metadata["render_modes"])) or "none"
        warn(f"the server's env took the render mode {asked}, but says that its render modes are: {known}")
    return metadata, None if mode == "human" else mode


def frame_from_json(data: Any) -> Any:
    """What an env rendered, as our servers send it in JSON: an array as dtype, shape and base64, a text, or a list.

    Args:
        data: JSON data from a peer, trusted in nothing.

    Raises:
        RemoteProtocolError: for an array that doesn't hold what it says.
    """
    if isinstance(data, list):
        return [frame_from_json(item) for item in data]
    if not isinstance(data, dict):
        return data
    try:
        dtype = DTYPES[data["dtype"]].newbyteorder("<")
        values = np.frombuffer(base64.b64decode(data["base64"], validate=True), dtype)
        return values.reshape([int(size) for size in data["shape"]]).astype(dtype.newbyteorder("="))
    except (KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(f"a frame is malformed: {error}") from None
