"""A private Space: every request shows a token.

Without ``$OPENENV_BASE_URL`` this starts a local server that asks for the token, in the place of a Space. With a Space
of your own::

    OPENENV_BASE_URL=https://you-walk.hf.space HF_TOKEN=hf_… python examples/openenv_private_space.py
"""

import os
from contextlib import nullcontext

from openenv_servers import OURS, serving

from openenv_gym import GenericEnvClient, RemoteVecEnv
from openenv_gym.errors import Unauthorized


def main():
    """Use the Space in both ways, and show what a wrong token gives."""
    token = os.environ.get("HF_TOKEN", "a-token-for-the-local-server")
    given = os.environ.get("OPENENV_BASE_URL")
    local = serving(*OURS, "--token-env", "SPACE_TOKEN", SPACE_TOKEN=token)
    with nullcontext(given) if given else local as url:
        with RemoteVecEnv(url, num_envs=2, token=token) as env:  # sent as "Authorization: Bearer …"
            places, _ = env.reset()
            places, rewards, *_ = env.step([1, 1])
            print(f"places={places.tolist()} rewards={rewards.tolist()}")
        with GenericEnvClient(url, headers={"Authorization": f"Bearer {token}"}) as client:
            client.reset()
            print(client.step({"to": "right"}).observation)
        try:
            RemoteVecEnv(url, num_envs=2, token="wrong")
        except Unauthorized as error:
            print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
