from __future__ import annotations

import pytest

from tailer.network.backoff import Backoff, call_with_retries


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

    assert call_with_retries(attempt, KeyError, 60.0, Backoff(0.0, 0.0)) == "found"
    outcomes.append(ValueError("final"))
    with pytest.raises(ValueError, match="final"):
        call_with_retries(attempt, KeyError, 60.0, Backoff(0.0, 0.0))


def test_the_last_error_is_raised_when_patience_is_over() -> None:
    def attempt() -> None:
        raise KeyError("moving")

    with pytest.raises(KeyError, match="moving"):
        call_with_retries(attempt, KeyError, -1.0, Backoff(0.0, 0.0))
