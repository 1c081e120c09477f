from __future__ import annotations

import pytest

from tailer.backoff import Backoff, retried, retry_after_s


def test_pauses_double_up_to_the_longest_and_start_again_after_progress() -> None:
    backoff = Backoff(0.2, 1.0, jitter=lambda: 1.0)
    assert [backoff.next_s() for _ in range(4)] == [0.2, 0.4, 0.8, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.2


def test_jitter_takes_up_to_half_of_a_pause() -> None:
    assert Backoff(1.0, 1.0, jitter=lambda: 0.0).next_s() == 0.5
    assert all(0.5 <= pause < 1.0 for pause in (Backoff(1.0, 1.0).next_s() for _ in range(100)))


def test_what_the_other_side_asks_for_replaces_one_pause() -> None:
    backoff = Backoff(1.0, 8.0, jitter=lambda: 1.0)
    assert [backoff.next_s(5.0), backoff.next_s(), backoff.next_s(0.0)] == [5.0, 2.0, 4.0]


def test_an_attempt_is_repeated_only_after_errors_that_heal() -> None:
    outcomes = [KeyError("moving"), KeyError("moving"), "found"]

    def attempt() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert retried(attempt, KeyError, 60.0, 0.0, 0.0) == "found"
    outcomes.append(ValueError("final"))
    with pytest.raises(ValueError, match="final"):
        retried(attempt, KeyError, 60.0, 0.0, 0.0)


def test_the_last_error_is_raised_when_patience_is_over() -> None:
    def attempt() -> None:
        raise KeyError("moving")

    with pytest.raises(KeyError, match="moving"):
        retried(attempt, KeyError, -1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("120", 120), (" 7 ", 7), ("0", 0), ("Thu, 01 Jan 1970 00:02:00 GMT", 60),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        # An hour is the longest wait that anybody can cause.
        ("999999999", 3600), ("9" * 5000, 3600), ("Thu, 01 Jan 2099 00:00:00 GMT", 3600),
        ("", None), ("-1", None), ("1.5", None), ("x", None), ("inf", None), ("\u00b2", None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None), ("Mon, 01 Jan 9999 00:00:00 -9999", None),
    ],
)  # fmt: skip
def test_a_wait_that_others_ask_for(text: str, wait: float | None) -> None:
    assert retry_after_s(text, 60.0) == wait
