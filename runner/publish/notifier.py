"""Notifications about ended batches: a command and a webhook of the profile, on a thread that no batch waits for."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from runner.batch.result import BatchResult, BatchStatus
from runner.config import Profile
from runner.inference.errors import EndpointFailure
from runner.store.episode_file import shared_fields
from runner.types import Tokens
from runner.util.background_queue import BackgroundQueue
from runner.util.child_process import kill_group
from runner.util.clock import Clock
from runner.util.display_text import mask, one_line, public_variables

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)  # log the output of the command

RETRY_DELAYS_S: Final = (1.0, 5.0)
"""Seconds before each further attempt to reach the webhook."""
MAX_QUEUED = 1000
MAX_OUTPUT_BYTES = 4096
"""Bytes of the command's output that are logged: its last ones."""
MAX_TEXT_CHARS = 300


class BatchNotification(msgspec.Struct, frozen=True, kw_only=True):
    """An ended batch, as the command and the webhook get it; ``interruption`` is its cause, if that is known."""

    event: str = "batch.ended"
    at: datetime
    node: str
    profile: str
    batch_id: str
    battery_id: str | None
    env: str
    agent: str
    model: str | None
    status: BatchStatus
    interruption: str | None
    n_planned: int
    n_episodes: int
    n_rated: int
    n_success: int
    n_errors: int
    success_rate: float | None
    success_interval: tuple[float, float] | None
    mean_reward: float | None
    duration_s: float
    tokens: Tokens
    cost: float | None
    currency: str


class Notifier:
    """Delivers notifications one by one in the background; the command gets all of ``environ`` but the secrets."""

    def __init__(
        self,
        profile: Profile,
        node: str,
        environ: Mapping[str, str],
        *,
        retry_delays_s: tuple[float, ...] = RETRY_DELAYS_S,
    ) -> None:
        self._settings = profile.notify
        self._profile, self._currency = profile.id, profile.agent.currency
        self._node = node
        self._environ = environ
        self._retry_delays_s = retry_delays_s
        self._clock = Clock()
        self._queue = BackgroundQueue("notifier", self._deliver, MAX_QUEUED)

    def notify(self, result: BatchResult) -> None:
        """Never waits for the delivery."""
        if not self._settings.command and self._settings.url is None:
            return
        shared = shared_fields(result, BatchNotification) | {"currency": result.currency or self._currency}
        notification = BatchNotification(at=self._clock.now(), node=self._node, profile=self._profile, **shared)
        if not self._queue.put(msgspec.json.encode(notification)):
            logger.warning("batch %s: no notification, because %d others wait", result.batch_id, MAX_QUEUED)

    def close(self) -> None:
        """Deliver what is queued, for at most the time limit of one command or request, then drop the rest."""
        if not self._queue.close(self._settings.timeout_sec):
            logger.warning("the last notifications were not delivered within %g s", self._settings.timeout_sec)

    async def _deliver(self, content: bytes) -> None:
        if self._settings.command:
            self._run_command(content)
        if self._settings.url is not None:
            await self._post(self._settings.url, content)

    def _run_command(self, content: bytes) -> None:
        import tempfile  # imported late: few profiles name a command

        settings = self._settings
        secrets = {name: self._environ[name] for name in settings.pass_env if name in self._environ}
        name = one_line(Path(settings.command[0]).name, 80)
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(  # what it leaves in the background goes on
                    settings.command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=public_variables(self._environ) | secrets,
                    start_new_session=True,
                )
            except OSError as exc:
                logger.warning("notify.command %s cannot be started: %s", name, exc.strerror)
                return
            try:
                process.communicate(content, timeout=settings.timeout_sec)
            except subprocess.TimeoutExpired:
                kill_group(process.pid)
                process.communicate()
                logger.warning("notify.command %s was ended after %g s", name, settings.timeout_sec)
            self._log_output(name, process.returncode, output.seek(0, os.SEEK_END), output.fileno())

    def _log_output(self, name: str, code: int, size: int, descriptor: int) -> None:
        tail = os.pread(descriptor, MAX_OUTPUT_BYTES, max(0, size - MAX_OUTPUT_BYTES)).decode(errors="replace")
        for line in tail.splitlines():
            logger.info("notify.command %s: %s", name, one_line(mask(line, self._environ), MAX_TEXT_CHARS))
        if code > 0:
            logger.warning("notify.command %s ended with code %d", name, code)

    async def _post(self, url: str, content: bytes) -> None:
        problem = ""
        for delay_s in (0.0, *self._retry_delays_s):
            await asyncio.sleep(delay_s)
            try:
                status = await self._send(url, content)
            except EndpointFailure as failure:
                problem = str(failure)
                if failure.reason in ("configuration", "request"):
                    break
                continue
            if status < 300:
                logger.info("notify.url: the notification was delivered: status %d", status)
                return
            problem = f"it answered with status {status}"
            if status < 500 and status not in (408, 425, 429):
                break
        # neither the URL nor the answer is logged: webhooks have their secret in the path
        logger.warning("notify.url: the notification was not delivered: %s", one_line(problem, MAX_TEXT_CHARS))

    async def _send(self, url: str, content: bytes) -> int:
        """Return the status of the answer, whose body is not read: it may never end."""
        from runner.inference.http import bearer_header, open_response  # few profiles name a webhook

        settings, token = self._settings, None
        if settings.token_env is not None and not (token := self._environ.get(settings.token_env, "").strip()):
            raise EndpointFailure("configuration", f"the variable {settings.token_env} for its token is not set")
        try:
            async with (
                asyncio.timeout(settings.timeout_sec),
                open_response("POST", url, content, bearer_header(token)) as response,
            ):
                return response.status_code
        except TimeoutError:
            raise EndpointFailure("timeout", f"no answer within {settings.timeout_sec:g} s") from None
