"""Addresses of models and servers as the workers of a Ray cluster reach them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit, urlunsplit

import msgspec

from runner.errors import ConfigError
from runner.inference.endpoints import ollama_url, resolve_endpoints, safe_url
from runner.worker.runner_setup import RunnerSetup

LOCALHOST = "localhost"
"""Key of ``ray.addresses`` that stands for every loopback address."""
OLLAMA_VARIABLE = "OLLAMA_HOST"


def rewrite_setup(
    setup: RunnerSetup, addresses: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[RunnerSetup, dict[str, str]]:
    """Replace the hosts of models and servers in the settings of a batch.

    ``addresses`` is ``ray.addresses``. Return also the environment variables that the workers need for the settings.
    """
    server = setup.address
    if server is not None:
        server = msgspec.structs.replace(server, url=rewrite_url(server.url, addresses))
    if setup.models is None:
        return msgspec.structs.replace(setup, address=server), {}
    models = setup.models
    # An endpoint without a name is named after its host; the driver knows it by that name.
    names = models.endpoint_names[int(models.mode == "api") :]
    endpoints = tuple(
        msgspec.structs.replace(each, name=name, url=rewrite_url(each.url, addresses))
        for each, name in zip(models.endpoints, names, strict=False)
    )
    api_endpoint = rewrite_url(models.api_endpoint, addresses)
    rewritten = msgspec.structs.replace(models, api_endpoint=api_endpoint, endpoints=endpoints)
    uses_ollama = models.local_fallback is not None
    variables = {OLLAMA_VARIABLE: rewrite_url(ollama_url(environ), addresses)} if uses_ollama else {}
    return msgspec.structs.replace(setup, address=server, models=rewritten), variables


def rewrite_url(url: str, addresses: Mapping[str, str]) -> str:
    """An invalid URL is returned unchanged."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    by_name = {name.lower(): replacement for name, replacement in addresses.items()}
    replacement = by_name.get(host) or (by_name.get(LOCALHOST) if is_loopback(host) else None)
    if replacement is None:
        return url
    userinfo, at, _ = parts.netloc.rpartition("@")
    shown = f"[{replacement}]" if ":" in replacement else replacement
    netloc = f"{userinfo}{at}{shown}" + ("" if port is None else f":{port}")
    return urlunsplit(parts._replace(netloc=netloc))


def require_reachable(setup: RunnerSetup, variables: Mapping[str, str]) -> None:
    """Check that no address of the settings is one that every machine has for itself.

    The message of the ``ConfigError`` has the name and address of each that is.
    """
    found = [f"{name} at {safe_url(url)}" for name, url in _addresses(setup, variables) if is_loopback(_host(url))]
    if found:
        raise ConfigError(
            f"Workers on other machines of the Ray cluster cannot reach {', '.join(found)}; replace the host in the "
            "profile, or for the workers alone, e.g. with ray: {addresses: {localhost: 10.0.0.5}}"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, or the wildcard address that clients use as one."""
    if host == LOCALHOST or host.endswith(f".{LOCALHOST}"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or address.is_unspecified or (mapped is not None and mapped.is_loopback)


def _addresses(setup: RunnerSetup, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for endpoint in () if setup.models is None else resolve_endpoints(setup.models, variables):
        yield f"the model endpoint {endpoint.name}", endpoint.url
    if setup.address is not None:
        yield f"the server of {setup.env.name}", setup.address.url


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
