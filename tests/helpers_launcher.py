"""A launcher that knows what a test tells it."""

from openenv_gym.launcher import ServerAddress


class Listed:
    """A launcher whose servers a test sets."""

    token = None

    def __init__(self, **urls):
        self.listed = {name: ServerAddress(url) for name, url in urls.items()}
        self.asked = 0

    def servers(self):
        self.asked += 1
        if isinstance(self.listed, Exception):
            raise self.listed
        return self.listed

    def __repr__(self):
        return "Listed()"
