"""What happens around every call, outermost first: observe, sanitise, authorise."""

from __future__ import annotations

from ucn.interceptors.authorise import authorise
from ucn.interceptors.observe import observe
from ucn.interceptors.sanitise import sanitise
from ucn.interceptors.wrapping import AroundInterceptor
from ucn.metrics import UcnMetrics

__all__ = ["interceptors"]


def interceptors(metrics: UcnMetrics, allowed_names: frozenset[str] | None) -> list[AroundInterceptor]:
    """The interceptors of the server. `allowed_names` None stands for a plaintext server on loopback."""
    return [AroundInterceptor(around) for around in (observe(metrics), sanitise, authorise(allowed_names))]
