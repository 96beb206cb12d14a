from __future__ import annotations

import subprocess
import sys

import pytest

N_PROCESSES = 6
"""Two of five processes crash, or more, where the decoders are not built with their module."""

CODE = """
import sys, threading
from runner import plugins

sys.setswitchinterval(1e-6)
kind = plugins.load(plugins.ENVS, {env!r})
start = threading.Barrier(4)
observed = []

def play():
    environment = kind()
    start.wait()
    observed.append(environment.reset(task_index=0))

threads = [threading.Thread(target=play) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(observed) == 4 and all(each == observed[0] for each in observed), observed
"""


@pytest.mark.long
@pytest.mark.parametrize("env", ["ALFWorld", "WebShop"])
def test_episodes_of_several_threads_may_be_the_first_of_a_process(env: str) -> None:
    for _ in range(N_PROCESSES):
        ended = subprocess.run(
            [sys.executable, "-c", CODE.format(env=env)], capture_output=True, check=False, timeout=60
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
