"""Who knows where servers are: the interface to whatever starts them, and the plainest one, a list of addresses."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from openenv_gym.dial import websocket_url
from openenv_gym.errors import ConnectFailed, OptionError

__all__ = ["Launcher", "ServerAddress", "StaticLauncher"]

_DNS: Final = "dns+"


class ServerAddress(NamedTuple):
    """Where a server is.

    Attributes:
        url: its URL now; another one after it was started anew.
        draining: whether it ends soon, and takes no new sessions.
    """

    url: str
    draining: bool = False


@runtime_checkable
class Launcher(Protocol):
    """Whatever starts servers, as the learner's side sees it.

    `openenv_gym.RemoteVecEnv` takes one in place of its URLs. It asks when it connects, when a connection broke, and
    every second or two in between, and lets its envs follow the servers.

    Attributes:
        token: the servers' token, or None.
    """

    @property
    def token(self) -> str | None:
        """See the class."""

    def servers(self) -> Mapping[str, ServerAddress]:
        """The servers by name, in an order that doesn't change for those that stay. May be called on any thread.

        Whatever it raises counts as a server that can't be reached: it is asked again.
        """


class StaticLauncher:
    """Servers that somebody else starts: their URLs, or DNS names that have the addresses of all of them.

    Args:
        urls: one URL or several. ``dns+ws://name:port`` (or ``dns+http``) stands for every address that the name has
            when it is asked for, such as those of a headless Service's pods on Kubernetes.
        token: the servers' token; None takes ``$OPENENV_GYM_TOKEN``.

    Raises:
        OptionError: for something that is no URL, no URL at all, and for ``dns+wss``: a certificate is made out to a
            name, not to an address.

    Example:
        >>> StaticLauncher("dns+ws://envs.training.svc:8000", token="...")
        StaticLauncher('dns+ws://envs.training.svc:8000')
    """

    def __init__(self, urls: str | Sequence[str], *, token: str | None = None) -> None:
        self.token = token
        self._urls = (urls,) if isinstance(urls, str) else tuple(urls)
        if not self._urls:
            raise OptionError("a launcher needs at least one URL")
        for url in self._urls:
            endpoint = websocket_url(url.removeprefix(_DNS))
            if url.startswith(_DNS) and endpoint.startswith("wss"):
                raise OptionError(f"{url}: TLS needs the servers' names, and here only their addresses would be known")

    def servers(self) -> dict[str, ServerAddress]:
        """See `Launcher.servers`. An address is its own name, and so is a URL.

        Raises:
            ConnectFailed: if a DNS name has no addresses now.
        """
        found = [found for url in self._urls for found in (_resolved(url) if url.startswith(_DNS) else [url])]
        return {url: ServerAddress(url) for url in dict.fromkeys(found)}

    def __repr__(self) -> str:
        return f"StaticLauncher({', '.join(map(repr, self._urls))})"


def _resolved(url: str) -> list[str]:
    """A URL for each address of the name in a ``dns+`` URL, in the addresses' order."""
    endpoint = websocket_url(url.removeprefix(_DNS))
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectFailed(endpoint, f"the name can't be resolved: {error}") from error
    addresses = sorted({(family, str(address[0])) for family, _, _, _, address in found})
    port = parts.port or 80
    hosts = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for _, host in addresses]
    return [parts._replace(netloc=host).geturl() for host in hosts]
