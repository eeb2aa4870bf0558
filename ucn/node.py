"""What this process holds for all sessions: the delegated layers, their identity, a thread for each device.

The base weights are loaded once and shared read-only; a session gets its own stack over them. A node that allows
only the gram stack loads no model at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from splitwire.backbone import MiddleModel, load_middle, usable_device
from splitwire.backbone import identity as identity_of
from splitwire.frames import torch_dtype, wire_dtype
from splitwire.v1 import stack_pb2
from ucn.executor import DeviceExecutor
from ucn.settings import UcnSettings
from ucn.stacks import open_stack
from ucn.stacks.base import Stack, StackLimits

StackOpener = Callable[[stack_pb2.OpenSessionRequest], Stack]


@dataclass(frozen=True)
class Node:
    """The shared part of a server."""

    identity: stack_pb2.ModelIdentity | None
    open_stack: StackOpener
    transformer_executor: DeviceExecutor
    gram_executor: DeviceExecutor

    def executor_for(self, kind: stack_pb2.StackKind) -> DeviceExecutor:
        """The thread on which a stack of this kind computes."""
        return self.gram_executor if kind == stack_pb2.STACK_KIND_GRAM else self.transformer_executor

    @property
    def queue_depth(self) -> int:
        """Computations that wait or run, over all devices."""
        return sum(executor.depth for executor in {self.transformer_executor, self.gram_executor})

    def shutdown(self) -> None:
        """Ends the threads, after the work that runs."""
        for executor in {self.transformer_executor, self.gram_executor}:
            executor.shutdown()


def load_node(settings: UcnSettings) -> Node:
    """Loads what the settings allow.

    ModelError for a model that is missing, unsupported or cut impossibly, and for a device that is not there.
    """
    identity, base = None, None
    if "gram" in settings.stacks:
        usable_device(settings.gram_device)
    if "transformer" in settings.stacks:
        identity, base = identity_of(settings.model), load_middle(settings.model)
    transformer, gram = _executors(settings)
    opener = _opener(settings, base, transformer, gram)
    return Node(identity=identity, open_stack=opener, transformer_executor=transformer, gram_executor=gram)


def _executors(settings: UcnSettings) -> tuple[DeviceExecutor, DeviceExecutor]:
    transformer = DeviceExecutor(settings.model.device, settings.threads)
    if settings.gram_device == settings.model.device:
        return transformer, transformer
    return transformer, DeviceExecutor(settings.gram_device, settings.threads)


def _opener(
    settings: UcnSettings, base: MiddleModel | None, transformer: DeviceExecutor, gram: DeviceExecutor
) -> StackOpener:
    dtype = torch_dtype(wire_dtype(settings.model.dtype))

    def opener(request: stack_pb2.OpenSessionRequest) -> Stack:
        executor = gram if request.stack_kind == stack_pb2.STACK_KIND_GRAM else transformer
        limits = StackLimits(max_kept_steps=settings.limits.max_kept_steps, max_pairs=settings.limits.max_gram_pairs)
        return open_stack(request, base, executor.device, dtype, limits)

    return opener
