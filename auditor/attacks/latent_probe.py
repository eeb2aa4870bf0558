"""The nine-arm latent probe: three classes of probe, three restarts each, trained to name the token of a row.

Arms differ in class and seed and see the same rows and labels. The restarts of a class train together (stacked.py): one
pass over the data, in one order, drawn from a seed of the class; each is initialised from a seed of its own. AdamW, a
fixed number of epochs, no early stopping: nothing is chosen while training. Classes are the tokens of the train rows
(all, or the most frequent ones when the plan says so); a row with another token counts as wrong. Fitting uses no shared
random state: groups may be fitted side by side. With one thread a group (workers.py) a result is a function of the
view, the settings and the build, and not of the number of cores.
"""

from __future__ import annotations

import hashlib

from auditor.attacks.base import Assumes, Question
from auditor.attacks.parts.probe_data import ProbeData, token_classes
from auditor.attacks.parts.probe_groups import Chunks, GraphGroup, Group, RowGroup
from auditor.channels import FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import ProbeSettings
from auditor.progress import Progress, Tick
from auditor.views.token import TokenView


class LatentProbe:
    """Trains the arms of the plan on one view."""

    name = "latent_probe"
    question: Question = "token"
    families: tuple[str, ...] = (FORWARD_ONLY, GRADIENT_ONLY, JOINT)
    knowledge = "captured rows; tokens of the rows of the train documents"
    assumes = Assumes(known_plaintext=True)
    paper = "nine-arm latent probe with 22 invariants"

    def run(self, view: TokenView, settings: ProbeSettings, progress: Progress) -> list[ProbeArm]:
        """One arm for every probe and restart, initialised and not yet fitted."""
        del progress
        data = ProbeData(view, token_classes(view.train_tokens, settings.max_classes))
        arms: list[ProbeArm] = []
        for probe in settings.probes:
            seeds = {f"{probe}/{restart}": _seed(view, probe, restart) for restart in range(settings.restarts)}
            order_seed = _seed(view, probe, "order")
            if probe == "invariant_graph":
                arms += _arms(GraphGroup(data, settings, seeds, order_seed))
            else:
                arms += _arms(RowGroup(data, settings, seeds, order_seed, with_rows=probe != "invariant_only"))
        return arms


class ProbeArm:
    """One restart. Arms of one `group` are fitted together, by whichever is asked to."""

    def __init__(self, group: Group, restart: int) -> None:
        self.name, self.classes, self.group = group.names[restart], group.classes, group
        self.epochs = group.epochs
        self._restart = restart

    def fit(self, tick: Tick) -> None:
        """Trains the group, unless that is done."""
        self.group.fit(tick)

    def log_probabilities(self) -> Chunks:
        """Log-probabilities over the classes of every score row, in chunks."""
        return self.group.log_probabilities(self._restart)


def _arms(group: Group) -> list[ProbeArm]:
    return [ProbeArm(group, restart) for restart in range(len(group.names))]


def _seed(view: TokenView, probe: str, part: int | str) -> int:
    text = f"{view.seed}|{view.family}|{view.partition}|{probe}|{part}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
