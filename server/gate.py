"""Who may come in: the token, the page's cookie, and the Origin header. No threads and no I/O here."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from openenv_gym.server.settings import ServerSettings

__all__ = ["Asked", "Gate"]

_COOKIE_S: Final = 12 * 3600
_OPEN: Final = "/health"
_OPEN_WEB: Final = frozenset({"/", "/web", "/web/"})  # "/" leads to the page
_STATIC: Final = "/web/static/"


class Asked(NamedTuple):
    """What is wanted, as far as it matters here.

    Attributes:
        kind: ``read`` for an HTTP request that changes nothing, ``write`` for another one, ``connect`` for a WebSocket.
        path: the path, without what a proxy put before it.
        headers: the headers, with names in lower case.
    """

    kind: Literal["read", "write", "connect"]
    path: str
    headers: Mapping[str, str]


class Gate:
    """The rules of admission.

    Without the page, only ``/health`` is open, and web pages are refused unless their origin is allowed. With it, its
    sign-in form, ``/`` that leads there, and its static files are open too. Whoever signs in gets a cookie that stands
    for the token for twelve hours. The page itself is a web page of this server's own origin; such are admitted if the
    server has a token, or if they name it by an address: a name could be another site's, that was pointed at this
    machine (DNS rebinding).

    The cookie holds its end and a signature with the token as key, so it is void when the token changes, and doesn't
    give the token away. A browser sends it by itself, so it only counts for what reads, and for what comes from
    an origin that is admitted.

    Args:
        settings: the server's settings.

    Attributes:
        cookie_name: the cookie's name; another one for each token, as a browser tells servers on one host not apart.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._token = settings.token.get_secret_value().encode() if settings.token is not None else None
        self._origins = frozenset(settings.allowed_origins)
        self._web = settings.web
        self.cookie_name = f"openenv-gym-{self._sign('name')[:8]}"

    def refusal(self, asked: Asked) -> tuple[int, str] | None:
        """The HTTP status and the reason to refuse something with; None to let it in."""
        is_http = asked.kind != "connect"
        if is_http and asked.path == _OPEN:
            return None
        origin = asked.headers.get("origin")
        if origin is not None and not self._admits(origin, asked.headers.get("host", "")):
            return 403, "this origin isn't allowed"
        if (is_http and self._is_open(asked.path)) or self.signed_in(asked):
            return None
        return 401, "the token is missing or wrong"

    def signed_in(self, asked: Asked) -> bool:
        """Whether something comes with the token, or with the cookie, or needs neither."""
        if self._token is None:
            return True
        scheme, _, shown = asked.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(shown.strip()):
            return True
        # An origin that isn't admitted doesn't come this far.
        meant = asked.kind == "read" or "origin" in asked.headers
        return self._web and meant and self._is_cookie(asked.headers.get("cookie", ""))

    def is_token(self, shown: str) -> bool:
        """Whether this is the token, in a time that doesn't tell how much of it is right."""
        return self._token is not None and secrets.compare_digest(shown.encode(), self._token)

    def cookie(self) -> tuple[str, int]:
        """A cookie's value, and for how many seconds it holds."""
        end = str(int(time.time()) + _COOKIE_S)
        return f"{end}.{self._sign(end)}", _COOKIE_S

    def _is_cookie(self, header: str) -> bool:
        try:
            cookie = SimpleCookie(header).get(self.cookie_name)
        except CookieError:
            return False
        end, _, signature = ("" if cookie is None else cookie.value).partition(".")
        signed = secrets.compare_digest(signature.encode(), self._sign(end).encode())
        return signed and end.isdecimal() and int(end) > time.time()

    def _sign(self, text: str) -> str:
        return hmac.new(self._token or b"", f"openenv-gym page {text}".encode(), hashlib.sha256).hexdigest()

    def _is_open(self, path: str) -> bool:
        return self._web and (path in _OPEN_WEB or path.startswith(_STATIC))

    def _admits(self, origin: str, host: str) -> bool:
        if origin in self._origins:
            return True
        own = urlsplit(origin)
        # Not the scheme: behind a proxy that ends TLS it is another one.
        same = self._web and own.scheme in {"http", "https"} and own.netloc.lower() == host.lower() != ""
        return same and (self._token is not None or _is_address(own.hostname or ""))


def _is_address(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
