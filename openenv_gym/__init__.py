"""openenv-gym: train on an environment anywhere as if it ran in your own process.

Importing this package registers ``openenv/Remote-v0`` with Gymnasium, for ``gym.make`` and ``gym.make_vec``. Without
the import, ``gym.make("openenv_gym:openenv/Remote-v0")`` does both.
"""

from pathlib import Path as _Path

import gymnasium as _gym

from openenv_gym import errors
from openenv_gym.client import EnvClient, GenericEnvClient, StepResult
from openenv_gym.env import RemoteEnv
from openenv_gym.local import LocalServer
from openenv_gym.sync_client import SyncEnvClient
from openenv_gym.tool_client import MCPToolClient
from openenv_gym.vector_env import RemoteVecEnv
from openenv_gym.version import __version__

__all__ = [
    "EnvClient",
    "GenericEnvClient",
    "LocalServer",
    "MCPToolClient",
    "RemoteEnv",
    "RemoteVecEnv",
    "StepResult",
    "SyncEnvClient",
    "__version__",
    "errors",
]

if not _Path(__file__).with_name("server").exists():  # a checkout, where the server is beside this folder
    __path__.append(str(_Path(__file__).parents[1]))

if "openenv/Remote-v0" not in _gym.registry:  # a reload must not warn
    _gym.register(
        "openenv/Remote-v0",
        entry_point="openenv_gym.env:RemoteEnv",
        vector_entry_point="openenv_gym.vector_env:RemoteVecEnv",
    )
