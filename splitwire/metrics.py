"""Names of all Prometheus metrics, in one place, and the server that shows them.

Base units, `_total` on counters, few labels. A metric is a channel too: no label ever holds a session, user, token,
document or step, and the server binds to loopback unless it is told otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles, certificate_end, split_address


@dataclass(frozen=True)
class Metric:
    """One metric of the contract."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram; none takes the library's, which fit seconds."""


WIRE_BYTES = Metric("splitwire_wire_bytes_total", "counter", "Serialized bytes that crossed.", ("hop", "direction"))
STEP_SECONDS = Metric("splitwire_step_seconds", "histogram", "Duration of a part of a step.", ("phase",))
RETRIES = Metric("splitwire_retries_total", "counter", "Exchanges that were sent again after a lost connection.")
CERTIFICATE_END = Metric(
    "splitwire_certificate_not_after_timestamp_seconds",
    "gauge",
    "When the certificate on disk expires; 0 when it cannot be read.",
    ("certificate",),
)
DEFENCE_INFO = Metric("splitwire_defence_info", "gauge", "1 for the defence in effect.", ("defence",))
UCN_SESSIONS_ACTIVE = Metric("ucn_sessions_active", "gauge", "Sessions that hold a lease.")
UCN_QUEUE_DEPTH = Metric("ucn_queue_depth", "gauge", "Frames that wait for the device.")
UCN_CACHE_BYTES = Metric("ucn_cache_bytes", "gauge", "Key-value caches of all sessions.")
UCN_DEVICE_MEMORY = Metric(
    "ucn_device_memory_bytes", "gauge", "GPU memory that the process holds; 0 without a GPU.", ("kind",)
)
TLN_LOSS = Metric("tln_loss_nats", "gauge", "Loss a frame of the last step.")
TLN_BATCH_DELTA = Metric(
    "tln_batch_delta_nats", "gauge", "Cross-entropy of the last batch above that of the unsplit model."
)
TLN_HELD_OUT_DELTA = Metric(
    "tln_held_out_delta_nats", "gauge", "Held-out cross-entropy above the unsplit model's, and its bounds.", ("bound",)
)
TLN_HELD_OUT_CEILING = Metric("tln_held_out_ceiling_nats", "gauge", "Largest acceptable held-out delta.")
TLN_PERPLEXITY = Metric("tln_held_out_perplexity_ratio", "gauge", "Held-out perplexity of a token.", ("model",))
TLN_UTILITY_GATE = Metric("tln_utility_gate", "gauge", "1 for the outcome of the utility gate, else 0.", ("state",))
SERVE_ANSWERS = Metric("tln_serve_answers_total", "counter", "HTTP answers.", ("endpoint", "status"))
SERVE_TEXTS = Metric("tln_serve_texts_total", "counter", "Texts that are over, by how they ended.", ("outcome",))
SERVE_TOKENS = Metric("tln_serve_tokens_total", "counter", "Tokens of prompts and of answers.", ("kind",))
SERVE_NEAR_TIES = Metric(
    "tln_serve_near_ties_total", "counter", "Tokens that a batch may have rounded otherwise: the next best was as good."
)
SERVE_BATCH = Metric("tln_serve_batch_texts", "gauge", "Texts of the last step.")
SERVE_RUNNING = Metric("tln_serve_running_texts", "gauge", "Texts that are being generated.")
SERVE_WAITING = Metric("tln_serve_waiting_texts", "gauge", "Texts that wait for a place.")
SERVE_SESSIONS = Metric("tln_serve_open_sessions", "gauge", "Sessions with the untrusted node.")
SERVE_READY = Metric("tln_serve_ready", "gauge", "1 while a text could begin, as /healthz says; else 0.")
SERVE_FIRST_TOKEN = Metric("tln_serve_first_token_seconds", "histogram", "From a text's arrival to its first token.")
UCN_BATCH_SIZE = Metric(
    "ucn_batch_frames", "histogram", "CACHED frames that shared one pass.", buckets=(1, 2, 4, 8, 16, 32, 64)
)
UCN_CACHE_WAITING = Metric("ucn_cache_waiting", "gauge", "Frames that wait for room for a cache.")
RPC_HANDLED = Metric(
    "grpc_server_handled_total", "counter", "Calls that ended, by code.", ("grpc_service", "grpc_method", "grpc_code")
)
AUDITOR_GATE = Metric("auditor_gate_pp", "gauge", "Token gate above the floor.", ("attack", "family"))
AUDITOR_GATE_CEILING = Metric("auditor_gate_ceiling_pp", "gauge", "Largest acceptable gate.", ("attack", "family"))
AUDITOR_FLOOR = Metric("auditor_floor_pp", "gauge", "What a constant guesser reads.", ("attack", "family"))
AUDITOR_PARTITION_AUC = Metric(
    "auditor_partition_auc_ratio", "gauge", "AUC of telling real rows from decoys.", ("attack", "family")
)
AUDITOR_LINKAGE_AUC = Metric(
    "auditor_linkage_auc_ratio", "gauge", "AUC of telling them by earlier frames.", ("attack", "family")
)
AUDITOR_CHECKS = Metric("auditor_checks", "gauge", "Checks of the last audit, by state.", ("state",))
AUDITOR_VERDICT = Metric("auditor_verdict", "gauge", "1 for the state of the last verdict, else 0.", ("state",))
AUDITOR_TAP_DROPPED = Metric("auditor_tap_dropped_total", "counter", "Messages that the tap did not record.")
AUDITOR_TAP_PERTURBED = Metric(
    "auditor_tap_perturbed_total", "counter", "Returned frames that an active tap changed; 0 for a passive one."
)
AUDITOR_LAST_RUN = Metric(
    "auditor_last_run_timestamp_seconds", "gauge", "When the last audit ended. Alert when it is old."
)
WATCH_FRAMES = Metric("auditor_watch_frames_total", "counter", "Frames that the detectors took.", ("hop",))
WATCH_SKIPPED = Metric(
    "auditor_watch_skipped_frames_total", "counter", "Frames passed over because the watch had fallen behind."
)
WATCH_UNMATCHED = Metric(
    "auditor_watch_unmatched_frames_total", "counter", "Frames without their truth or their other half."
)
WATCH_BACKLOG = Metric("auditor_watch_backlog_bytes", "gauge", "Bytes of the recording that were not read yet.")
WATCH_PARTITION_AUC = Metric(
    "auditor_watch_partition_auc_ratio", "gauge", "AUC of real rows by norm, so far; with the truth.", ("hop",)
)
WATCH_PARTITION_LOWER = Metric(
    "auditor_watch_partition_auc_lower_ratio", "gauge", "Its lower bound at all times at once.", ("hop",)
)
WATCH_VALLEY = Metric(
    "auditor_watch_valley_ratio", "gauge", "Depth of the valley between two groups of norms; without truth.", ("hop",)
)
WATCH_LINKED = Metric("auditor_watch_linked_ratio", "gauge", "Share of rows that crossed before, above chance.")
WATCH_SUPPORT = Metric("auditor_watch_support_frames", "gauge", "Frames whose zero gradients give the partition away.")
WATCH_TOKEN_EFFECT = Metric(
    "auditor_watch_token_effect_pp", "gauge", "Next tokens read above the constant guesser; with the truth."
)
WATCH_EVIDENCE = Metric(
    "auditor_watch_evidence_ratio", "gauge", "Evidence of a leak, as a share of what a leak takes, log.", ("detector",)
)
WATCH_LEAK = Metric("auditor_watch_leak", "gauge", "1 once the detector found a leak.", ("detector",))
WATCH_ACTION_FAILURES = Metric(
    "auditor_watch_action_failures_total", "counter", "Programs of on_leak that failed, and processes not stopped."
)

ALL = (
    WIRE_BYTES,
    STEP_SECONDS,
    RETRIES,
    CERTIFICATE_END,
    DEFENCE_INFO,
    UCN_SESSIONS_ACTIVE,
    UCN_QUEUE_DEPTH,
    UCN_CACHE_BYTES,
    UCN_DEVICE_MEMORY,
    TLN_LOSS,
    TLN_BATCH_DELTA,
    TLN_HELD_OUT_DELTA,
    TLN_HELD_OUT_CEILING,
    TLN_PERPLEXITY,
    TLN_UTILITY_GATE,
    SERVE_ANSWERS,
    SERVE_TEXTS,
    SERVE_TOKENS,
    SERVE_NEAR_TIES,
    SERVE_BATCH,
    SERVE_RUNNING,
    SERVE_WAITING,
    SERVE_SESSIONS,
    SERVE_READY,
    SERVE_FIRST_TOKEN,
    RPC_HANDLED,
    AUDITOR_GATE,
    AUDITOR_GATE_CEILING,
    AUDITOR_FLOOR,
    AUDITOR_PARTITION_AUC,
    AUDITOR_LINKAGE_AUC,
    AUDITOR_CHECKS,
    AUDITOR_VERDICT,
    AUDITOR_TAP_DROPPED,
    AUDITOR_TAP_PERTURBED,
    AUDITOR_LAST_RUN,
    WATCH_FRAMES,
    WATCH_SKIPPED,
    WATCH_UNMATCHED,
    WATCH_BACKLOG,
    WATCH_PARTITION_AUC,
    WATCH_PARTITION_LOWER,
    WATCH_VALLEY,
    WATCH_LINKED,
    WATCH_SUPPORT,
    WATCH_TOKEN_EFFECT,
    WATCH_EVIDENCE,
    WATCH_LEAK,
    WATCH_ACTION_FAILURES,
)


def counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    """A counter of that name in the registry."""
    return Counter(metric.name, metric.text, metric.labels, registry=registry)


def gauge(metric: Metric, registry: CollectorRegistry | None) -> Gauge:
    """A gauge of that name in the registry; with None it is to be registered later."""
    return Gauge(metric.name, metric.text, metric.labels, registry=registry)


def histogram(metric: Metric, registry: CollectorRegistry) -> Histogram:
    """A histogram of that name in the registry."""
    buckets = metric.buckets or Histogram.DEFAULT_BUCKETS
    return Histogram(metric.name, metric.text, metric.labels, registry=registry, buckets=buckets)


def follow_certificate(files: TlsFiles | None, registry: CollectorRegistry) -> None:
    """Shows when this node's certificate and its authority's end, read anew at each pull; nothing without TLS."""
    if files is None:
        return
    ends = gauge(CERTIFICATE_END, registry)
    for name, path in (("node", files.certificate), ("authority", files.ca)):
        ends.labels(name).set_function(functools.partial(certificate_end, path))


def serve(address: str, registry: CollectorRegistry, tls: TlsFiles | None = None) -> Callable[[], None]:
    """Shows the registry over HTTP at host:port, in a thread; returns what stops it. SettingsError when it cannot.

    With `tls` it speaks HTTPS and asks for a client certificate of the same authority.
    """
    host, port = split_address(address)
    secure: dict[str, Any] = {}
    if tls is not None:
        secure = {"certfile": str(tls.certificate), "keyfile": str(tls.key), "client_cafile": str(tls.ca)}
    try:
        server, thread = start_http_server(
            port, addr=host, registry=registry, client_auth_required=tls is not None, **secure
        )
    except OSError as error:
        raise SettingsError(
            f"metrics address {address} cannot be used: {error.strerror}",
            remedy="choose another port, or turn metrics off",
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
