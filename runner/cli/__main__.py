"""Entry point of ``python -m runner.cli``, the same as ``agentgym-runner``."""

import sys

from runner.cli import main

sys.exit(main())
