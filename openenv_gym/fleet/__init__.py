"""Environment servers on many machines: who starts them, and where they are.

The learner's side knows a `Launcher` only: give one to `openenv_gym.RemoteVecEnv` in place of URLs.
"""

from openenv_gym.fleet.ray_fleet import RayFleet
from openenv_gym.fleet.roster import FleetStatus, ServerStatus
from openenv_gym.launcher import Launcher, ServerAddress, StaticLauncher

__all__ = ["FleetStatus", "Launcher", "RayFleet", "ServerAddress", "ServerStatus", "StaticLauncher"]
