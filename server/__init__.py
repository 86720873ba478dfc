"""The server: any Gymnasium or OpenEnv environment over a WebSocket, in both dialects."""

from openenv_gym.server.app import create_app
from openenv_gym.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]
