"""Base classes that others implement: a misspelt method is an error when the class is made."""

from __future__ import annotations

from tailer.errors import meant


class Contract:
    """The base of a contract, which is a class right below it.

    A class that implements the contract has no other public names than the contract's and those of
    its further bases. An optional method that is misspelt would never be called, and nobody would
    say so.
    """

    def __init_subclass__(cls) -> None:
        """Raise TypeError for a public name that no base class has."""
        super().__init_subclass__()
        if Contract in cls.__bases__:
            return
        bases = cls.__mro__[1:]
        known = {name for base in bases for name in vars(base)}
        known |= {name for base in bases for name in getattr(base, "__annotations__", ())}
        for name in vars(cls):
            if name.startswith("_") or name in known:
                continue
            contract = next(c.__name__ for c in cls.__mro__ if Contract in c.__bases__)
            raise TypeError(
                f"{cls.__name__}.{name} is not in the contract {contract}{meant(name, known)}; a "
                "name of the class's own begins with _"
            )
