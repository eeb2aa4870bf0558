"""What was sent once may be sent again with the same bytes, and never with others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from splitwire.errors import RecordingError, StateError
from splitwire.v1 import channels_pb2
from tln.exchanges import Route
from tln.training.journal import Journal


def _forward(step: int) -> Route:
    return Route(step, channels_pb2.HOP_FORWARD, channels_pb2.HOP_RETURN)


def _sent(path: Path, *steps: int) -> None:
    journal = Journal(path)
    for step in steps:
        journal.guard(_forward(step), [b"rows", str(step).encode()])
    journal.close()


def test_other_bytes_of_a_step_are_refused_after_a_restart(tmp_path: Path) -> None:
    """The same bytes pass, another hop of the step is another frame, and where messages divide counts too."""
    path = tmp_path / "journal"
    _sent(path, 1, 2)
    journal = Journal(path)
    journal.guard(_forward(2), [b"rows", b"2"])
    journal.guard(Route(2, channels_pb2.HOP_BACKWARD, channels_pb2.HOP_INPUT_GRADIENT), [b"gradient"])
    for other in ([b"rows", b"3"], [b"rows2"], [b"row", b"s2"]):
        with pytest.raises(StateError, match="FORWARD of step 2 was sent before this run was resumed"):
            journal.guard(_forward(2), other)
    journal.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_forgotten_step_may_cross_anew(tmp_path: Path) -> None:
    """After a checkpoint; also when the journal was void from the start, whose file is kept until then."""
    path = tmp_path / "journal"
    _sent(path, 1)
    void = Journal(path, is_void=True)
    assert path.read_bytes()
    void.forget()
    void.guard(_forward(1), [b"other"])
    void.close()
    with pytest.raises(StateError):
        _sent(path, 1)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(num_bytes=st.integers(0, 400))
def test_a_line_that_a_crash_cut_off_belongs_to_no_frame(tmp_path: Path, num_bytes: int) -> None:
    """Whole lines count, the rest is cut away, and what is written next is whole again."""
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    _sent(path, 1, 2, 3, 4)
    cut = path.read_bytes()[:num_bytes]
    path.write_bytes(cut)
    assert len(Journal(path)) == cut.count(b"\n")
    _sent(path, 1, 2, 3, 4, 5)
    assert len(Journal(path)) == 5


@pytest.mark.parametrize("line", ["1 1", f"1 1 {'a' * 63}", f"-1 1 {'a' * 64}", f"1 99 {'a' * 64}", "\ufffd 1 2"])
def test_a_damaged_journal_is_told(tmp_path: Path, line: str) -> None:
    """Not taken for an empty one, under which anything could cross."""
    path = tmp_path / "journal"
    path.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(RecordingError, match="is damaged"):
        Journal(path)
