"""BLAKE2b, by which ids and masks are made, without OpenSSL.

``hashlib`` has the very same function, and loads OpenSSL with it: 4 MiB, and 3 ms of each command.
"""

from __future__ import annotations

try:
    from _blake2 import blake2b
except ImportError:  # another interpreter than CPython
    from hashlib import blake2b

__all__ = ["blake2b"]
