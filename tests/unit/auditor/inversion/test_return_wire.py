"""What returned rows, and rows of a model that nobody knows, tell of texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from auditor.attacks.inversion.base import NO_GUESS
from auditor.attacks.inversion.generation_based import GenerationBased
from auditor.attacks.inversion.logit2text import LogitToText
from auditor.attacks.inversion.mc import CompletedText
from auditor.attacks.inversion.output2text import OutputToText
from auditor.attacks.inversion.replication import Replication, distance, replicated
from auditor.plan import InversionSettings
from auditor.progress import silent
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import CapturedText, KnownPlaintext
from splitwire.backbone import ModelSettings
from splitwire.errors import ModelError

from .crossed import Crossed, crossed

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = InversionSettings()
CHANCE = 0.15
UNSEEN = -2  # in place of a token that nothing tells
_INVERTER = {"hidden_width": 48, "inverter_learning_rate": 1e-2, "num_epochs": 10, "piece_positions": 12}


@pytest.fixture(scope="module")
def cut(tiny_model: Callable[[str], Path]) -> ModelSettings:
    return ModelSettings(source=str(tiny_model("llama")), first_layer=2, last_layer=4)


@pytest.fixture(scope="module")
def answered(cut: ModelSettings) -> Crossed:
    """Texts of which the model foresees 60 of 100 tokens."""
    return crossed(cut, texts=4, auxiliary=120, known=12, foreseen_ratio=0.6)


@pytest.fixture
def tiny_t5(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    """A random encoder-decoder with a tokenizer of bytes."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_model("llama"))
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=2,
        pad_token_id=258,
        eos_token_id=257,
        decoder_start_token_id=258,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


def test_completion_reads_a_greedy_answer_to_the_letter(cut: ModelSettings) -> None:
    """Every token after the first is the model's own, and the public tail says so with its probability."""
    greedy = crossed(cut, texts=2, foreseen_ratio=1.0)
    recovered = CompletedText().run(greedy.view, SETTINGS, silent)
    assert greedy.accuracy(recovered, first=1) == 1
    assert all(guess.tokens[0] == NO_GUESS for guess in recovered)
    assert all(guess.certainty is not None and guess.certainty[1:].min() > 0 for guess in recovered)
    noise = greedy.noise()
    assert noise.accuracy(CompletedText().run(noise.view, SETTINGS, silent), first=1) < CHANCE


@pytest.mark.parametrize("attack", [LogitToText(**_INVERTER, num_features=64), OutputToText(**_INVERTER)])
def test_trained_inverters_read_tokens_from_what_comes_out(answered: Crossed, attack: LogitToText) -> None:
    """More than the noise of the same size tells."""
    found = answered.accuracy(attack.run(answered.view, SETTINGS, silent))
    noise = answered.noise()
    told = noise.accuracy(attack.run(noise.view, SETTINGS, silent))
    assert found > 0.12
    assert told < 0.06


def test_returned_rows_and_public_text_are_asked_for_by_name(answered: Crossed) -> None:
    text = replace(answered.view.texts[0], returned=None)
    with pytest.raises(NotMeasurableError, match="RETURN"):
        OutputToText(**_INVERTER).run(replace(answered.view, texts=(text,)), SETTINGS, silent)
    with pytest.raises(NotMeasurableError, match=r"inversion\.auxiliary"):
        LogitToText(**_INVERTER).run(replace(answered.view, auxiliary=()), SETTINGS, silent)


def test_an_encoder_decoder_made_from_nothing_learns_to_write(answered: Crossed) -> None:
    """It writes texts that it was taught, from their rows, and not from noise."""
    attack = GenerationBased(
        public_head=False, writer_width=32, writer_epochs=60, writer_learning_rate=5e-3, max_length=12
    )
    taught = answered.view.known[:6]
    texts = tuple(CapturedText(text.forward, None, None, None, 12) for text in taught)
    seen = Crossed(
        replace(answered.view, texts=texts, known=taught), [np.append(text.tokens, UNSEEN) for text in taught]
    )
    assert seen.accuracy(attack.run(seen.view, SETTINGS, silent)) > 0.6
    noise = seen.noise()
    assert noise.accuracy(attack.run(noise.view, SETTINGS, silent)) < 2 * CHANCE


@pytest.mark.parametrize("kind", ["generation_based", "logit2text"])
def test_a_published_encoder_decoder_is_trained_and_asked(answered: Crossed, tiny_t5: Path, kind: str) -> None:
    """Through its own tokenizer: what it writes comes back as tokens of the public model, the same in every run."""
    few = {"model": str(tiny_t5), "writer_epochs": 1, "num_pieces": 8, "piece_positions": 12, "max_length": 16}
    attack = GenerationBased(**few) if kind == "generation_based" else LogitToText(**few, num_features=64)
    first, second = (attack.run(answered.view, SETTINGS, silent) for _ in range(2))
    assert [guess.tokens.tolist() for guess in first] == [guess.tokens.tolist() for guess in second]
    assert all(len(guess.tokens) == 13 for guess in first)
    assert all(guess.tokens.max() < 264 for guess in first)


def test_an_encoder_decoder_that_is_not_there_is_named(answered: Crossed, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        GenerationBased(model=str(tmp_path / "none"), num_pieces=2).run(answered.view, SETTINGS, silent)


def test_the_black_box_needs_known_plaintext(answered: Crossed) -> None:
    view = replace(answered.view, known=())
    for attack in (GenerationBased(public_head=False), Replication()):
        with pytest.raises(NotMeasurableError, match="known plaintext"):
            attack.run(view, SETTINGS, silent)


def test_a_replica_comes_closer_to_a_head_that_was_fine_tuned(answered: Crossed, cut: ModelSettings) -> None:
    """Its rows on known texts come at least twice as near to the target's as the base's; the base stays as it was."""
    target = PublicModel(cut).head.requires_grad_(requires_grad=False)
    for name, parameter in target.named_parameters():
        if "down_proj" in name or "v_proj" in name:
            generator = torch.Generator().manual_seed(len(name))
            parameter.data.add_(0.03 * torch.randn(parameter.shape, generator=generator))
    known = tuple(
        KnownPlaintext(text.tokens, target(torch.from_numpy(text.tokens)[None])[0]) for text in answered.view.known
    )
    view = replace(answered.view, known=known)
    before = distance(view.model.head, view)
    how = Replication(replica_epochs=20, replica_learning_rate=5e-3)
    replica = replicated(how, view.model.head, view, lambda *_: None)
    assert distance(replica, view) < 0.5 * before
    assert distance(view.model.head, view) == before


def test_token_basis_selection_runs_on_the_replica(answered: Crossed) -> None:
    """Known texts of the public head itself: replicating changes nothing, and TBS reads the rows."""
    view = replace(answered.view, texts=answered.view.texts[:1])
    attack = Replication(num_steps=150, learning_rate=0.02, replica_epochs=1)
    recovered = attack.run(view, SETTINGS, silent)
    one = Crossed(view, answered.tokens[:1])
    assert one.accuracy(recovered) > 0.3
    assert recovered[0].details["replica_distance"] < 1e-3
    noise = one.noise()
    assert noise.accuracy(attack.run(noise.view, SETTINGS, silent)) < CHANCE
