"""The crate in ``native/``, which decodes Parquet. Without it pyarrow does, with the same results.

What comes from a data file is parsed by the crates ``parquet`` and ``arrow``, which are
memory-safe, without the interpreter's lock. The crate gives what pyarrow would, or refuses.
"""

from __future__ import annotations

from typing import Any

from tailer.native.compiled import load_compiled

#: The crate's module, or None.
native: Any = load_compiled("_parquet", 5)
