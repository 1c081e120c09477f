"""Base classes that others implement: a misspelt method is an error when the class is made."""

from __future__ import annotations

from tailer.errors import closest

#: How like a name of the contract another is that is a mistake, from 0 to 1.
_LIKENESS = 0.8


class Contract:
    """The base of a contract, which is a class right below it.

    An optional method that is misspelt would never be called, and nobody would notice. So a public
    name of the class's own must not be nearly one of the contract's.
    """

    def __init_subclass__(cls) -> None:
        """Raise TypeError for a public name that is nearly one of a base class."""
        super().__init_subclass__()
        if Contract in cls.__bases__:
            return
        bases = cls.__mro__[1:]
        known = {name for base in bases for name in vars(base)}
        known |= {name for base in bases for name in getattr(base, "__annotations__", ())}
        for name in vars(cls):
            if name.startswith("_") or name in known:
                continue
            if (meant := closest(name, known, _LIKENESS)) is None:
                continue
            contract = next(c.__name__ for c in cls.__mro__ if Contract in c.__bases__)
            raise TypeError(
                f"{cls.__name__}.{name} is not in the contract {contract} (did you mean "
                f"{meant!r}?); give a name of the class's own an underscore"
            )
