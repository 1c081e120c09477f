"""What needs an environment of its own, and minutes, is for `make torture` alone."""

from __future__ import annotations

import os

from tests.golden.test_golden import golden, reader  # noqa: F401  # fixtures

SLOW = ["test_connect.py", "test_declarative.py", "test_other_sparks.py"]

collect_ignore = [] if "TAILER_TORTURE_ROUNDS" in os.environ else SLOW
