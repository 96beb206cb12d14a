"""Runs ``agentgym-runner`` with mutations: python -m tests.history.mutated_node NAME[,NAME…] node --data-dir …"""

from __future__ import annotations

import sys

from runner.cli import main
from tests.history.mutations import MUTATIONS

if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        _promise, mutate = MUTATIONS[name]
        mutate()
    sys.exit(main(sys.argv[2:]))
