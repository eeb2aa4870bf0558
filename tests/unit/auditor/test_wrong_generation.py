"""Bundles of generation that are wrong, hostile or say little: no wrong pass, no traceback, and the reason is told."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from auditor.attacks import ATTACKS
from auditor.attacks.inversion.nearest_vocabulary import NearestVocabulary
from auditor.attacks.inversion.sipit import SipIt
from auditor.audit import run_audit
from auditor.channels import FORWARD_ONLY, RESPONSE_SIDE
from auditor.comparing.files import write_comparison
from auditor.comparing.run import Comparison
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import InversionSettings, Plan, StatisticsSettings
from auditor.progress import silent
from auditor.report.reading import read
from auditor.scorers.inverting import capture_texts
from auditor.views.base import NotMeasurableError
from splitwire.backbone import ModelSettings
from splitwire.errors import SettingsError, SplitwireError
from tests.unit.auditor.generated import Generated, write_generation

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN = Plan(
    attacks=("nearest_vocabulary",),
    families=(FORWARD_ONLY, RESPONSE_SIDE),
    scope=(FORWARD_ONLY,),
    statistics=StatisticsSettings(repetitions=200),
)
Write = Callable[..., Generated]


@pytest.fixture(scope="module")
def write(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Write:
    model = ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)

    def make(texts: list[list[int]] | None = None, **how: Any) -> Generated:
        return write_generation(tmp_path_factory.mktemp("generation"), model, texts or _texts(), **how)

    return make


def _texts(count: int = 22, length: int = 14, seed: int = 3) -> list[list[int]]:
    drawn: list[list[int]] = np.random.default_rng(seed).integers(0, 256, (count, length)).tolist()
    return drawn


def _audited(generated: Generated, plan: Plan = PLAN) -> dict[str, Any]:
    return run_audit([generated.bundle], key=generated.key, plan=plan)


def test_two_audits_of_one_bundle_are_the_same_bytes(write: Write) -> None:
    generated = write()
    one, two = (json.dumps(_audited(generated)) for _ in range(2))
    assert one == two


def test_one_prompt_is_one_document_however_often_it_is_sent(write: Write) -> None:
    """22 copies are no 22 witnesses: a pass would need 20 documents, and they are one."""
    (result,) = _audited(write(_texts(1) * 22))["results"]
    assert result["num_documents"] == 1
    assert result["num_frames"] == 20
    assert "1 test documents, at least 20 are needed" in [reason["text"] for reason in result["checks"][0]["reasons"]]


def test_tokens_that_the_truth_withholds_keep_it_from_passing(write: Write) -> None:
    """They crossed, and a truth that tells a few of them alone would leave what was read out of the number."""

    def withheld(tokens: np.ndarray, _: int) -> np.ndarray:
        told: np.ndarray = np.where(np.arange(len(tokens)) < 10, -1, tokens).astype(np.int32)
        return told

    (result,) = _audited(write(told=withheld))["results"]
    check = result["checks"][0]
    assert check["counts"]["n"] == 20 * 3
    assert "220 positions whose token the truth does not tell" in [reason["text"] for reason in check["reasons"]]
    nothing = _audited(write(told=lambda tokens, _: np.full_like(tokens, -1)))["not_measured"]
    assert nothing[0]["reason"].startswith("no position whose token the truth tells")
    assert nothing[0]["applies"]


def test_the_truth_of_another_run_is_no_truth(write: Write) -> None:
    """Its digests are of other bytes; the same for one in tokens of another vocabulary."""
    mine, other = write(), write(_texts(seed=9))
    report = run_audit([mine.bundle], key=other.key, plan=PLAN, truth_files=[other.bundle / "truth.sealed"])
    assert report["verdict"]["state"] == "inconclusive"
    assert "other bytes than those of the truth" in report["not_measured"][0]["reason"]
    foreign = _audited(write(told=lambda tokens, _: (tokens + 300).astype(np.int32)))
    assert "another vocabulary" in foreign["not_measured"][0]["reason"]


def test_caches_may_use_a_number_again(write: Write) -> None:
    """After its release it is another text."""
    (result,) = _audited(write(repeat_caches=True))["results"]
    assert result["num_documents"] == 20
    assert result["details"]["texts_available"] == 22


def test_texts_beyond_the_window_are_left_out_and_told(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    generated = write([*_texts(5), *_texts(1, 30)])
    with _material(generated) as opened:
        window = capture_texts(ATTACKS["nearest_vocabulary"], opened.material, FORWARD_ONLY, PLAN)
        monkeypatch.setattr(window.view.model.head.config, "max_position_embeddings", 20)
        monkeypatch.setattr("auditor.views.prompt_capture.find_public_model", lambda *_: (window.view.model, ""))
        captured = capture_texts(ATTACKS["nearest_vocabulary"], opened.material, FORWARD_ONLY, PLAN)
    assert len(captured.view.texts) == 5
    assert captured.key.problems == ("1 texts are longer than the 20 positions of the public model",)


def _material(generated: Generated) -> Any:
    evidence = open_evidence([generated.bundle], key=generated.key)
    return opened_material(evidence, replace(PLAN, compute_modes=()), silent)


class Ending(NearestVocabulary):
    """Ends as one that meets rows that no model makes."""

    name: ClassVar[str] = "ending"

    def run(self, *_: Any) -> Any:
        raise RuntimeError("Ada")


def test_an_attack_that_ends_is_not_measured(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, nothing of what it read is told, and there is no pass."""
    monkeypatch.setitem(ATTACKS, "ending", Ending())
    report = _audited(write(), replace(PLAN, attacks=("ending", "nearest_vocabulary")))
    assert [entry["reason"] for entry in report["not_measured"]] == ["the attack ended with RuntimeError"]
    assert len(report["results"]) == 1
    assert "Ada" not in json.dumps(report)
    assert any("ending could not run" in reason["text"] for reason in report["verdict"]["reasons"])


def test_rows_that_are_no_numbers_are_refused(write: Write) -> None:
    def broken(rows: torch.Tensor, number: int) -> torch.Tensor:
        return rows * float("nan") if number == 3 else rows

    with pytest.raises(SplitwireError, match="NaN or Inf"):
        _audited(write(change_rows=broken))


def test_rows_of_zeros_are_not_read_with_certainty(write: Write) -> None:
    """Every token lies near a row that says nothing. Where rows are told, certainty is of the tokens that are named."""
    for change, certainty in ((torch.zeros_like, 0.0), (torch.clone, 1.0)):
        generated = write(_texts(3, 6), change_rows=lambda rows, _, change=change: change(rows))
        with _material(generated) as opened:
            captured = capture_texts(SipIt(), opened.material, FORWARD_ONLY, PLAN)
            told = captured.attacked(captured.view, PLAN, silent).told_numbers()
        assert told["attack_certainty"] == certainty


def test_a_bundle_that_was_cut_off_cannot_pass(write: Write) -> None:
    """It is read as far as it goes, or refused."""
    for share in (0.0, 0.5, 0.97):
        generated = write(_texts(4))
        wire = generated.bundle / "wire.mcap"
        wire.write_bytes(wire.read_bytes()[: int(share * wire.stat().st_size)])
        for name in ("manifest.json", "manifest.sig"):
            (generated.bundle / name).unlink()
        with contextlib.suppress(SplitwireError):
            assert _audited(generated)["verdict"]["state"] != "pass"


def test_a_comparison_tells_what_to_do_about_a_bundle(write: Write, tmp_path: Path) -> None:
    """A wrong key fails its cells with the remedy; a folder that is none is refused."""
    mine, other = write(_texts(5)), write(_texts(5))
    compared = Comparison(("nearest_vocabulary",), key=other.key, plan=PLAN).run(
        [mine.bundle], tmp_path / "parts", silent
    )
    assert "key" in compared.failures[0].reason
    assert ": " in compared.failures[0].reason
    with pytest.raises(SplitwireError, match="nowhere"):
        Comparison(("nearest_vocabulary",), key=mine.key, plan=PLAN).run(
            [tmp_path / "nowhere"], tmp_path / "none", silent
        )


def test_a_table_is_written_whole_or_not_at_all(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up between two of the files leaves none of them, and the cells. Progress names every cell."""
    generated, told = write(_texts(5)), []
    comparison = Comparison(("nearest_vocabulary",), key=generated.key, plan=PLAN)
    compared = comparison.run([generated.bundle], tmp_path / "parts", lambda label, *_: told.append(label))
    assert any(label.startswith("bundle 1/1, 1/") and "nearest_vocabulary on forward_only: " in label for label in told)
    written = Path.write_text

    def full(path: Path, text: str, **how: Any) -> int:
        if "csv" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(path, text, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(SplitwireError, match="No space left"):
            write_comparison(compared, PLAN, tmp_path, {})
    assert [file.name for file in tmp_path.iterdir()] == ["parts"]
    assert len(write_comparison(compared, PLAN, tmp_path, {})) == 3


def test_one_text_that_is_read_is_no_quiet_result(write: Write) -> None:
    """No bound can be had of it, so the audit is open; what it says first is that something was read."""
    report = _audited(write(_texts(2)), replace(PLAN, attacks=("exact_inverter",)))
    assert report["verdict"]["state"] == "inconclusive"
    told = read(report)
    assert told.headline.startswith("1 of 1 checks read a leak above the ceiling")
    assert any("Expect a fail with more data" in step for step in told.steps)


def test_a_comparison_is_of_one_public_text(write: Write, tmp_path: Path) -> None:
    """The plan names a file, which may hold something else when it goes on: cells would not compare."""
    public = tmp_path / "public.jsonl"
    plan = replace(PLAN, inversion=InversionSettings(auxiliary=str(public)))
    generated = write(_texts(5))
    for word in ("public", "other"):
        public.write_text(json.dumps({"text": f"{word} words " * 200}) + "\n")
        comparison = Comparison(("nearest_vocabulary",), key=generated.key, plan=plan)
        if word == "public":
            assert comparison.run([generated.bundle], tmp_path / "parts", silent).cells
            continue
        with pytest.raises(SettingsError, match="differs in auxiliary"):
            comparison.run([generated.bundle], tmp_path / "parts", silent)


def test_known_plaintext_needs_documents_to_grant(write: Write) -> None:
    generated = write(_texts(1) * 6)
    with _material(generated) as opened, pytest.raises(NotMeasurableError, match="1 documents are too few"):
        capture_texts(ATTACKS["replication"], opened.material, FORWARD_ONLY, PLAN)
