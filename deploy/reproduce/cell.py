"""One cell: prepare, train against a real untrusted node, audit what crossed, and what came of it as plain values.

    trusted node (records)  <--mutual TLS-->  untrusted node

Two audits of one bundle: the plan with every attack, whose token probes read the rows that the gradient gives away
where it does; and the forward probe on the rows that are real in truth (`oracle`), beside the gradient arm. Of a cell
only its result is kept; bundle, truth and keys are removed with its folder, unless the caller keeps them.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import splitwire
from auditor.channels import ACCUMULATED_HISTORY, FORWARD_ONLY, GRADIENT_ONLY, JOINT
from auditor.plan import Plan, ProbeSettings, SplitSettings, StatisticsSettings
from auditor.plan.files import render_plan
from deploy.demo.processes import Processes, free_port, run
from deploy.reproduce.settings import Cell, Recipe, find
from splitwire.backbone import ModelSettings
from splitwire.settings import load_settings
from tln.presets import preset_file
from tln.settings import TlnSettings

SCHEMA = "splitwire.reproduce/1"
_AUDIT_EXIT_CODES = (0, 1, 3)
_SPLIT_SEED = 20260101
_ATTACKS = ("gradient_support", "row_norm", "linkage", "latent_probe")
_CHECK_FIELDS = ("value", "lower", "upper", "floor", "ceiling", "state")
_RESULT_FIELDS = ("partition", "num_documents", "num_frames", "num_rows")
_NOT_KEPT = ("roc", "norm_histogram", "support_map")


@dataclass(frozen=True)
class Bench:
    """Where a cell works: its own folder, and the keys that all cells share."""

    folder: Path
    pki: Path
    keys: Path
    recipe: Recipe
    base: Path
    """Folder that relative paths of corpora start from."""


def run_cell(cell: Cell, bench: Bench, *, keep: bool = False) -> dict[str, Any]:
    """The result of the cell. ProcessFailedError when a program failed; its log is then in the cell's folder."""
    shutil.rmtree(bench.folder, ignore_errors=True)
    bench.folder.mkdir(parents=True)
    began = time.monotonic()
    trained = _train(cell, bench)
    train_seconds = time.monotonic() - began
    audits = {name: _audit(bench, name, plan) for name, plan in plans(bench.recipe, cell.seed).items()}
    result = as_result(cell, bench.recipe, trained, audits)
    result["seconds"] = {"train": train_seconds, "all": time.monotonic() - began}
    if not keep:
        shutil.rmtree(bench.folder)
    return result


def plans(recipe: Recipe, seed: int) -> dict[str, Plan]:
    """The plans of the two audits. The split of documents follows the seed."""
    budget = recipe.audit
    plan = Plan(
        name="reproduce",
        attacks=_ATTACKS,
        families=(FORWARD_ONLY, GRADIENT_ONLY, JOINT, ACCUMULATED_HISTORY),
        compute_modes=("train",),
        split=SplitSettings(seed=_SPLIT_SEED + seed),
        statistics=StatisticsSettings(repetitions=budget.repetitions),
        probe=dataclasses.replace(
            ProbeSettings(),
            probes=budget.probes,
            restarts=1,
            epochs=budget.epochs,
            max_classes=budget.max_classes,
            max_frames=budget.max_frames,
            control_coverage_ratio=0.5,
        ),
    )
    oracle = dataclasses.replace(
        plan, name="reproduce-oracle", attacks=("latent_probe",), families=(FORWARD_ONLY,), partition="oracle"
    )
    return {"audit": plan, "oracle": oracle}


def as_result(cell: Cell, recipe: Recipe, trained: dict[str, Any], audits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Everything that the tables read, and what it came from."""
    history = ("loss_by_step", "distillation_by_step", "cross_entropy_by_step", "settings")
    return {
        "schema": SCHEMA,
        "software_version": splitwire.__version__,
        "recipe_hash": recipe.hash,
        "cell": dataclasses.asdict(cell),
        "training": {name: value for name, value in trained.items() if name not in history},
        "audits": {name: _of_audit(audit) for name, audit in audits.items()},
    }


def tln_pairs(cell: Cell, recipe: Recipe, base: Path) -> tuple[str, ...]:
    """Settings of the trusted node over those of the cell's preset, addresses and folders aside."""
    depth = find(recipe.depths, cell.depth, "depths")
    corpus = find(recipe.corpora, cell.corpus, "corpora")
    preset = load_settings(TlnSettings, program="tln", base=preset_file(cell.preset), environment={})
    return (
        f"model.source={recipe.source}",
        f"model.first_layer={depth.first_layer}",
        f"model.last_layer={depth.last_layer}",
        f"corpus.path={base / corpus.path}",
        f"corpus.public_path={base / corpus.public_path}",
        f"frame.bottleneck.width={cell.width}",
        f"train.steps={cell.steps}",
        *recipe.pairs,
        *(recipe.mechanism_pairs if "decoys" in preset.frame.mechanisms else ()),
        *(find(recipe.variants, cell.variant, "variants").pairs if cell.variant else ()),
    )


def _train(cell: Cell, bench: Bench) -> dict[str, Any]:
    port, depth = free_port(), find(bench.recipe.depths, cell.depth, "depths")
    model = ModelSettings(bench.recipe.source, first_layer=depth.first_layer, last_layer=depth.last_layer)
    pairs = tln_pairs(cell, bench.recipe, bench.base)
    run(_tln("prepare", cell, bench, port, pairs))
    with Processes(bench.folder) as processes, processes.running("ucn", _ucn(model, bench, port), port):
        extra = (
            f"train.out={bench.folder / 'run'}",
            f"record.folder={bench.folder / 'bundle'}",
            f"record.audit_key={bench.keys / 'audit.pub'}",
            f"record.signing_key={bench.keys / 'tln-recorder.key'}",
        )
        run(_tln("train", cell, bench, port, (*pairs, *extra)))
    report: dict[str, Any] = json.loads((bench.folder / "run" / "report.json").read_text())
    return report


def _tln(command: str, cell: Cell, bench: Bench, port: int, pairs: Sequence[str]) -> list[str]:
    own = bench.pki / "tln"
    connection = (f"connection.address=127.0.0.1:{port}", *_tls("connection.tls", own))
    return ["tln", command, "--preset", cell.preset, *_set(*connection, *pairs)]


def _ucn(model: ModelSettings, bench: Bench, port: int) -> list[str]:
    settings = (
        'stacks=["gram"]',
        f"threads={bench.recipe.threads}",
        f"listen=127.0.0.1:{port}",
        f"model.source={model.source}",
        f"model.first_layer={model.first_layer}",
        f"model.last_layer={model.last_layer}",
    )
    return ["ucn", "serve", *_set(*settings, *_tls("tls", bench.pki / "ucn"))]


def _audit(bench: Bench, name: str, plan: Plan) -> dict[str, Any]:
    file, out = bench.folder / f"{name}.toml", bench.folder / name
    file.write_text(render_plan(plan))
    keys = ["--key", str(bench.keys / "audit.key"), "--trust", str(bench.keys / "trust.json")]
    arguments = ["auditor", "audit", str(bench.folder / "bundle"), *keys, "--plan", str(file), "--out", str(out)]
    run(arguments, accepted=_AUDIT_EXIT_CODES, output=bench.folder / f"{name}.txt")
    audit: dict[str, Any] = json.loads((out / "audit.json").read_text())
    return audit | {"run": json.loads((out / "run.json").read_text())}


def _of_audit(audit: dict[str, Any]) -> dict[str, Any]:
    return {
        "verdict": audit["verdict"]["state"],
        "plan_hash": audit["plan"]["hash"],
        "captured": audit["captured"],
        "results": {f"{entry['attack']}/{entry['family']}": _of_attack(entry) for entry in audit["results"]},
        "not_measured": {f"{e['attack']}/{e['family']}": e["reason"] for e in audit["not_measured"]},
        "seconds": audit["run"]["seconds"],
        "seconds_by_part": audit["run"]["seconds_by_part"],
    }


def _of_attack(entry: dict[str, Any]) -> dict[str, Any]:
    checks = {check["metric"]: {name: check[name] for name in _CHECK_FIELDS} for check in entry["checks"]}
    return {
        **{name: entry[name] for name in _RESULT_FIELDS},
        "checks": checks,
        "twin": entry["twin"],
        "controls_found": [control["found"] for control in entry["controls"]],
        "details": {name: value for name, value in entry["details"].items() if name not in _NOT_KEPT},
    }


def _tls(section: str, own: Path) -> tuple[str, ...]:
    files = {"ca": "ca.pem", "certificate": "cert.pem", "key": "key.pem"}
    return tuple(f"{section}.{name}={own / file}" for name, file in files.items())


def _set(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]
