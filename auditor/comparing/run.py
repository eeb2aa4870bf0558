"""Runs a comparison cell by cell. A cell that is done is kept below `parts`; the same command goes on with the others.

A cell belongs to its bundle, its truth, the plan and the software: with other ones the folder is refused. Failures are
not kept, so that they are tried again. Attacks may be added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import splitwire
from auditor.attacks import ATTACKS
from auditor.comparing.cells import Cell, Failure, ShowText, attack_cell, told_error
from auditor.evidence.inputs import evidence_digests, open_evidence
from auditor.evidence.opening import opened_material
from auditor.plan import Plan
from auditor.progress import Progress
from auditor.public_text import auxiliary_digest
from auditor.store import Store
from splitwire.bundles.manifest import software_versions
from splitwire.errors import SettingsError, SplitwireError

QUESTIONS = frozenset({"prompt", "training_text", "model"})
PARTS_SCHEMA = "splitwire.compare-parts/1"


@dataclass(frozen=True)
class Compared:
    """All cells that could be had, in the order of bundles, attacks and families, and the failures."""

    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...]


def inversion_attacks() -> list[str]:
    """Names of the attacks that a comparison can run."""
    return [name for name, attack in ATTACKS.items() if attack.question in QUESTIONS]


def check_attacks(names: Sequence[str]) -> tuple[str, ...]:
    """The names; SettingsError for one that is no inversion attack, named twice, or for none at all."""
    known = inversion_attacks()
    for name in names:
        if name not in known:
            raise SettingsError(f"--attacks: {name!r} is no inversion attack", remedy=f"use {', '.join(known)}")
    if not names or len(set(names)) < len(names):
        raise SettingsError(
            f"--attacks {'names an attack twice' if names else 'is empty'}", remedy="name each attack once"
        )
    return tuple(names)


class Comparison:
    """The cells of these attacks on these bundles."""

    def __init__(
        self,
        attacks: Sequence[str],
        *,
        key: Path,
        plan: Plan,
        truth_files: Sequence[Path] = (),
        trust: Path | None = None,
        show: ShowText | None = None,
    ) -> None:
        self._pairs = [(name, family) for name in attacks for family in ATTACKS[name].families]
        self._key, self._plan, self._truth_files, self._trust, self._show = key, plan, truth_files, trust, show

    def run(self, folders: Sequence[Path], parts: Path, progress: Progress) -> Compared:
        """Every attack on every family that it is for, on every bundle."""
        names = bundle_names(folders)
        store = Store(parts, kinds={"cell": Cell}, schema=PARTS_SCHEMA)
        versions = {**software_versions(), "auditor": splitwire.__version__}
        digests = evidence_digests(folders, self._truth_files)
        public = auxiliary_digest(self._plan.inversion)
        store.begin({"plan_hash": self._plan.hash, "versions": versions, "auxiliary": public, **digests})
        found: list[Cell | Failure] = []
        for number, (folder, name) in enumerate(zip(folders, names, strict=True)):
            found += self._bundle(folder, name, store, _labelled(progress, f"bundle {number + 1}/{len(folders)}, "))
        cells = tuple(part for part in found if isinstance(part, Cell))
        return Compared(cells, tuple(part for part in found if isinstance(part, Failure)))

    def _bundle(self, folder: Path, name: str, store: Store, progress: Progress) -> list[Cell | Failure]:
        kept = {pair: store.get(_part(name, *pair)) for pair in self._pairs}
        done: dict[tuple[str, str], Cell | Failure] = {pair: part[0] for pair, part in kept.items() if part is not None}
        left = [pair for pair in self._pairs if pair not in done]
        if left:
            done |= self._attacked(folder, name, left, store, progress)
        return [done[pair] for pair in self._pairs]

    def _attacked(
        self, folder: Path, name: str, left: Sequence[tuple[str, str]], store: Store, progress: Progress
    ) -> dict[tuple[str, str], Cell | Failure]:
        """The cells of one bundle that are not done; all fail where the bundle itself cannot be opened."""
        done: dict[tuple[str, str], Cell | Failure] = {}
        unread = replace(self._plan, compute_modes=())  # rows of whole texts are read by the views themselves
        try:
            evidence = open_evidence(
                [folder], key=self._key, truth_files=self._truth_files, trust=self._trust, progress=progress
            )
            with opened_material(evidence, unread, progress) as opened:
                for number, (attack, family) in enumerate(left, start=1):
                    told = _labelled(progress, f"{number}/{len(left)} {attack} on {family}: ")
                    told("starting", 0, 0)
                    part = attack_cell(attack, family, name, opened.material, self._plan, told, self._show)
                    if isinstance(part, Cell):
                        part = store.put(_part(name, attack, family), part, part.seconds_a_text * part.num_texts)
                    done[attack, family] = part
        except SplitwireError as error:
            for attack, family in left:
                done.setdefault((attack, family), Failure(attack, family, name, told_error(error)))
        return done


def _part(bundle: str, attack: str, family: str) -> str:
    return f"{bundle}/{attack}/{family}"


def _labelled(progress: Progress, prefix: str) -> Progress:
    """Progress of a part of the work; what stands before a colon is told as soon as it changes."""

    def show(label: str, done: int, of: int) -> None:
        progress(prefix + label, done, of)

    return show


def bundle_names(folders: Sequence[Path]) -> list[str]:
    """A name for each bundle: its folder's, with that of the folder around it where two are the same."""
    last = [folder.resolve().name for folder in folders]
    if len(set(last)) == len(last):
        return last
    longer = ["/".join(folder.resolve().parts[-2:]) for folder in folders]
    if len(set(longer)) < len(longer):
        raise SettingsError("two bundles have the same name", remedy="name each bundle once, or rename one")
    return longer
