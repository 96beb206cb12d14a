"""Evaluate in CI: play, compare task by task with the batch that is the baseline, and fail if it has become worse.

    python evaluate_in_ci.py --agent react --endpoint URL --model NAME

The first run becomes the baseline, so keep the state directory between runs (a cache of CI); delete `baseline` in it
to begin anew. Exit codes are those of agentgym-runner: 3 for a result that is too low, 1 for errors, 2 for usage.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STATE = Path("evaluation")
PLAY = ("--run", "Maze", "--repeat", "20", "--budget-errors", "3")
LOWEST_RATE = "0.2"


def runner(*options: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit code and its result. Progress and messages go to standard error."""
    command = ["agentgym-runner", *options, "--data-dir", str(STATE), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}")


def main(player: list[str]) -> int:
    code, played = runner(*PLAY, *player)
    if code != 0:
        return code
    (batch,) = (each["batch_id"] for each in played["batches"])
    baseline = STATE / "baseline"
    against = ("--against", baseline.read_text()) if baseline.exists() else ()
    code, results = runner("--results", "--batch", batch, "--fail-below", LOWEST_RATE, *against)
    if against:
        compared = results["comparison"]
        print(f"{len(compared['won'])} tasks won, {len(compared['lost'])} lost, p = {compared['p_value']:.3g}")
    elif code == 0:
        baseline.write_text(batch)
        print(f"{batch} is the baseline of later runs")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
