"""The server: any Gymnasium or OpenEnv environment over a WebSocket, in both dialects."""

from openenv_gym.extras import missing

try:
    from openenv_gym.server.app import create_app
except ModuleNotFoundError as error:
    raise missing(error, "server") from error
from openenv_gym.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]
