"""Parts of URLs: logins, which are sent but never shown, origins, and texts for display."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote, urlsplit, urlunsplit

from runner.util.display_text import mask, one_line


def safe_url(url: str) -> str:
    """Return a URL for display: without login and query, with secrets masked."""
    parts = urlsplit(url)
    return one_line(mask(urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))))


def url_origin(url: str) -> str:
    """Keeps the scheme, login, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def split_login(url: str) -> tuple[str, str]:
    """Return a URL without its user and password, and these in the Base64 form of ``Authorization``, else empty."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    user, _, password = userinfo.partition(":")
    login = b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), login
