"""The loop of a watch: read what was written, feed the detectors, act on leaks, and never let the backlog grow.

A recording that is still written and whose unread part exceeds `max_backlog_bytes` is read on without its detectors,
up to the newest; every frame passed over is counted. A recording that its recorder closed is read whole.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from auditor.statistics.gate import GateReading
from auditor.watch.actions import Actions, Report
from auditor.watch.base import Detector, Reading
from auditor.watch.groups import Joiner
from auditor.watch.linkage import LinkageDetector
from auditor.watch.metrics import WatchMetrics
from auditor.watch.norms import CalibratedNorms, NormValley
from auditor.watch.settings import DetectorName, WatchSettings
from auditor.watch.support import SupportDetector, SupportLine
from auditor.watch.tokens import TokenDetector
from splitwire.bundles import WireRecord, hop_name
from splitwire.bundles.assembly import Assembly
from splitwire.bundles.manifest import MANIFEST_FILE
from splitwire.bundles.tail import WireTail
from splitwire.bundles.truth_tail import TruthTail
from splitwire.sealing import load_sealing_private_key
from splitwire.v1 import channels_pb2, stack_pb2

_WATCHED_HOPS = (channels_pb2.HOP_FORWARD, channels_pb2.HOP_BACKWARD)
_REMEMBERED_FRAMES = 64
_CHUNKS_A_TURN = 16
_RESUME_SHARE = 4


@dataclass(frozen=True)
class WatchState:
    """Where the watch stands, for a screen."""

    readings: list[Reading]
    gate: GateReading | None
    num_frames: dict[str, int]
    num_bytes: int
    hop_bytes: dict[str, int]
    """Bytes of the messages of every hop that were read."""
    support: list[SupportLine]
    backlog_bytes: int
    num_skipped: int
    num_unmatched: int
    num_problems: int
    is_closed: bool
    has_begun: bool
    seconds: float


class Watcher:
    """One watch. `turn` reads what there is, `run` goes on until the bundle ends or it is told to stop."""

    def __init__(self, settings: WatchSettings, report: Report = lambda _line, _failed: None) -> None:
        settings.check()
        self.settings = settings
        self.metrics = WatchMetrics(settings.metrics.audit_file)
        self._report = report
        self._tail = WireTail(settings.bundle)
        self._truth = self._open_truth()
        self._joiner = Joiner(self._truth, settings.split_seed)
        self._assembly = self._new_assembly()
        self.detectors = _detectors(settings)
        self._actions = Actions(settings.actions, settings.bundle, self._tell)
        self._frames: Counter[str] = Counter()
        self._hop_bytes: Counter[str] = Counter()
        self._is_skipping = False
        self._num_skipped = 0
        self._num_problems = 0
        self._began = self._grew = time.monotonic()

    @property
    def found_leak(self) -> bool:
        """Whether any detector called a leak."""
        return any(detector.reading().leak for detector in self.detectors)

    def run(self, *, stopped: Callable[[], bool], show: Callable[[WatchState], None]) -> WatchState:
        """Watches until the recorder closes the bundle, `stopped` says so, or nothing came for `idle_seconds`."""
        try:
            while not stopped():
                if not self.turn():
                    if self._is_over():
                        break
                    time.sleep(self.settings.poll_seconds)
                show(self.state())
            self._actions.finish()
            self._publish()
            return self.state()
        finally:
            self.close()

    def close(self) -> None:
        """Lets go of the files."""
        self._tail.close()

    def turn(self) -> bool:
        """Reads some chunks and brings metrics and actions up to date; False when there was nothing to read."""
        num_chunks = 0
        while num_chunks < _CHUNKS_A_TURN and (records := self._tail.next_chunk()) is not None:
            num_chunks += 1
            self._choose_pace()
            for record in records:
                self._take(record)
            # At once, so that a leak of the first frames is acted on before later ones are read.
            self._act()
        self._publish()
        self._actions.poll()
        if num_chunks:
            self._grew = time.monotonic()
        return bool(num_chunks)

    def state(self) -> WatchState:
        """Where it stands."""
        return WatchState(
            [detector.reading() for detector in self.detectors],
            self._gate(),
            dict(self._frames),
            self._tail.num_bytes,
            dict(self._hop_bytes),
            [line for detector in self.detectors if isinstance(detector, SupportDetector) for line in detector.lines],
            0 if self._tail.is_closed else self._tail.backlog_bytes,
            self._num_skipped,
            self._joiner.num_unmatched,
            self._num_problems,
            self._tail.is_closed,
            self._tail.exists,
            time.monotonic() - self._began,
        )

    def _take(self, record: WireRecord) -> None:
        self._hop_bytes[hop_name(record.hop)] += len(record.message)
        if record.hop == channels_pb2.HOP_CONTROL:
            try:
                self._joiner.control(record)
            except DecodeError:
                self._num_problems += 1
            return
        if record.hop not in _WATCHED_HOPS:
            return
        if self._is_skipping:
            self._skip(record)
            return
        frame = self._assembly.feed(record)
        if frame is None:
            return
        before = self._joiner.num_unmatched
        groups = self._joiner.groups(frame)
        self.metrics.unmatched.inc(self._joiner.num_unmatched - before)
        if not groups:
            return
        self._frames[hop_name(frame.hop)] += 1
        self.metrics.count_frame(frame.hop)
        for detector in self.detectors:
            if frame.hop in detector.hops:
                for group in groups:
                    detector.take(group)

    def _skip(self, record: WireRecord) -> None:
        if record.kind != "ExchangeRequest":
            return
        try:
            begins = stack_pb2.ExchangeRequest.FromString(record.message).frame.HasField("header")
        except DecodeError:
            self._num_problems += 1
            return
        if begins:
            self._num_skipped += 1
            self.metrics.skipped.inc()

    def _choose_pace(self) -> None:
        limit, backlog = self.settings.max_backlog_bytes, self._tail.backlog_bytes
        if not self._is_skipping and backlog > limit and not (self.settings.bundle / MANIFEST_FILE).exists():
            self._is_skipping = True
            self._assembly = self._new_assembly()
            self._report(f"behind by {backlog} bytes: skipping to the newest frames", False)
        elif self._is_skipping and backlog <= limit // _RESUME_SHARE:
            self._is_skipping = False
            self._report(f"caught up: {self._num_skipped} frames were skipped so far", False)

    def _act(self) -> None:
        for detector in self.detectors:
            self._actions.act(detector.reading())

    def _publish(self) -> None:
        self.metrics.backlog.set(self._tail.backlog_bytes if not self._tail.is_closed else 0)
        readings = [detector.reading() for detector in self.detectors]
        self.metrics.show(readings, self._gate(), calibrated=self._truth is not None)

    def _gate(self) -> GateReading | None:
        return next((d.gate() for d in self.detectors if isinstance(d, TokenDetector)), None)

    def _is_over(self) -> bool:
        if self.settings.stay:
            return False
        idle = self.settings.idle_seconds
        return self._tail.is_closed or (idle > 0 and time.monotonic() - self._grew > idle)

    def _open_truth(self) -> TruthTail | None:
        if self.settings.truth is None or self.settings.key is None:
            return None
        return TruthTail(self.settings.truth, load_sealing_private_key(self.settings.key))

    def _new_assembly(self) -> Assembly:
        return Assembly(self._note, remember=_REMEMBERED_FRAMES)

    def _note(self, _problem: str) -> None:
        self._num_problems += 1

    def _tell(self, line: str, failed: bool) -> None:
        if failed:
            self.metrics.failures.inc()
        self._report(line, failed)


def _detectors(settings: WatchSettings) -> list[Detector]:
    """The detectors of the settings; each gets its share of alpha (Bonferroni). `support` needs none."""
    calibrated = settings.truth is not None
    names = [name for name in settings.detectors if calibrated or name != "token"]
    alpha = settings.alpha / max(1, sum(name != "support" for name in names))
    return [_detector(name, settings, alpha, calibrated=calibrated) for name in dict.fromkeys(names)]


def _detector(name: DetectorName, settings: WatchSettings, alpha: float, *, calibrated: bool) -> Detector:
    ceilings = settings.ceilings
    if name == "support":
        return SupportDetector()
    if name == "linkage":
        return LinkageDetector(ceilings.linked_ratio, alpha, settings.history_bytes, settings.split_seed)
    if name == "token":
        return TokenDetector(
            ceilings.token_pp,
            alpha,
            window_rows=settings.window_rows,
            max_classes=settings.max_classes,
            seed=settings.split_seed,
        )
    if calibrated:
        return CalibratedNorms(name, ceilings.partition_auc_ratio, alpha)
    return NormValley(name, ceilings.valley_ratio, alpha)
