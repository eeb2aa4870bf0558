"""Attacks that rebuild texts from what crossed, one file each: prompts and answers, from any hop."""

from __future__ import annotations

from auditor.attacks.base import Attack
from auditor.attacks.inversion.a1 import RowClassification
from auditor.attacks.inversion.a2 import AugmentedClassification
from auditor.attacks.inversion.actinv import ActInv
from auditor.attacks.inversion.bisr_forward import BisrForward
from auditor.attacks.inversion.bisr_gradient import BisrBackward
from auditor.attacks.inversion.dlg import DeepLeakage
from auditor.attacks.inversion.dsi import DualSidedStart
from auditor.attacks.inversion.embedding_recovery import EmbeddingRecovery
from auditor.attacks.inversion.exact_inverter import ExactInverter
from auditor.attacks.inversion.generation_based import GenerationBased
from auditor.attacks.inversion.label_inference import LabelDirection
from auditor.attacks.inversion.label_norm import LabelNorm
from auditor.attacks.inversion.lamp import LanguageModelPrior
from auditor.attacks.inversion.logit2text import LogitToText
from auditor.attacks.inversion.mc import CompletedText
from auditor.attacks.inversion.namoe import NoiseAwareMixture
from auditor.attacks.inversion.nearest_vocabulary import NearestVocabulary
from auditor.attacks.inversion.output2text import OutputToText
from auditor.attacks.inversion.pia import PromptInversion
from auditor.attacks.inversion.pidi import Pidi
from auditor.attacks.inversion.pmi import PatchedModelInversion
from auditor.attacks.inversion.replication import Replication
from auditor.attacks.inversion.sip import Sip
from auditor.attacks.inversion.sipit import SipIt
from auditor.attacks.inversion.tag import TransformerGradient
from auditor.attacks.inversion.tbs import TokenBasisSelection
from auditor.attacks.inversion.temperature_softmax import TokenSelection
from auditor.attacks.inversion.vmi import VanillaInversion

INVERSIONS: tuple[Attack, ...] = (
    ExactInverter(),
    SipIt(),
    NearestVocabulary(),
    ActInv(),
    VanillaInversion(),
    TokenSelection(),
    EmbeddingRecovery(),
    TokenBasisSelection(),
    PromptInversion(),
    RowClassification(),
    AugmentedClassification(),
    Sip(),
    NoiseAwareMixture(),
    BisrForward(),
    PatchedModelInversion(),
    DualSidedStart(),
    Pidi(),
    LabelNorm(),
    LabelDirection(),
    BisrBackward(),
    DeepLeakage(),
    TransformerGradient(),
    LanguageModelPrior(),
    CompletedText(),
    LogitToText(),
    OutputToText(),
    Replication(),
    GenerationBased(),
)

__all__ = ["INVERSIONS"]
