"""Every request to ``serve`` gets a documented reply; requests are random, or generated from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.serve.env_api import DIALECTS
from tests.support.serving import serve_environments

pytestmark = pytest.mark.long

PLAIN_ERRORS = {"SQLGym", "WebShop"}
ROUTES = ["/create", "/reset", "/step", "/close", "/observation", "/detail", "/available_actions", "/list_envs", "/x"]
ROUTES += ["/createEnv", "/filtered_vocab"]


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, httpx.Client]]:
    with serve_environments(list(DIALECTS), mode="compat", max_open=8) as urls:
        clients = {name: httpx.Client(base_url=url, timeout=60) for name, url in urls.items()}
        for name, client in clients.items():
            prefix, id_field = DIALECTS[name].prefix, DIALECTS[name].id_field
            client.post(f"{prefix}/create", json={})
            world = {"world_type": "Text"} if name == "ALFWorld" else {}
            client.post(f"{prefix}/reset", json={id_field: 0, DIALECTS[name].task_field: 0, **world})
        yield clients
        for client in clients.values():
            client.close()


def check_documented(name: str, reply: httpx.Response) -> None:
    """Check that a reply has one of the forms in docs/build/servers.md."""
    kind = reply.headers["content-type"]
    match reply.status_code:
        case 200:
            assert kind == "application/json"
            assert json.loads(reply.content) is not NotImplemented
        case 422:
            assert all({"type", "loc", "msg"} == set(problem) for problem in reply.json()["detail"])
        case 404 | 405 | 413 | 415:
            assert isinstance(reply.json()["detail"], str)
        case 500:
            assert name in PLAIN_ERRORS
            assert (kind, reply.text) == ("text/plain; charset=utf-8", "Internal Server Error")
        case other:
            pytest.fail(f"an undocumented status: {other} {reply.text}")


NUMBERS = st.one_of(st.integers(-2, 3), st.integers(), st.floats(), st.booleans())
VALUES = st.one_of(NUMBERS, st.none(), st.text(), st.sampled_from(["0", " 7_0 ", "1.0", "1e3", "9" * 5000]))
JSON = st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@st.composite
def requests(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Draw a request that is nearly valid, or invalid in some way."""
    dialect = DIALECTS[name]
    path = draw(st.sampled_from([dialect.prefix, ""])) + draw(st.sampled_from(ROUTES))
    fields = [dialect.id_field, dialect.task_field, "action", "world_type", "env_id", "env_name", "task_index"]
    ids = st.one_of(st.just(0), st.just("0"), JSON)
    plausible = {name: ids if name in (dialect.id_field, "env_id") else JSON for name in fields}
    content = draw(
        st.one_of(
            st.fixed_dictionaries({}, optional=plausible).map(json.dumps).map(str.encode),
            st.fixed_dictionaries(plausible).map(json.dumps).map(str.encode),
            JSON.map(json.dumps).map(str.encode),
            st.binary(max_size=50),
            st.sampled_from([b"", b"[" * 100_000, b'{"id": NaN}', b'"\\ud800"', b"null", b"1e999", b'{"id":' * 2000]),
        )
    )
    kind = draw(st.sampled_from(["application/json"] * 4 + ["application/json; charset=utf-16", "text/plain"]))
    query = draw(st.dictionaries(st.sampled_from(["id", "env_idx", "x"]), st.text() | st.just("0"), max_size=2))
    method = draw(st.sampled_from(["GET", "POST", "POST", "PUT"]))
    return {"method": method, "url": path, "content": content, "params": query, "headers": {"content-type": kind}}


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_reply_is_documented(name: str, clients: dict[str, httpx.Client], data: st.DataObject) -> None:
    check_documented(name, clients[name].request(**data.draw(requests(name))))


@pytest.mark.parametrize("name", ["TextCraft", "ALFWorld", "SQLGym", "Wordle"])
def test_documented_requests_are_accepted(name: str, clients: dict[str, httpx.Client]) -> None:
    import schemathesis  # slow to import
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

    document = clients[name].get("/openapi.json").json()
    for operation in schemathesis.openapi.from_dict(document).get_all_operations():
        assert isinstance(operation, Ok)

        @settings(max_examples=2, deadline=None, database=None)
        @given(case=operation.ok().as_strategy())
        def check(case: schemathesis.Case[Any]) -> None:
            reply = case.call(base_url=str(clients[name].base_url))
            assert reply.status_code == 200 or (reply.status_code == 500 and name in PLAIN_ERRORS), reply.text
            case.validate_response(reply, checks=[status_code_conformance, content_type_conformance])

        check()


@pytest.mark.parametrize("name", DIALECTS)
def test_all_routes_are_documented(name: str, clients: dict[str, httpx.Client]) -> None:
    document = clients[name].get("/openapi.json").json()
    prefix = DIALECTS[name].prefix
    required = {"/", "/health", *(f"{prefix}/{path}" for path in ("create", "reset", "step", "close"))}
    required |= {f"{start}/{path}" for start in ("", prefix) for path in ("createEnv", "observation", "step", "close")}
    assert document["paths"].keys() >= required
    for path, operations in document["paths"].items():
        for method in operations:
            assert clients[name].request(method, path, json={}).status_code not in (404, 405)
