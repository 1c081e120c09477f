"""What needs an environment of its own, and minutes, is for `make torture` alone."""

from __future__ import annotations

import os

collect_ignore = [] if "TAILER_TORTURE_ROUNDS" in os.environ else ["test_other_sparks.py"]
