"""Generation over a real untrusted node, recorded, and its texts rebuilt by the auditor from the bundle alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from auditor.attacks import ATTACKS
from auditor.attacks.base import Assumes
from auditor.attacks.inversion.base import NO_GUESS, Recovered
from auditor.audit import run_audit
from auditor.channels import FORWARD_ONLY
from auditor.cli import app
from auditor.comparing.files import write_comparison
from auditor.comparing.run import Comparison
from auditor.evidence.inputs import open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import InversionSettings, Plan, ResponseSettings, StatisticsSettings
from auditor.plan.files import render_plan
from auditor.progress import Progress, silent
from auditor.report.junit import render_junit
from auditor.report.page import render_page
from auditor.views.base import DoesNotApplyError, NotMeasurableError
from auditor.views.prompt import CapturedText, PromptView
from auditor.views.prompt_capture import Grants, prompt_view
from splitwire.backbone import load_head, load_tokenizer
from splitwire.errors import SettingsError
from splitwire.sealing import write_audit_keys
from splitwire.tls import TlsFiles
from tln.connect import connect as connect_as_told
from tln.connection import ConnectionSettings
from tln.recording import RecordSettings
from tln.settings import TlnSettings
from tln.stack_settings import StackSettings

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = (
    "My sister Ada lives in Leeds and is allergic to nuts",
    "Remind me that the rent of 840 pounds is due on Friday",
    "Our cat Milo had surgery in March and needs drops twice a day",
    "I left the firm after nine years and have told nobody yet",
)
PLAN = Plan(
    attacks=("exhaustive",),
    families=(FORWARD_ONLY,),
    scope=(FORWARD_ONLY,),
    statistics=StatisticsSettings(repetitions=500),
    inversion=InversionSettings(max_texts=40, max_positions=4),
)
WHOLE = replace(PLAN, inversion=InversionSettings(max_texts=40))


@dataclass(frozen=True)
class Exhaustive:
    """Tries every token at every position: exact where nothing protects, and cheap with 264 tokens."""

    measure: str = "euclidean"

    name: ClassVar[str] = "exhaustive"
    question: ClassVar[str] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = "forward rows; the public model"
    assumes: ClassVar[Assumes] = Assumes(public_weights=True)
    paper: ClassVar[str] = "a test"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text."""
        del settings, progress
        return [Recovered(np.array([*self._tokens(view, text), NO_GUESS]), 0.01) for text in view.texts]

    @torch.no_grad()
    def _tokens(self, view: PromptView, text: CapturedText) -> list[int]:
        tokens: list[int] = []
        every = torch.arange(view.model.head.embedding.num_embeddings)[:, None]
        for row in text.forward:
            prefix = torch.tensor(tokens, dtype=torch.int64).expand(len(every), len(tokens))
            rows = view.model.head(torch.cat([prefix, every], dim=1))[:, -1]
            tokens.append(int((rows - row).norm(dim=1).argmin()))
        return tokens


@pytest.fixture(autouse=True)
def with_exhaustive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "exhaustive", Exhaustive())


@dataclass(frozen=True)
class Recorded:
    """A bundle of generation with its key, and what was generated in it: prompt and answer of every text."""

    bundle: Path
    key: Path
    texts: list[list[int]]
    num_prompts: list[int]
    model: Any
    other_model: Path


def _settings(node: Any, tls: TlsFiles, folder: Path, keys: Path) -> TlnSettings:
    return TlnSettings(
        model=node.settings.model,
        stack=StackSettings(prefill_positions=16),
        connection=ConnectionSettings(address=node.settings.listen, tls=tls),
        record=RecordSettings(folder=str(folder), audit_key=str(keys / "audit.pub")),
    )


@pytest.fixture(scope="module")
def kept() -> dict[str, Recorded]:
    """What one recording left, for all tests of the module."""
    return {}


@pytest.fixture
def recorded(
    kept: dict[str, Recorded],
    pki: dict[str, TlsFiles],
    start_node: Callable[..., Any],
    tiny_model: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Recorded:
    """22 prompts: in parts, in a padded batch, by beam search and by prompt lookup, which takes positions back."""
    if kept:
        return kept["bundle"]
    tmp_path = tmp_path_factory.mktemp("generation")
    node, keys = start_node(), tmp_path / "keys"
    write_audit_keys(keys)
    tokenizer = load_tokenizer(node.settings.model)
    prompts = [tokenizer(f"{number}: {WORDS[number % 4][: 30 + number]}")["input_ids"] for number in range(22)]
    texts: list[list[int]] = []
    with connect_as_told(_settings(node, pki["tln"], tmp_path / "bundle", keys)) as connected:
        model = connected.model
        for prompt in prompts[:-5]:
            output = model.generate(torch.tensor([prompt]), max_new_tokens=4, do_sample=False, eos_token_id=None)
            texts.append(output[0].tolist())
        padded = tokenizer.pad({"input_ids": prompts[-5:-2]}, padding_side="left", return_tensors="pt")
        output = model.generate(**padded, max_new_tokens=4, do_sample=False, eos_token_id=None)
        width = output.shape[1] - 4
        texts += [row[width - len(prompt) :].tolist() for row, prompt in zip(output, prompts[-5:-2], strict=True)]
        for number, how in ((-2, {"num_beams": 2}), (-1, {"prompt_lookup_num_tokens": 3})):
            output = model.generate(
                torch.tensor([prompts[number]]), max_new_tokens=4, do_sample=False, eos_token_id=None, **how
            )
            texts.append(output[0].tolist())
    lengths = [len(prompt) for prompt in prompts]
    other = tiny_model("mistral")
    kept["bundle"] = Recorded(tmp_path / "bundle", keys / "audit.key", texts, lengths, node.settings.model, other)
    return kept["bundle"]


def _view(recorded: Recorded, plan: Plan = WHOLE, **grants: bool) -> Any:
    evidence = open_evidence([recorded.bundle], key=recorded.key)
    with opened_material(evidence, replace(plan, compute_modes=()), silent) as opened:
        return prompt_view(opened.material, FORWARD_ONLY, plan, Grants(**grants))


def test_the_view_holds_every_text_whole(recorded: Recorded) -> None:
    """Each once, in order, with the tokens that were generated; its rows are the head's on those very tokens."""
    view, key = _view(recorded)
    assert key.problems == ()
    found = {tuple(text.tokens.tolist()): number for number, text in enumerate(key.texts)}
    head = load_head(recorded.model)
    for tokens, num_prompt in zip(recorded.texts, recorded.num_prompts, strict=True):
        number = found[tuple(tokens)]
        assert key.texts[number].num_prompt == num_prompt
        with torch.no_grad():
            expected = head(torch.tensor([tokens[:-1]]))[0]
        torch.testing.assert_close(view.texts[number].forward, expected, rtol=1e-4, atol=1e-4)
        assert view.texts[number].returned.shape == expected.shape


def test_an_undefended_generation_fails(recorded: Recorded) -> None:
    """Its texts are read to the letter, the control is found, the twin reads nothing; numbers alone are told."""
    report = run_audit([recorded.bundle], key=recorded.key, plan=PLAN)
    (result,) = report["results"]
    (check,) = result["checks"]
    assert check["state"] == "fail"
    assert check["counts"]["k"] == check["counts"]["n"] == 4 * result["num_frames"]
    assert result["controls"][0]["found"]
    assert result["twin"]["upper_pp"] < 0
    assert result["num_documents"] == 22
    accuracy = next(
        m for m in result["details"]["text_metrics"] if (m["name"], m["part"]) == ("token_accuracy", "text")
    )
    assert accuracy["value"] == accuracy["upper"] == 1.0
    assert 0.8 < accuracy["lower"] < 1.0
    assert "exhaustive rebuilds texts from forward rows" in report["verdict"]["reasons"][0]["text"]
    page = render_page(report)
    assert "token accuracy" in page
    told = json.dumps(report) + page + render_junit(report)
    assert "Ada" not in told
    assert "840" not in told


def test_rows_of_a_shuffled_generation_give_no_false_alarm(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of every text in another order, as a gauge would send them: nothing is named at its place."""
    with monkeypatch.context() as patch:
        patch.setattr("auditor.views.prompt_capture.CapturedText", _shuffled)
        report = run_audit([recorded.bundle], key=recorded.key, plan=PLAN)
    (check,) = report["results"][0]["checks"]
    assert check["state"] != "fail"
    assert check["lower"] < 0
    assert report["results"][0]["controls"][0]["found"]


def _shuffled(forward: torch.Tensor, *rest: Any) -> CapturedText:
    return CapturedText(forward.roll(1, dims=0), *rest)


def test_the_default_plan_measures_a_generation(recorded: Recorded) -> None:
    """Its inversion attacks run on what it leaves to them, and what is about training does not apply."""
    assert {"nearest_vocabulary", "exact_inverter", "mc"} <= set(Plan().attacks)
    attacks = ("row_norm", "latent_probe", "model_completion", "nearest_vocabulary", "mc")
    plan = replace(Plan(), attacks=attacks, inversion=WHOLE.inversion)
    report = run_audit([recorded.bundle], key=recorded.key, plan=plan)
    found = {result["attack"]: result["checks"][0] for result in report["results"]}
    assert found.keys() == {"nearest_vocabulary", "mc"}
    assert found["mc"]["metric"] == "answer_token_effect"
    # Greedy answers are read to the letter; two of the 23 texts are beams.
    assert found["mc"]["counts"]["k"] >= found["mc"]["counts"]["n"] - 2 * 4
    assert not any(entry["applies"] for entry in report["not_measured"] if entry["family"] == FORWARD_ONLY)


def test_a_comparison_goes_on_where_it_stopped(recorded: Recorded, tmp_path: Path) -> None:
    """A cell that is done is not run again; one that fails is told, tried again and leaves the others alone."""
    runs: list[str] = []

    class Counted(Exhaustive):
        def run(self, *given: Any) -> list[Recovered]:
            runs.append("run")
            return super().run(*given)

    class Broken(Exhaustive):
        name = "broken"

        def run(self, *given: Any) -> list[Recovered]:
            raise ValueError(f"Ada {len(given)}")

    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ATTACKS, "exhaustive", Counted())
        patch.setitem(ATTACKS, "broken", Broken())
        comparison = Comparison(("exhaustive", "broken"), key=recorded.key, plan=PLAN)
        for _ in range(2):
            compared = comparison.run([recorded.bundle], out / "parts", silent)
    assert runs == ["run"]
    (cell,), (failure,) = compared.cells, compared.failures
    assert failure.reason == "the attack ended with ValueError"
    assert cell.num_documents == 22
    write_comparison(compared, PLAN, out, {"undefended": 0.5, "bundle": 0.5})
    table = (out / "comparison.md").read_text()
    assert "| bundle | exhaustive | forward_only | 23 |" in table
    assert "1.000 (0.8" in table
    tree = json.loads((out / "comparison.json").read_text())
    assert tree["cells"][0]["dcs"] is None or 0 < tree["cells"][0]["dcs"] < 1
    assert "token_accuracy" in (out / "comparison.csv").read_text()
    with pytest.raises(SettingsError, match="parts of another audit"):
        Comparison(("exhaustive",), key=recorded.key, plan=WHOLE).run([recorded.bundle], out / "parts", silent)


def test_the_command_tells_what_could_not_be_had(recorded: Recorded, tmp_path: Path) -> None:
    """An attack about training does not apply to a generation; names that are no inversion attack are refused."""
    (tmp_path / "plan.toml").write_text(render_plan(PLAN))
    given = [str(recorded.bundle), "--key", str(recorded.key), "--out", str(tmp_path / "out")]
    given += ["--plan", str(tmp_path / "plan.toml")]
    result = CliRunner().invoke(app, ["compare", "--attacks", "exhaustive,label_norm", "--show-texts", *given])
    assert result.exit_code == 1, result.output
    assert "recovered  0: M" in result.stdout
    assert "label_norm on gradient_only of bundle: nothing was trained" in result.stderr
    refused = CliRunner().invoke(app, ["compare", "--attacks", "row_norm", *given])
    assert isinstance(refused.exception, SettingsError)
    assert "no inversion attack" in str(refused.exception)


def test_what_cannot_be_measured_says_why(recorded: Recorded) -> None:
    """Another question, no truth, the victim's text as public text, too much asked of the truth."""
    with pytest.raises(DoesNotApplyError, match="no TRAIN frame"):
        _view(recorded, training=True)
    evidence = open_evidence([recorded.bundle], key=recorded.key)
    with opened_material(evidence, replace(PLAN, compute_modes=()), silent) as opened:
        with pytest.raises(NotMeasurableError, match="no truth is given"):
            prompt_view(replace(opened.material, truths=()), FORWARD_ONLY, PLAN, Grants())
        few = replace(opened.material, truths=[_other_vocabulary(truth) for truth in opened.material.truths])
        with pytest.raises(NotMeasurableError, match="another vocabulary, of 9"):
            prompt_view(few, FORWARD_ONLY, PLAN, Grants())
        other = replace(PLAN, response=ResponseSettings(source=str(recorded.other_model)))
        with pytest.raises(NotMeasurableError, match="other weights"):
            prompt_view(opened.material, FORWARD_ONLY, other, Grants())


def _other_vocabulary(truth: Any) -> Any:
    return replace(truth, facts={**truth.facts, "vocabulary_size": 9})


def test_public_text_of_the_victim_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    """An attack would be scored on what it was taught; the file is named."""
    file = tmp_path / "public.jsonl"
    file.write_text(json.dumps({"text": f"{WORDS[0]}. {'Something else. ' * 200}"}) + "\n")
    plan = replace(WHOLE, inversion=replace(WHOLE.inversion, auxiliary=str(file)))
    with pytest.raises(SettingsError, match=r"public\.jsonl has 13 tokens in a row in common"):
        _view(recorded, plan, auxiliary_text=True)


def test_known_plaintext_is_of_other_documents(recorded: Recorded) -> None:
    """Texts of train documents come with their tokens, and none of them is attacked."""
    view, key = _view(recorded, known_plaintext=True)
    attacked = {text.tokens[: len(rows.forward)].tobytes() for text, rows in zip(key.texts, view.texts, strict=True)}
    assert len(view.known) >= 8
    assert attacked.isdisjoint({known.tokens.tobytes() for known in view.known})
    head = load_head(recorded.model)
    with torch.no_grad():
        expected = head(torch.from_numpy(view.known[0].tokens)[None])[0]
    torch.testing.assert_close(view.known[0].forward, expected, rtol=1e-4, atol=1e-4)
