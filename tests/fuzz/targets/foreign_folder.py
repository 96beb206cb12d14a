"""A job folder of Harbor with one trial and any content of its files.

The input is a line for each: the result, the trajectory, and the trajectories of the steps. An empty line is no file.
"""

from __future__ import annotations

from runner.formats.harbor import FORMAT
from tests.fuzz.foreign_items import check_path
from tests.fuzz.oracles import scratch_folder

TOKENS = (
    *(b'"agent_info":{"name":"', b'"verifier_result":{"rewards":{"reward":', b'"exception_info":{"exception_type":"'),
    *(b'"agent_result":{"n_input_tokens":', b'"task_name":"', b'"started_at":"2026-01-02T03:04:05Z"'),
    *(b'"schema_version":"ATIF-v1.7"', b'"steps":[{"source":"agent","message":"', b'"subagent_trajectories":['),
)
JOB = scratch_folder("foreign_folder") / "job"
TRIAL = JOB / "trial"
NAMES = ("result.json", *(f"{folder}agent/trajectory.json" for folder in ("", "steps/1/", "steps/2/", "steps/3/")))
for name in NAMES:
    (TRIAL / name).parent.mkdir(parents=True, exist_ok=True)
(JOB / "config.json").write_bytes(b"{}")


def check(data: bytes) -> None:
    contents = data.split(b"\n", len(NAMES))
    for name, content in zip(NAMES, [*contents, *([b""] * len(NAMES))], strict=False):
        path = TRIAL / name
        if content:
            path.write_bytes(content)
        else:
            path.unlink(missing_ok=True)
    check_path(JOB, FORMAT)
