"""The HTTP client for model servers: finds the proxies and the logins of their URLs."""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from runner.inference.endpoints import sent_login
from runner.util.http_client import HttpClient, Route, parse_url

CONNECT_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Seconds to keep an unused connection to a model server."""

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class ModelHttpClient(HttpClient):
    """``HttpClient`` that uses the proxies of the environment, but none to servers on this machine."""

    def __init__(self) -> None:
        """Create the client of the running event loop."""
        super().__init__(KEEPALIVE_S, CONNECT_TIMEOUT_S)
        self._routes: dict[str, Route] = {}

    def find_route(self, url: str) -> Route:
        """Return the route to a URL, which may contain a login.

        Raises:
            aiohttp.InvalidURL: the URL cannot be used.
        """
        route = self._routes.get(url)
        if route is None:
            self._routes[url] = route = _find_route(url)
        return route


def _find_route(url: str) -> Route:
    import aiohttp

    try:
        target, proxy, headers = parse_url(url).with_user(None), _proxy_of(url), _login_header("Authorization", url)
        if proxy is None:
            return Route(target, headers)
        proxy_headers = _login_header("Proxy-Authorization", proxy)
        if target.scheme == "http":  # the proxy receives the request itself, and no request for a tunnel
            headers |= proxy_headers
        return Route(target, headers, parse_url(proxy).with_user(None), proxy_headers)
    except ValueError:  # the message quotes the URL
        raise aiohttp.InvalidURL("") from None


def _login_header(name: str, url: str) -> dict[str, str]:
    login = sent_login(url)
    return {name: f"Basic {login}"} if login else {}


def _proxy_of(url: str) -> str | None:
    """Return the URL of the proxy that the environment configures for a URL, or None."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or host in _THIS_MACHINE or proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
