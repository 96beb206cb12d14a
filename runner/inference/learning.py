"""Learning what an endpoint takes: from a table of known servers, from the profile, and from refusals.

A refusal that names a field changes that field. After another one, each part that the endpoint may not take is left out
alone, and at last all of them; if one of these requests is answered, the unchanged request is sent once more, because
only a refusal that comes again proves anything. A server error is first repeated unchanged for the same reason.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

import msgspec

from runner.config.profile import Capabilities, LessonKey
from runner.inference.chat_format import InferenceQuestion
from runner.inference.endpoints import EndpointSpec
from runner.inference.errors import EndpointFailure, Field, named_field, wants_completion_tokens, wants_reasoning

_AnswerT = TypeVar("_AnswerT")
_KeyT = TypeVar("_KeyT")
_ValueT = TypeVar("_ValueT")

KNOWN_SERVERS: Final[dict[str, Capabilities]] = {
    "api.openai.com": Capabilities(rename={"max_tokens": "max_completion_tokens"}),
    "api.mistral.ai": Capabilities(omit=("stream_options",)),
}
"""Capabilities by host name, where a server is known not to take the usual shape."""
_TRIALS: Final[tuple[Field, ...]] = (
    *("stream_options", "token_ids", "temperature", "max_tokens"),
    *("reasoning", "stream", "system", "tools"),
)
"""Parts in the order in which they are left out, the least valuable first."""
_MAX_REPEATS = 4
"""Maximum number of times that a request is repeated unchanged until a server error comes twice in a row."""


class WatchedValues(Generic[_KeyT, _ValueT]):
    """Values by key that the driver of a batch and its workers pass to each other; thread-safe."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the driver sends a value back to the worker that it came from
        self.values: dict[_KeyT, _ValueT] = {}
        self._watchers: list[Callable[[_KeyT, _ValueT], None]] = []

    def set(self, key: _KeyT, value: _ValueT, *, is_news: bool = True) -> None:
        """Pass the value, if it is another one, to the watchers unless it ``is_news`` to none of them."""
        with self.lock:
            if self.values.get(key) == value:
                return
            self.values[key] = value
            for watcher in self._watchers if is_news else ():
                watcher(key, value)

    def watch(self, on_value: Callable[[_KeyT, _ValueT], None]) -> Callable[[], None]:
        """Call ``on_value``, which must not block, with each value, now and later; return what ends the calls."""
        with self.lock:
            self._watchers = [*self._watchers, on_value]
            for key, value in self.values.items():
                on_value(key, value)

        def end() -> None:
            with self.lock:
                self._watchers = [each for each in self._watchers if each is not on_value]

        return end


class Lessons(WatchedValues[LessonKey, Capabilities]):
    """The capabilities of the endpoints. The driver has them, and each worker a copy."""

    def __init__(self, specs: Iterable[EndpointSpec]) -> None:
        super().__init__()
        self._first = {
            spec.name: spec.capabilities or KNOWN_SERVERS.get(urlsplit(spec.url).hostname or "", Capabilities())
            for spec in specs
        }

    def get(self, key: LessonKey) -> Capabilities:
        return self.values.get(key) or self._first[key.endpoint]

    def keep(self, key: LessonKey, learned: Capabilities, *, is_news: bool = True) -> None:
        """Keep a lesson, and pass it to the watchers if it ``is_news`` to them.

        What has nothing to do with tools also holds for the requests with or without them. An endpoint may refuse to
        stream only beside tools.
        """
        if key.endpoint not in self._first:
            return
        with self.lock:
            if self.values.get(key) == learned:
                return
            sibling = key._replace(with_tools=not key.with_tools)
            other = self.get(sibling)
            stream = other.stream if key.with_tools and learned.tools == "native" else learned.stream
            self.values[sibling] = msgspec.structs.replace(learned, tools=other.tools, stream=stream)
            self.set(key, learned, is_news=is_news)

    def keep_context(self, key: LessonKey, context_tokens: int) -> None:
        """Keep the size of a context, whatever else is learned at the same time."""
        with self.lock:
            self.keep(key, msgspec.structs.replace(self.get(key), context_tokens=context_tokens))


def changes(capabilities: Capabilities, field: Field, refusal: str = "") -> Iterator[Capabilities]:
    """Yield the capabilities without a part that a refusal names, the best guess first; none if there is no change."""
    replace = msgspec.structs.replace
    match field:
        case "tools":
            yield replace(capabilities, tools="text")
        case "stream":
            yield replace(capabilities, stream=False)
        case "system":
            yield replace(capabilities, system="folded")
        case "reasoning":
            more = {"none": "calls", "calls": "all", "all": "all"}[capabilities.reasoning]
            order = [more, "none"] if not refusal or wants_reasoning(refusal) else ["none", more]
            for level in order:
                if level != capabilities.reasoning:
                    yield replace(capabilities, reasoning=level)
        case "max_tokens" if wants_completion_tokens(refusal) and "max_tokens" not in capabilities.rename:
            yield replace(capabilities, rename={**capabilities.rename, "max_tokens": "max_completion_tokens"})
        case _:
            yield replace(capabilities, omit=(*capabilities.omit, field))


class Learner(Generic[_AnswerT]):
    """Looks for a shape of one request that an endpoint answers; ``confirm`` sends one whose answer is not used.

    Each part of the request is left out at most once, so the number of requests is limited by the number of parts, one
    without all of them, one confirmation, and the repetitions of server errors.
    """

    def __init__(
        self,
        send: Callable[[Capabilities], Awaitable[_AnswerT]],
        confirm: Callable[[Capabilities], Awaitable[object]],
        question: InferenceQuestion,
        known: Capabilities,
        *,
        token_ids: bool,
    ) -> None:
        self._send, self._confirm = send, confirm
        self._question, self._known, self._token_ids = question, known, token_ids
        self._changed: list[Capabilities] = []

    async def run(self, refusal: EndpointFailure) -> tuple[_AnswerT, Capabilities]:
        """Return the first answer and what was learned, which is the known shape if a failure has only passed.

        Raises a refusal if the endpoint refuses every shape, or another failure, such as that of a rate limit, that
        ends the search.
        """
        for _ in range(_MAX_REPEATS if _is_server_error(refusal) else 0):
            again = await self._try(self._known)
            if not isinstance(again, EndpointFailure):
                return again, self._known
            if _is_same(again, refusal):
                break
            refusal = again
        result, shape = await self._follow_names(self._known, refusal)
        return (await self._leave_out(shape, result)) if isinstance(result, EndpointFailure) else (result, shape)

    async def _follow_names(
        self, shape: Capabilities, refusal: EndpointFailure
    ) -> tuple[_AnswerT | EndpointFailure, Capabilities]:
        """Change the fields that refusals name, one after another, until one names none; return the last result."""
        while (changed := self._named_change(shape, refusal)) is not None:
            result = await self._try_surely(changed, refusal)
            if not isinstance(result, EndpointFailure):
                return result, changed
            if not _is_same(result, refusal):  # the change was of use
                shape, refusal = changed, result
        return refusal, shape

    def _named_change(self, shape: Capabilities, refusal: EndpointFailure) -> Capabilities | None:
        present = self._question.fields(shape, token_ids=self._token_ids)
        named = named_field(refusal.refusal, present)
        guesses = () if named is None else changes(shape, named, refusal.refusal)
        return next((guess for guess in guesses if self._is_new(guess)), None)

    async def _leave_out(self, refused: Capabilities, refusal: EndpointFailure) -> tuple[_AnswerT, Capabilities]:
        """Leave out each part alone, then all; what is answered is a lesson if the refused shape is refused again."""
        present = self._question.fields(refused, token_ids=self._token_ids)
        trials = [change for part in _TRIALS if part in present for change in changes(refused, part)]
        bare = refused
        for part in present:
            bare = next(changes(bare, part), bare)
        for trial in filter(self._is_new, (*trials, bare)):
            result, shape = await self._try_surely(trial, refusal), trial
            if isinstance(result, EndpointFailure) and not _is_same(result, refusal):
                result, shape = await self._follow_names(shape, result)
            if not isinstance(result, EndpointFailure):
                return result, shape if await self._is_refused_again(refused, refusal) else refused
        raise refusal

    async def _is_refused_again(self, shape: Capabilities, refusal: EndpointFailure) -> bool:
        try:
            await self._confirm(shape)
        except EndpointFailure as failure:
            return _is_same(failure, refusal)
        return False

    async def _try_surely(self, shape: Capabilities, known: EndpointFailure) -> _AnswerT | EndpointFailure:
        """Send a request, and again after a server error that may pass, until one is the known one or that before."""
        latest = known
        for _ in range(_MAX_REPEATS):
            result = await self._try(shape)
            if not isinstance(result, EndpointFailure) or not _is_server_error(result):
                return result
            if _is_same(result, known) or _is_same(result, latest):
                return result
            latest = result
        return await self._try(shape)

    async def _try(self, shape: Capabilities) -> _AnswerT | EndpointFailure:
        """Return an answer or a refusal; raises any other ``EndpointFailure``."""
        try:
            return await self._send(shape)
        except EndpointFailure as failure:
            if not failure.refusal:
                raise
            return failure

    def _is_new(self, shape: Capabilities) -> bool:
        if shape == self._known or shape in self._changed:
            return False
        self._changed.append(shape)
        return True


def _is_server_error(failure: EndpointFailure) -> bool:
    return failure.status is None or failure.status >= 500


def _is_same(failure: EndpointFailure, other: EndpointFailure) -> bool:
    """Numbers and ids do not count."""
    texts = [re.sub(r"\b\w*\d\w*", "", each.refusal) for each in (failure, other)]
    return failure.status == other.status and texts[0] == texts[1]
