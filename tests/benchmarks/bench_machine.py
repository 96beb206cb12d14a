"""Share of a core that sampling the machine takes, with eight GPUs of a library in place of the driver's."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.benchmarks.measure import Row
from tests.support.nvml_library import build_nvml, nvml_environ

MEASURED_S: Final = 20
MAX_PERCENT: Final = 0.5

SAMPLE = """
import sys, time
from pathlib import Path
from runner.machine.sampler import MachineSampler
from runner.util.clock import Clock
samples = []
with MachineSampler(Path(sys.argv[1]), Clock()).listening(samples.append):
    time.sleep(3)
    before, n_before = time.process_time(), len(samples)
    time.sleep(float(sys.argv[2]))
    used = time.process_time() - before
print(100 * used / float(sys.argv[2]), len(samples) - n_before, len(samples[-1].machine.gpu))
"""


def run() -> list[Row]:
    """Measure the CPU time of a process that only samples."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", SAMPLE, folder, str(MEASURED_S)]
        environ = nvml_environ(build_nvml(Path(folder)), "many")
        output = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=120).stdout
    percent, n_samples, n_gpus = map(float, output.split())
    name = f"sampling a machine with {n_gpus:.0f} GPUs for {MEASURED_S} s ({n_samples:.0f} samples), share of a core"
    return [Row(name, f"{percent:.2f}%", f"< {MAX_PERCENT}%", percent < MAX_PERCENT)]
