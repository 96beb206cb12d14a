"""``python -m runner.cli`` is ``agentgym-runner``."""

import sys

from runner.cli import main

sys.exit(main())
