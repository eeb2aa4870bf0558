"""Watches a bundle while it is written: streaming detectors, metrics, a live view, and what is done about a leak.

Reads files and nothing else, in a process of its own: the wire does not wait for it. Memory is bounded whatever the
length of the run. What a detector calls a leak holds however often and however long it looks
(auditor.statistics.sequential).
"""

from __future__ import annotations

from auditor.watch.settings import WatchSettings
from auditor.watch.watcher import Watcher

__all__ = ["WatchSettings", "Watcher"]
