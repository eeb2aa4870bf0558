"""The page of a watch: wire traffic by hop, the support of the last frames, the gate with its floor, and the verdict.

It is served read-only from memory and holds numbers alone. Nothing on it is an audit's verdict but the one that an
audit wrote.
"""

from __future__ import annotations

from auditor.watch.live.page import LivePage

__all__ = ["LivePage"]
