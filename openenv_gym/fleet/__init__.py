"""Environment servers on many machines: who starts them, and where they are."""

from openenv_gym.launcher import Launcher, ServerAddress, StaticLauncher

__all__ = ["Launcher", "ServerAddress", "StaticLauncher"]
