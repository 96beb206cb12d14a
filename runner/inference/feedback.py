"""Tells TensorZero how episodes went, in the background: nothing waits for it, and its failure costs no episode."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from runner.config.profile import FeedbackMetrics
from runner.inference.errors import EndpointFailure, Mask, response_failure
from runner.inference.http import client_options, translate_errors
from runner.util.text import one_line

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

PATH = "/feedback"
REQUEST_TIMEOUT_S = 10.0
MAX_WAITING = 1000
MAX_EPISODES = 10_000
"""Episodes whose ids are kept until they are over."""


class FeedbackLink(NamedTuple):
    """An episode as a gateway knows it."""

    origin: str
    id: str
    key: str | None


class _FeedbackItem(NamedTuple):
    link: FeedbackLink
    metric: str
    value: float | bool


class FeedbackSender:
    """Sends from a thread of its own, which starts with the first thing to send; usable by several threads.

    Args:
        metrics: what TensorZero calls reward and success; None: nothing is sent.
        mask: for what a gateway says.
    """

    def __init__(self, metrics: FeedbackMetrics | None, mask: Mask) -> None:
        """Start with nothing to send."""
        self._metrics = metrics
        self._mask = mask
        self._lock = threading.Lock()
        self._links: OrderedDict[str, list[FeedbackLink]] = OrderedDict()
        self._waiting: queue.Queue[_FeedbackItem | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._warned = False

    def remember(self, episode_id: str, link: FeedbackLink) -> None:
        """Keep how a gateway calls an episode until it is over."""
        if self._metrics is None:
            return
        with self._lock:
            self._links.setdefault(episode_id, []).append(link)
            if len(self._links) > MAX_EPISODES:
                self._links.popitem(last=False)

    def send(self, episode_id: str, reward: float, success: bool) -> None:
        """Tell every gateway that answered in an episode how it went; never raises and never waits."""
        with self._lock:
            links = self._links.pop(episode_id, [])
        for link in links:
            for metric, value in self._values(reward, success):
                self._enqueue(_FeedbackItem(link, metric, value))

    def close(self, timeout_s: float) -> None:
        """Send what waits, but for no longer than this; then end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is None:
            return
        self._enqueue(None)
        thread.join(timeout_s)
        if thread.is_alive():
            self._warn("the gateway takes too long; what was not sent is dropped")

    def _values(self, reward: float, success: bool) -> list[tuple[str, float | bool]]:
        metrics = self._metrics
        named = [] if metrics is None else [(metrics.reward, float(reward)), (metrics.success, bool(success))]
        return [(name, value) for name, value in named if name is not None]

    def _enqueue(self, item: _FeedbackItem | None) -> None:
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._warn(f"{MAX_WAITING} already wait to be sent")
            return
        with self._lock:
            if self._thread is None and item is not None:
                self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        import httpx

        with httpx.Client(timeout=REQUEST_TIMEOUT_S, **client_options()) as client:
            while (item := self._waiting.get()) is not None:
                try:
                    self._post(client, item)
                except EndpointFailure as failure:
                    self._warn(f"{item.metric}: {failure}")

    def _post(self, client: httpx.Client, item: _FeedbackItem) -> None:
        link = item.link
        headers = {"Authorization": f"Bearer {link.key}"} if link.key else {}
        body = {"metric_name": item.metric, "value": item.value, "episode_id": link.id}
        with (
            translate_errors(self._mask),
            client.stream("POST", link.origin + PATH, json=body, headers=headers) as response,
        ):
            if response.status_code != 200:
                raise response_failure(response.status_code, next(response.iter_raw(), b""), self._mask)

    def _warn(self, text: str) -> None:
        """Say it once: a gateway without a database refuses each of them."""
        if not self._warned:
            self._warned = True
            logger.warning("feedback is not taken: %s; further failures are not told", one_line(self._mask(text), 300))
