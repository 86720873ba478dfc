"""The environment of this Space: any Gymnasium id, or `module:callable` of a module beside this file."""

import os

from openenv_gym.server import create_app

app = create_app(os.environ.get("ENV", "CartPole-v1"), max_envs=64, token=os.environ.get("OPENENV_GYM_TOKEN") or None)
