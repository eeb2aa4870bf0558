"""Progress: bars on a terminal, lines elsewhere, nothing on stdout."""

from __future__ import annotations

import pytest

from tln.cli.display import rich_progress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_names_the_task_and_its_size(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds show task and count on stderr; stdout stays free for results."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    with rich_progress() as progress:
        progress.begin("decoy pool", 0)
        progress.advance(5)
        progress.begin("training", 2)
        progress.advance(1, "loss 2.5")
        progress.advance(1, "loss 1.5")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "decoy pool" in shown.err
    assert "training" in shown.err
    assert "loss 1.5" in shown.err
