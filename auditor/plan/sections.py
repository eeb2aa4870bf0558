"""The sections of a plan: what each part of an audit may spend and what it holds to be too much.

A default stands beside what it means; docs/configuration.md is made of these texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

Ratio = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Level = Annotated[float, Field(gt=0, le=0.2)]
Power = Annotated[float, Field(ge=0.5, lt=1)]
Points = Annotated[float, Field(gt=0, le=100)]
Auc = Annotated[float, Field(ge=0.5, lt=1)]
ProbeName = Literal["coordinate_plus_invariants", "invariant_only", "invariant_graph"]
DoseMode = Literal["coordinate", "invariant"]


@dataclass(frozen=True)
class SplitSettings:
    """Documents go to train, select or test by the order of a seeded hash of their id; test gets the rest."""

    seed: Annotated[int, Field(ge=0)] = 20260101
    """Seed of the hash that orders documents."""
    train_ratio: Ratio = 0.5
    """Share of documents whose labels attacks are given."""
    select_ratio: Ratio = 0.1
    """Share of documents on which choices are made."""


@dataclass(frozen=True)
class StatisticsSettings:
    """Levels are one-sided. Fewer test documents than `min_documents` cannot pass. Refused: so few repetitions that
    less than five lie beyond `alpha`.
    """

    alpha: Level = 0.05
    """Error level of every bound."""
    power_ratio: Power = 0.8
    """Power at which the minimum detectable effect is stated."""
    repetitions: Annotated[int, Field(ge=1, le=100_000)] = 4000
    """Bootstrap repetitions."""
    min_documents: Annotated[int, Field(ge=20)] = 20
    """Fewest test documents with which a verdict can be a pass."""


@dataclass(frozen=True)
class Ceilings:
    """What a system may leak at most."""

    token_pp: Points = 1.0
    """Gate and paired effect of the next-token probes, percentage points."""
    rare_token_pp: Points = 1.0
    """Paired effect on rare tokens, percentage points."""
    partition_auc_ratio: Auc = 0.55
    """AUC of telling real rows from decoys."""
    linkage_auc_ratio: Auc = 0.55
    """AUC of telling real rows from decoys by what crossed in earlier frames."""
    exact_support_frames: Annotated[int, Field(ge=0)] = 0
    """Frames whose decoys are read from zero gradients."""
    active_token_pp: Points = 1.0
    """Token gate of an active tap above that of the passive one, percentage points."""
    property_auc_ratio: Auc = 0.55
    """AUC of telling a private property of a document or step."""
    membership_auc_ratio: Auc = 0.55
    """AUC of telling documents trained on from documents held out."""
    membership_tpr_ratio: Ratio = 0.02
    """Members found at 1 % false positives."""
    response_token_pp: Points = 1.0
    """Gate of the public tail on returned rows, percentage points."""
    prompt_token_pp: Points = 1.0
    """Tokens of a text named at their place above the unigram guesser, percentage points."""


@dataclass(frozen=True)
class ProbeSettings:
    """The token probes. Arms are the product of probes and restarts; every arm sees the same data."""

    probes: tuple[ProbeName, ...] = ("coordinate_plus_invariants", "invariant_only", "invariant_graph")
    """Classes of probes."""
    restarts: Count = 3
    """Restarts of every probe."""
    epochs: Count = 20
    """Passes over the train split."""
    batch_rows: Count = 512
    """Rows of one update."""
    max_rows_trained: Count = 800_000
    """Rows that a trained arm reads in all its epochs. With more train rows (for whole frames: rows of the view) epochs
    are fewer, one at least, and the result says how many. As many as 20 epochs over half of 1,000 frames of 80 rows."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of AdamW."""
    max_classes: Annotated[int, Field(ge=0)] = 0
    """Most frequent training tokens that get a class; rows of other tokens count as wrong. 0: all."""
    max_view_bytes: Count = 128 << 20
    """Rows of one view; beyond it frames are sampled evenly, and the result says so. It takes up to seven times as
    much memory, two of them mapped from disk."""
    max_frames: Annotated[int, Field(ge=0)] = 0
    """Frames of one view. 0: as many as fit `max_view_bytes`."""
    control_coverage_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    """Share of rows in which the positive control plants a token's code."""
    control_amplitude_ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    """How much of such a row is the code; 1 replaces its direction."""
    device: str = "cpu"
    """Where the nine arms train: cpu, cuda or cuda:N."""

    def epochs_over(self, num_rows: int) -> int:
        """Epochs over so many rows that `max_rows_trained` allows, one at least."""
        return min(self.epochs, max(1, round(self.max_rows_trained / max(1, num_rows))))


@dataclass(frozen=True)
class DeepProbeSettings:
    """The deep probe: four encoder layers over whole frames. The defaults are the published schedule."""

    restarts: Count = 1
    """Restarts of the probe."""
    epochs: Count = 50
    """Passes over the train split."""
    batch_rows: Count = 2560
    """Rows of one update, in whole frames."""
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    """Learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)] = 1e-4
    """Weight decay of AdamW."""
    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    """Largest norm of a gradient."""
    layers: Count = 4
    """Encoder layers."""
    width: Annotated[int, Field(ge=0, multiple_of=8)] = 0
    """Width of the encoder. 0: that of a row, but at least 512 and at most 1024."""
    max_train_frames: Annotated[int, Field(ge=0)] = 0
    """Most train frames, evenly chosen. 0: all."""


@dataclass(frozen=True)
class SweepSettings:
    """What is compromised in the sweeps of a cheap probe, as shares; an empty list leaves a sweep out."""

    frames_captured: tuple[Annotated[float, Field(gt=0, le=1)], ...] = (0.1, 0.25, 0.5, 1.0)
    """Shares of the frames that were captured."""
    decoys_revealed: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = (0.0, 0.25, 0.5, 0.9)
    """Shares of the decoys that are known to be decoys."""
    gauges_leaked: tuple[Annotated[float, Field(gt=0, le=1)], ...] = (0.1, 0.2)
    """Shares of the frames whose gauges are known; needs rows that `tln replay` wrote."""
    known_plaintext: tuple[Annotated[float, Field(gt=0, le=1)], ...] = (0.01, 0.05, 0.2)
    """Shares of the train documents whose labels are known."""
    max_frames: Annotated[int, Field(ge=0)] = 400
    """Most frames of a sweep, evenly sampled. 0: as many as an audit reads."""


@dataclass(frozen=True)
class CalibrationSettings:
    """The dose ladders of `auditor calibrate`: every coverage times every amplitude in every mode, several times."""

    coverages: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (
        0.02,
        0.06,
        0.1,
        0.3,
        1.0,
    )
    """Shares of the carriers that a leak is put into; zero is always read as well."""
    amplitudes: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0,)
    """How much of a carrier is the leak; 1 replaces its direction."""
    modes: Annotated[tuple[DoseMode, ...], Field(min_length=1)] = ("coordinate", "invariant")
    """The same leak in every frame, or one that is turned anew in every frame."""
    repetitions: Count = 5
    """Most readings of a dose, each with a new split of the documents, new places and new codes."""
    power_ratio: Power = 0.8
    """Share of the repetitions that must find a dose for it to count as found."""
    max_frames: Annotated[int, Field(ge=0)] = 400
    """Most frames of a view while calibrating. 0: as many as an audit reads."""
    restarts: Count = 1
    """Restarts of every probe while calibrating."""


@dataclass(frozen=True)
class HistorySettings:
    """Attacks on blocks of text that crossed more than once."""

    max_frames: Count = 600
    """Frames of the view; beyond it whole blocks are sampled, and the result says so."""


@dataclass(frozen=True)
class ResponseSettings:
    """Attacks on returned rows with the public model."""

    source: str = ""
    """The public model: a local folder, a .gguf file, a hub id or the embedded model's name. Empty: what the bundle or
    the truth names, when it lies on this machine, else the embedded model; its fingerprint has to match."""
    revision: str = ""
    """Branch, tag or commit of a hub id."""
    max_frames: Count = 1000
    """Frames or sequences of the view; beyond it they are sampled evenly, and the result says so."""


@dataclass(frozen=True)
class InversionSettings:
    """Attacks that rebuild texts from captured rows."""

    max_texts: Count = 20
    """Texts that are attacked; beyond it they are sampled evenly, and the result says so."""
    max_positions: Annotated[int, Field(ge=0)] = 0
    """Positions of a text that are attacked, from its start. 0: all."""
    auxiliary: str = ""
    """Public text that attacks learn from: a folder of .txt or a .jsonl file with a field `text`. Empty: the public
    domain text that is shipped. It must not overlap the victim's."""
    auxiliary_tokens: Count = 20_000
    """Most tokens of public text that are used."""
    embedding_model: str = ""
    """Local folder of a sentence embedding model, for the metric embedding_similarity. Empty: the metric is not had."""
    device: str = "cpu"
    """Where the attacks compute: cpu, cuda or cuda:N."""
    parameters: dict[str, dict[str, bool | int | float | str]] = field(default_factory=dict)
    """Parameters of an attack by its name, in place of the published ones."""
