"""Contracts that others implement: a misspelt member is an error when the class is made."""

import pytest

from tailer.offsets.memory import MemoryOffsetStore
from tailer.store import Store
from tailer.store.local import LocalStore


def test_a_misspelt_method_is_an_error_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Fast\.read_manny is not in the contract Store \(did you"):

        class Fast(LocalStore):
            async def read_manny(self) -> None: ...


def test_a_misspelt_attribute_is_an_error_as_well() -> None:
    with pytest.raises(TypeError, match=r"Whole\.atomc is not in .*mean 'atomic'\?"):

        class Whole(Store):
            atomc = True


def test_a_misspelt_method_of_an_offset_store_is_an_error_as_well() -> None:
    with pytest.raises(TypeError, match=r"Kept\.save_order is not in .*mean 'save_orders'\?"):

        class Kept(MemoryOffsetStore):
            async def save_order(self, orders: dict[str, object]) -> None: ...


def test_names_of_its_own_and_of_its_other_bases_are_allowed() -> None:
    class Counted:
        def count(self) -> int:
            return 0

    class CountedStore(LocalStore, Counted):
        def count(self) -> int:
            return self._more()

        def _more(self) -> int:
            return 1

    assert CountedStore(".").count() == 1


def test_a_method_that_every_store_has_is_missing() -> None:
    class Bare(Store):
        pass

    with pytest.raises(TypeError, match=r"abstract methods '?list'?, '?open'?, '?read'?"):
        Bare()  # type: ignore[abstract]
