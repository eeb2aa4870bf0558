"""Writes the two Grafana dashboards from the tables below, into deploy/grafana/dashboards.

    python tools/generate_dashboards.py            write
    python tools/generate_dashboards.py --check    fail when a file differs

A panel is a title, a kind, a unit and its queries; `tests/unit/deploy` checks every metric name in them against
splitwire/metrics.py and the recording rules.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "splitwire-prometheus"}
COLUMNS = 24
HEIGHT = 8


@dataclass(frozen=True)
class Panel:
    """One panel. `queries` are pairs of PromQL and legend; `red_from` colours values at or above it."""

    title: str
    kind: Literal["stat", "timeseries", "table"]
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    width: int = 8
    red_from: float | None = None
    text: str = ""


PRIVACY = (
    Panel("Verdict of the last audit", "stat", (("auditor_verdict == 1", "{{state}}"),), width=6),
    Panel(
        "Leak found by a detector", "stat", (("max by (detector) (auditor_watch_leak)", "{{detector}}"),), red_from=1
    ),
    Panel("Age of the last audit", "stat", (("time() - auditor_last_run_timestamp_seconds", ""),), "s", 5, 7 * 86400),
    Panel("Messages that the tap lost", "stat", (("sum(auditor_tap_dropped_total)", ""),), width=5, red_from=1),
    Panel(
        "Token gate above the floor, and its ceiling",
        "timeseries",
        (("auditor_gate_pp", "{{attack}} {{family}}"), ("auditor_gate_ceiling_pp", "ceiling {{attack}} {{family}}")),
        width=12,
        text="Percentage points above a constant guesser. Above the ceiling the defence does not hold.",
    ),
    Panel(
        "Floor: what a constant guesser reads", "timeseries", (("auditor_floor_pp", "{{attack}} {{family}}"),), width=12
    ),
    Panel(
        "Telling real rows from decoys (AUC)",
        "timeseries",
        (
            ("auditor_partition_auc_ratio", "audit {{attack}} {{family}}"),
            ("auditor_watch_partition_auc_ratio", "watch {{hop}}"),
            ("auditor_watch_partition_auc_lower_ratio", "at least, {{hop}}"),
            ("auditor_watch_valley_ratio", "valley {{hop}}"),
        ),
        width=12,
    ),
    Panel(
        "Linkage with earlier frames",
        "timeseries",
        (
            ("auditor_linkage_auc_ratio", "audit {{attack}} {{family}}"),
            ("auditor_watch_linked_ratio", "watch, share of rows"),
        ),
        width=12,
    ),
    Panel(
        "Evidence over what a leak takes",
        "timeseries",
        (
            ("auditor_watch_evidence_ratio", "{{detector}}"),
            ("auditor_watch_support_frames", "frames given away by zeros"),
        ),
        width=12,
        red_from=1,
    ),
    Panel(
        "What the watch did not see",
        "timeseries",
        (
            ("rate(auditor_watch_skipped_frames_total[5m])", "skipped a second"),
            ("rate(auditor_watch_unmatched_frames_total[5m])", "unmatched a second"),
            ("auditor_watch_backlog_bytes", "backlog, bytes"),
        ),
        width=12,
    ),
    Panel("Defence in force", "table", (("splitwire_defence_info == 1", "{{defence}}"),), width=12),
    Panel("Checks of the last audit", "stat", (("auditor_checks", "{{state}}"),), width=12),
)

OPERATIONS = (
    Panel("Programs that answer", "stat", (("up", "{{job}}"),), width=6),
    Panel("Sessions", "stat", (("ucn_sessions_active", ""),), width=4),
    Panel("Frames that wait", "stat", (("ucn_queue_depth", ""),), width=4),
    Panel(
        "Time left of certificates",
        "stat",
        (
            (
                "min by (job, certificate) (splitwire_certificate_not_after_timestamp_seconds) - time()",
                "{{job}} {{certificate}}",
            ),
        ),
        "s",
        10,
    ),
    Panel(
        "Bytes a second by hop",
        "timeseries",
        (("splitwire:wire_bytes:rate5m", "{{job}} {{hop}} {{direction}}"),),
        "Bps",
        12,
    ),
    Panel(
        "Seconds a step and its parts",
        "timeseries",
        (
            ("splitwire:step_seconds:mean5m", "{{job}} {{phase}}"),
            ("splitwire:step_seconds:p95_5m", "95 % {{job}} {{phase}}"),
        ),
        "s",
        12,
    ),
    Panel("Share of a step on the wire", "timeseries", (("splitwire:exchange_seconds:ratio5m", ""),), "percentunit"),
    Panel("Retries a second", "timeseries", (("rate(splitwire_retries_total[5m])", "{{job}}"),)),
    Panel("Calls that failed", "timeseries", (("splitwire:rpc_errors:ratio5m", "{{job}}"),), "percentunit"),
    Panel("Key-value caches", "timeseries", (("ucn_cache_bytes", ""),), "bytes"),
    Panel("GPU memory of the untrusted node", "timeseries", (("ucn_device_memory_bytes", "{{kind}}"),), "bytes"),
    Panel("Memory of the untrusted node", "timeseries", (('process_resident_memory_bytes{job="ucn"}', ""),), "bytes"),
    Panel(
        "Loss of the last step",
        "timeseries",
        (("tln_loss_nats", "loss, nats"), ("tln_batch_delta_nats", "above unsplit")),
    ),
    Panel(
        "Held-out delta and its ceiling, nats",
        "timeseries",
        (("tln_held_out_delta_nats", "{{bound}}"), ("tln_held_out_ceiling_nats", "ceiling")),
    ),
    Panel("Held-out perplexity", "timeseries", (("tln_held_out_perplexity_ratio", "{{model}}"),)),
    Panel("Utility gate", "stat", (("tln_utility_gate == 1", "{{state}}"),), width=12),
    Panel(
        "Calls by code",
        "timeseries",
        (("sum by (job, grpc_code) (rate(grpc_server_handled_total[5m]))", "{{job}} {{grpc_code}}"),),
        width=12,
    ),
)


def dashboard(uid: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    """A dashboard whose panels fill rows from the left."""
    column = row = 0
    placed = []
    for number, panel in enumerate(panels, start=1):
        if column + panel.width > COLUMNS:
            column, row = 0, row + HEIGHT
        placed.append(_panel(panel, number, column, row))
        column += panel.width
    return {
        "uid": uid,
        "title": title,
        "tags": ["splitwire"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "utc",
        "panels": placed,
    }


def _panel(panel: Panel, number: int, column: int, row: int) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})  # type: ignore[dict-item]
    defaults = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    shown: dict[str, Any] = {}
    if panel.kind == "stat":
        shown = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": panel.width, "x": column, "y": row},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": shown,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def main() -> int:
    """Writes both files, or compares them."""
    wanted = {
        "privacy.json": dashboard("splitwire-privacy", "splitwire: privacy", PRIVACY),
        "operations.json": dashboard("splitwire-operations", "splitwire: operations", OPERATIONS),
    }
    texts = {FOLDER / name: json.dumps(tree, indent=1) + "\n" for name, tree in wanted.items()}
    if "--check" in sys.argv[1:]:
        stale = [str(path) for path, text in texts.items() if not path.exists() or path.read_text() != text]
        if stale:
            sys.stderr.write(f"{', '.join(stale)}: run tools/generate_dashboards.py\n")
        return int(bool(stale))
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
