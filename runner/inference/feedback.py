"""Feedback to TensorZero: the reward and success of episodes, sent in the background; failures are only logged."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runner.config.profile import FeedbackMetrics
from runner.inference.api_keys import read_api_key
from runner.inference.endpoints import EndpointSpec, url_origin
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.http import bearer_header, fetch_within
from runner.util.background_queue import BackgroundQueue
from runner.util.display_text import one_line

logger = logging.getLogger(__name__)

PATH = "/feedback"
REQUEST_TIMEOUT_S = 10.0
MAX_QUEUED = 1000
MAX_EPISODES = 10_000
"""Maximum number of running episodes whose gateway ids are kept; the oldest ids are dropped."""


class _Link(NamedTuple):
    spec: EndpointSpec
    gateway_id: str


class _FeedbackItem(NamedTuple):
    link: _Link
    metric: str
    value: float | bool


class FeedbackSender:
    """Sends feedback in the background; thread-safe.

    Only the endpoints of ``specs`` receive feedback, none if ``metrics`` is None. ``mask`` hides secrets in logged
    messages.
    """

    def __init__(
        self,
        metrics: FeedbackMetrics | None,
        specs: Iterable[EndpointSpec],
        environ: Mapping[str, str],
        mask: Mask,
    ) -> None:
        self._metrics = metrics
        self._specs = {spec.name: spec for spec in specs}
        self._environ = environ
        self._mask = mask
        self._lock = threading.Lock()
        self._links: OrderedDict[str, list[_Link]] = OrderedDict()
        self._queue = BackgroundQueue("feedback", self._deliver, MAX_QUEUED)
        self._warned = False

    def remember(self, episode_id: str, endpoint: str, gateway_id: str) -> None:
        """Keep a gateway's id of an episode until ``send`` uses it; an unknown endpoint is ignored."""
        spec = self._specs.get(endpoint)
        if self._metrics is None or spec is None:
            return
        with self._lock:
            self._links.setdefault(episode_id, []).append(_Link(spec, gateway_id))
            if len(self._links) > MAX_EPISODES:
                self._links.popitem(last=False)

    def send(self, episode_id: str, reward: float, success: bool) -> None:
        """Queue the feedback on an episode for every gateway that answered in it; never raises and never blocks."""
        with self._lock:
            links = self._links.pop(episode_id, [])
        for link in links:
            for metric, value in self._values(reward, success):
                if not self._queue.put(_FeedbackItem(link, metric, value)):
                    self._warn(f"{MAX_QUEUED} items are queued already")

    def close(self, timeout_s: float) -> None:
        """Send the queued feedback for at most ``timeout_s`` seconds, then drop the rest."""
        if not self._queue.close(timeout_s):
            self._warn("the gateway is too slow; the unsent feedback is dropped")

    def _values(self, reward: float, success: bool) -> list[tuple[str, float | bool]]:
        metrics = self._metrics
        values = [] if metrics is None else [(metrics.reward, float(reward)), (metrics.success, bool(success))]
        return [(name, value) for name, value in values if name is not None]

    async def _deliver(self, item: _FeedbackItem) -> None:
        try:
            await self._post(item)
        except EndpointFailure as failure:
            self._warn(f"{item.metric}: {failure}")

    async def _post(self, item: _FeedbackItem) -> None:
        spec = item.link.spec
        key = read_api_key(spec, "tensorzero", self._environ)
        headers = bearer_header(key)
        body = {"metric_name": item.metric, "value": item.value, "episode_id": item.link.gateway_id}
        response = await fetch_within(REQUEST_TIMEOUT_S, "POST", url_origin(spec.url) + PATH, body, headers)
        if response.status != 200:
            raise response_failure(response.status, response.body, self._mask)

    def _warn(self, text: str) -> None:
        # Only the first failure is logged: a gateway without a database rejects every item.
        if not self._warned:
            self._warned = True
            logger.warning("feedback failed: %s; further failures are not logged", one_line(self._mask(text), 300))
