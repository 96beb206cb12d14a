"""Entry point of ``python -m runner.cli``, which is the same as the command ``agentgym-runner``."""

import sys

from runner.cli import main

sys.exit(main())
