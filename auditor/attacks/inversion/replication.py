"""Replication: a public head is fine-tuned until it makes the rows of the target's, and is then inverted in its place.

The rows are the target's own on texts that the attacker knows. The base is a public model of the same layout: `base`,
else what model identification chooses among its `candidates`, else the model of the view. Low-rank adapters on all its
linear layers are trained on the squared distance of rows. Token basis selection then works against the replica.
Published with adapters over a 4-bit base, which saves memory and changes nothing else. Without known plaintext there is
nothing to replicate from: TBS against the base itself is the transferred attack, which `tbs` runs.

Shapes: T positions of one text, H hidden width.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat

from auditor.attacks.base import Assumes, Question
from auditor.attacks.inversion.base import Recovered
from auditor.attacks.inversion.model_identification import ModelIdentification
from auditor.attacks.inversion.parameters import configured
from auditor.attacks.inversion.tbs import TokenBasisSelection
from auditor.channels import FORWARD_ONLY
from auditor.plan import Count, InversionSettings
from auditor.progress import Progress
from auditor.public_model import PublicModel
from auditor.views.base import NotMeasurableError
from auditor.views.prompt import PromptView
from splitwire.backbone import HeadModel
from splitwire.errors import ModelError


@dataclass(frozen=True)
class Replication(TokenBasisSelection):
    """TBS on a replica of the head; its learning rate is the one that the paper found best for replicas."""

    learning_rate: PositiveFloat = 1e-4
    """Of TBS."""
    base: str = ""
    """Folder or hub id of the public model that is fine-tuned. Empty: the one that model_identification chooses among
    the candidates that the plan gives it, or the model of the view where it gives none."""
    rank: Count = 8
    """Of the adapters."""
    replica_learning_rate: PositiveFloat = 1e-4
    """Of AdamW, on the adapters."""
    replica_epochs: Count = 3
    """Passes over the known texts."""

    name: ClassVar[str] = "replication"
    question: ClassVar[Question] = "prompt"
    families: ClassVar[tuple[str, ...]] = (FORWARD_ONLY,)
    knowledge: ClassVar[str] = (
        "forward rows; texts of train documents with their rows; a public model, or several and public text"
    )
    assumes: ClassVar[Assumes] = Assumes(known_plaintext=True, public_weights=True, auxiliary_text=True)
    paper: ClassVar[str] = "replication-based inversion (inverting internal states of LLMs, section 4.3)"

    def run(self, view: PromptView, settings: InversionSettings, progress: Progress) -> list[Recovered]:
        """One guess a text, in order; NotMeasurableError without known plaintext."""
        if not view.known:
            raise NotMeasurableError("no text is declared known plaintext, so the head cannot be replicated")
        began = time.perf_counter()
        base = self._base(view, settings, progress)
        head = replicated(
            self, base.head.to(settings.device), view, lambda d, n: progress(f"{self.name}: fitting", d, n)
        )
        details = {
            "base_distance": distance(base.head, view),
            "replica_distance": distance(head, view),
            "fit_seconds": time.perf_counter() - began,
        }
        recovered = super().run(replace(view, model=Replica(base, head)), settings, progress)
        if recovered:
            recovered[0] = replace(recovered[0], details={**recovered[0].details, **details})
        return recovered

    def _base(self, view: PromptView, settings: InversionSettings, progress: Progress) -> PublicModel:
        source = self.base or self._identified(view, settings, progress)
        base = PublicModel(replace(view.model.settings, source=source, revision="")) if source else view.model
        if base.head.hidden_width != view.known[0].forward.shape[1]:
            raise ModelError(
                f"replication.base makes rows of width {base.head.hidden_width}, the captured ones have "
                f"{view.known[0].forward.shape[1]}",
                remedy="name the model that model_identification chose, or leave it empty",
            )
        return base

    def _identified(self, view: PromptView, settings: InversionSettings, progress: Progress) -> str:
        """The candidate that made the rows; empty where the plan names none."""
        identification: Any = configured(ModelIdentification(), settings)
        if not identification.candidates:
            return ""
        found = identification.run(view, settings, progress)
        if found.chosen is None:
            raise NotMeasurableError("model_identification chooses none of its candidates: name replication.base")
        return str(identification.sources(view)[found.chosen])


class Replica(PublicModel):
    """A public model with another head."""

    def __init__(self, base: PublicModel, head: HeadModel) -> None:
        super().__init__(base.settings)
        self._replica = head

    @cached_property
    def head(self) -> HeadModel:
        """The replica of the target's head."""
        return self._replica


def replicated(how: Replication, base: HeadModel, view: PromptView, tell: Callable[[int, int], None]) -> HeadModel:
    """A copy of `base` with adapters merged in that make it closest to the known rows."""
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415 - takes seconds, and one attack adapts

    head = copy.deepcopy(base).float().requires_grad_(False)
    body: Any = head.body
    linear = sorted({name.rpartition(".")[2] for name, module in body.named_modules() if _is_linear(module)})
    config = LoraConfig(
        r=how.rank,
        lora_alpha=2 * how.rank,
        lora_dropout=0.0,
        target_modules=linear,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in body.modules()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(view.seed)
        inject_adapter_in_model(config, body)
    parameters = [parameter for parameter in body.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=how.replica_learning_rate)
    generator = torch.Generator().manual_seed(view.seed)
    for epoch in range(how.replica_epochs):
        for number in torch.randperm(len(view.known), generator=generator).tolist():
            known = view.known[number]
            rows_TH = head(torch.from_numpy(known.tokens)[None].to(head.device))[0]
            loss = torch.nn.functional.mse_loss(rows_TH, known.forward.to(head.device, torch.float32))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        tell(epoch + 1, how.replica_epochs)
    for module in list(body.modules()):
        if hasattr(module, "merge"):
            module.merge()
    return head.eval().requires_grad_(False)


@torch.no_grad()
def distance(head: HeadModel, view: PromptView) -> float:
    """Mean squared difference of this head's rows from the known ones, as a share of their mean square."""
    errors = squares = 0.0
    for known in view.known:
        rows_TH = known.forward.to(head.device, torch.float32)
        made_TH = head(torch.from_numpy(known.tokens)[None].to(head.device))[0].float()
        errors += float((made_TH - rows_TH).square().sum())
        squares += float(rows_TH.square().sum())
    return errors / squares if squares else 0.0


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
