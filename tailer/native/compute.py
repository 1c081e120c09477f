"""Arrow's functions, as ``pyarrow.compute`` has them, without loading it where that can wait.

It makes a Python function with a signature and a text for each of some 300 when it is loaded, which
takes nearly as long as to load pyarrow. Calls without options need none of that: pyarrow's methods
``take``, ``filter`` and ``cast`` load it too, so on the way of most rows they are called from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["index"]  # and whatever else pyarrow.compute has


def index(values: pa.Array, value: Any) -> pa.Scalar:
    """Return where a value is first; -1 if it is nowhere."""
    from pyarrow import _compute

    options = _compute.IndexOptions(pa.scalar(value, values.type))
    return _compute.call_function("index", [values], options)


def __getattr__(name: str) -> Any:
    """Return a function or class, which is then an attribute of this module."""
    from pyarrow import _compute

    registered = name.rstrip("_")  # of words that are Python's, as `or_`
    if name.startswith("_") or registered not in _compute.function_registry().list_functions():
        import pyarrow.compute

        found = getattr(pyarrow.compute, name)
    else:
        found = _function(_compute, name, _compute.get_function(registered))
    return globals().setdefault(name, found)


def _function(compute: Any, name: str, function: Any) -> Callable[..., Any]:
    # `any`, `sum` and others of Python's names are Arrow's here.
    def call(*values: Any, **options: Any) -> Any:
        is_plain = not options and (function.arity is Ellipsis or function.arity == len(values))
        if is_plain and compute.Expression not in map(type, values):
            return function.call([*values])
        import pyarrow.compute

        return getattr(pyarrow.compute, name)(*values, **options)

    return call
