"""What the endpoints of a batch take, as far as it is known: one record for all episodes, in any process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from runner.config.capabilities import Capabilities, LessonKey
from runner.inference.endpoints import EndpointSpec
from runner.inference.learning import first_capabilities

OnLesson: TypeAlias = Callable[[LessonKey, Capabilities], None]


class Lessons:
    """The capabilities of the endpoints; thread-safe. The driver has them, and each worker a copy."""

    def __init__(self, specs: Iterable[EndpointSpec]) -> None:
        self._lock = threading.RLock()  # the driver sends a lesson back to the worker that it came from
        self._first = {spec.name: first_capabilities(spec) for spec in specs}
        self._kept: dict[LessonKey, Capabilities] = {}
        self._watchers: list[OnLesson] = []

    def get(self, key: LessonKey) -> Capabilities:
        return self._kept.get(key) or self._first[key.endpoint]

    def keep(self, key: LessonKey, learned: Capabilities, *, is_news: bool = True) -> None:
        """Keep a lesson, and pass it to the watchers if it ``is_news`` to them.

        What has nothing to do with tools also holds for the requests with or without them. An endpoint may refuse to
        stream only beside tools.
        """
        if key.endpoint not in self._first:
            return
        with self._lock:
            if self._kept.get(key) == learned:
                return
            self._kept[key] = learned
            sibling = key._replace(with_tools=not key.with_tools)
            other = self.get(sibling)
            stream = other.stream if key.with_tools and learned.tools == "native" else learned.stream
            self._kept[sibling] = msgspec.structs.replace(learned, tools=other.tools, stream=stream)
            for watcher in self._watchers if is_news else ():
                watcher(key, learned)

    def keep_context(self, key: LessonKey, context_tokens: int) -> None:
        """Keep the size of a context, whatever else is learned at the same time."""
        with self._lock:
            self.keep(key, msgspec.structs.replace(self.get(key), context_tokens=context_tokens))

    def watch(self, on_lesson: OnLesson) -> Callable[[], None]:
        """Call ``on_lesson``, which must not block, with each lesson, now and later; return what ends the calls."""
        with self._lock:
            self._watchers = [*self._watchers, on_lesson]
            for lesson in self._kept.items():
                on_lesson(*lesson)

        def end() -> None:
            with self._lock:
                self._watchers = [each for each in self._watchers if each is not on_lesson]

        return end
