from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from runner.cli.reports import FILE_ONLY


@pytest.fixture(autouse=True)
def restore_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("runner", *FILE_ONLY)]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, propagate) in zip(loggers, before, strict=True):
        for handler in logger.handlers:
            handler.close()
        logger.handlers, logger.propagate = handlers, propagate
