"""Play the recorded answers with AgentGym's own Evaluator on our ``--compat`` servers, and compare the conversations.

``python -m tests.agentgym CHECKOUT`` starts a server per environment and runs ``examples/basic/openai_eval.py`` of the
checkout once per conversation of ``tests/recordings/evaluator.jsonl.gz``, in a process of its own. The packages that
the Evaluator imports and does not need for this are replaced (``tests.agentgym.evaluator``). The turns after the
instruction, the reward and the success have to be those that were recorded on AgentGym's servers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.cli.terminal import print_text
from runner.envs.placement import find_environment
from tests.support.recordings import load_rows
from tests.support.serving import serve_environments

MOUNTS = {"maze": "/maze", "wordle": "/wordle"}


def main(arguments: list[str]) -> int:
    """Compare all conversations; return 1 if one differs."""
    if not arguments or not arguments[0]:
        print_text("AgentGym's Evaluator is not run: no checkout is named. make test-agentgym AGENTGYM=<checkout>")
        return 0
    checkout = Path(arguments[0]).expanduser().absolute()
    if not (checkout / "agentenv" / "examples" / "basic" / "openai_eval.py").is_file():
        print_text(f"{checkout} has no agentenv/examples/basic/openai_eval.py; name a checkout of AgentGym")
        return 1
    equal: Counter[str] = Counter()
    total: Counter[str] = Counter()
    cases = load_rows("evaluator.jsonl")
    names = [find_environment(env).name for env in dict.fromkeys(case["env"] for case in cases)]
    with serve_environments(names, mode="compat") as urls:
        for case in cases:
            env = case["env"]
            url = urls[find_environment(env).name] + MOUNTS.get(env, "")
            total[env] += 1
            equal[env] += agrees(case, evaluate(checkout, case, url))
    for env, n in total.items():
        print_text(f"{env:<10} {equal[env]:>3} of {n:>3} conversations are equal")
    return 0 if equal == total else 1


def evaluate(checkout: Path, case: dict[str, Any], url: str) -> dict[str, Any]:
    """Run the Evaluator for one item with its recorded answers; return what it wrote."""
    with TemporaryDirectory() as folder:
        answers, item = case["turns"][1::2], case["item_id"]
        plan = {"task": case["env"], "url": url, "out": folder, "item": item, "answers": answers}
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths_of(checkout)))}
        command = [sys.executable, "-m", "tests.agentgym.evaluator", json.dumps(plan)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
        written = Path(folder, f"{item}.json")
        if not written.exists():
            raise SystemExit(f"the Evaluator wrote nothing for {item}:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
        return dict(json.loads(written.read_text(encoding="utf-8")))


def paths_of(checkout: Path) -> list[Path]:
    """Return where the Evaluator's process finds its modules and ours."""
    return [Path.cwd(), checkout / "agentenv", checkout / "agentenv" / "examples" / "basic"]


def agrees(case: dict[str, Any], written: dict[str, Any]) -> bool:
    """Return whether the Evaluator's item is the recorded one; print the first difference."""
    turns = [turn["content"] for turn in written["conversations"][2:]]
    for number, (ours, theirs) in enumerate(zip(turns, case["turns"], strict=False)):
        if ours != theirs and not (number == 0 and ours.endswith(theirs)):  # the client's text precedes the first one
            print_text(f"{case['item_id']}, turn {number}:\n  ours   {ours!r:.300}\n  theirs {theirs!r:.300}")
            return False
    result = len(turns), written["reward"], written["success"]
    recorded = len(case["turns"]), case["reward"], case["success"]
    if result != recorded:
        print_text(f"{case['item_id']}: turns, reward and success are {result}, recorded {recorded}")
    return result == recorded


if __name__ == "__main__":
    started = time.monotonic()
    code = main(sys.argv[1:])
    print_text(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
