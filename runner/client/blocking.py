"""The client of a node for programs without an event loop; the names are those of ``NodeClient``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from functools import partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from runner.client.follow import Follower, FollowItem
from runner.client.node_client import NodeClient
from runner.client.target import ConnectedNode, Target, connected

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _blocking(
    method: Callable[Concatenate[NodeClient, _P], Awaitable[_T]],
) -> Callable[Concatenate[BlockingNodeClient, _P], _T]:
    @wraps(method)
    def call(self: BlockingNodeClient, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return self.portal.call(partial(method, self.node.client, *args, **kwargs))

    return call


class BlockingNodeClient:
    """Sends requests to a node from any thread; all methods raise ``ControlRequestError`` where a request fails."""

    def __init__(self, portal: BlockingPortal, node: ConnectedNode) -> None:
        self.portal, self.node = portal, node

    start = _blocking(NodeClient.start)
    command = _blocking(NodeClient.command)
    command_all = _blocking(NodeClient.command_all)
    move = _blocking(NodeClient.move)
    set = _blocking(NodeClient.set)
    extend = _blocking(NodeClient.extend)
    replay = _blocking(NodeClient.replay)
    annotate = _blocking(NodeClient.annotate)
    shutdown = _blocking(NodeClient.shutdown)
    start_server = _blocking(NodeClient.start_server)
    stop_server = _blocking(NodeClient.stop_server)
    send_history = _blocking(NodeClient.send_history)
    fetch_list = _blocking(NodeClient.fetch_list)
    fetch_health = _blocking(NodeClient.fetch_health)
    fetch_results = _blocking(NodeClient.fetch_results)
    fetch_episodes = _blocking(NodeClient.fetch_episodes)
    fetch_logs = _blocking(NodeClient.fetch_logs)
    fetch_episode = _blocking(NodeClient.fetch_episode)

    def follow(self, run_id: str, *, steps: bool = True) -> Generator[FollowItem, None, None]:
        """Yield what a batch or battery does until it ends, or the generator is closed; see ``Follower``."""
        batch_ids = [batch.batch_id for batch in self.fetch_list(run_id).batches]
        following = aclosing(Follower(self.node, run_id, batch_ids, steps=steps).items())
        with self.portal.wrap_async_context_manager(following) as items:
            while (item := self.portal.call(partial(anext, items, None))) is not None:
                yield item


@contextmanager
def open_node(target: Target | None = None, *, starts: bool = False) -> Iterator[BlockingNodeClient]:
    """Connect to a node, by default that of the state directory, which ``starts`` where none runs.

    Raises ``ControlRequestError`` if there is none, ``RunnerError`` if the bus cannot be reached.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(connected(target or Target(), starts=starts)) as node,
    ):
        yield BlockingNodeClient(portal, node)
