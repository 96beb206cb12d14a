from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.rude_model import RudeModel, completion_response


@pytest.fixture
def model_server() -> Iterator[RudeModel]:
    with RudeModel(completion_response("up")) as server:
        yield server
