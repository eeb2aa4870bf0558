"""The key ratchet goes forward only, and what it forgot nobody can derive from what is left."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from splitwire.errors import SettingsError, StateError
from tln.keys import FrameKeys, RunKey
from tln.ratchet import KeySettings, Ratchet, check_keys

SECRET = bytes(range(32))
SCOPE = "session"
STEPS = 4


def _keys() -> FrameKeys:
    return FrameKeys(RunKey(SECRET), SCOPE, STEPS)


def _draw(keys: FrameKeys, step: int) -> Any:
    return keys.stream(step, "rotation").uniforms(16)


def test_epoch_keys_are_the_stated_chain() -> None:
    """K_e = SHA-256(domain || K_(e-1) || e), computed here again; a key lasts `steps` steps."""
    ratchet, key = Ratchet(SECRET, STEPS), SECRET
    for epoch in range(4):
        key = hashlib.sha256(b"splitwire/epoch-key/v1" + key + struct.pack(">Q", epoch)).digest()
        assert {ratchet.key_for(step) for step in range(STEPS * epoch, STEPS * (epoch + 1))} == {key}


def test_the_epoch_before_is_kept_and_none_earlier() -> None:
    """A gradient of the epoch before may still be due; two epochs back is refused with what to do."""
    ratchet = Ratchet(SECRET, STEPS)
    first, second = ratchet.key_for(0), ratchet.key_for(STEPS)
    assert ratchet.key_for(0) == first
    ratchet.key_for(2 * STEPS)
    assert ratchet.key_for(STEPS) == second
    with pytest.raises(StateError, match="step 3 is of an epoch whose key is forgotten"):
        ratchet.key_for(3)


def test_streams_change_with_the_ratchet_and_come_again_for_who_has_the_run_key() -> None:
    """The trusted node and the auditor draw the same, the auditor in any order of steps."""
    trusted, auditor = _keys(), _keys()
    trusted.forget()
    drawn = [_draw(trusted, step) for step in range(1, 5 * STEPS)]
    assert not np.array_equal(drawn[0], _draw(FrameKeys(RunKey(SECRET), SCOPE), 1))
    for step in reversed(range(1, 5 * STEPS)):
        assert np.array_equal(_draw(auditor, step), drawn[step - 1])


def _reachable(root: object) -> Iterator[bytes]:
    """Every bytes object that attributes lead to."""
    waiting, seen = [root], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, bytes):
            yield one
        waiting.extend(vars(one).values() if hasattr(one, "__dict__") else ())


def test_nothing_that_is_left_derives_a_forgotten_epoch() -> None:
    """After the run key stepped down, no key within reach of the trusted node gives the first epoch's stream."""
    run_key = RunKey(SECRET)
    keys = FrameKeys(run_key, SCOPE, STEPS)
    early = _draw(keys, 1)
    keys.forget()
    run_key.step_down()
    _draw(keys, 3 * STEPS)
    with pytest.raises(StateError, match="forgotten"):
        keys.stream(1, "rotation")
    left = [key for root in (keys, run_key) for key in _reachable(root) if len(key) == 32]
    assert len(left) == 3
    assert SECRET not in left
    for key in left:
        assert not np.array_equal(_draw(FrameKeys(RunKey(key), SCOPE, STEPS), 1), early)
        assert not np.array_equal(RunKey(key).stream(SCOPE, 1, "rotation").uniforms(16), early)


def test_a_stepped_down_run_key_has_streams_of_its_own() -> None:
    """The order of blocks and the like, which an auditor draws again after the same step."""
    stepped, again, whole = RunKey(SECRET), RunKey(SECRET), RunKey(SECRET)
    stepped.step_down()
    again.step_down()
    drawn = stepped.stream("order", 0, "x").uniforms(8)
    assert np.array_equal(drawn, again.stream("order", 0, "x").uniforms(8))
    assert not np.array_equal(drawn, whole.stream("order", 0, "x").uniforms(8))


def test_keys_without_a_ratchet_never_lose_the_run_key() -> None:
    """Nor does a ratchet that has no scope yet: it would have nothing to go on with."""
    for keys in (FrameKeys(RunKey(SECRET), SCOPE), FrameKeys(RunKey(SECRET), "", STEPS)):
        with pytest.raises(RuntimeError, match="only a ratchet with a scope"):
            keys.forget()


@pytest.mark.parametrize("steps", [-1, 2**31 + 1])
def test_a_number_out_of_range_is_named(steps: int) -> None:
    """Before anything is derived."""
    with pytest.raises(SettingsError, match=rf"keys\.ratchet_steps is {steps}"):
        check_keys(KeySettings(ratchet_steps=steps))
