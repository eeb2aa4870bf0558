"""K nodes get disjoint shares of the width: node k sees values [k D/K, (k + 1) D/K) of every latent row, under its own
rotation.

The surrogate of each node is a network of its own, and only the private decoder sees all shares. Clip, noise, decoys
and the order of rows are those of the whole frame, so nodes that put their shares together see what one node would have
seen, but for the rotation between the shares. Against nodes that do not talk to each other a share is a narrower row;
the encoder may still put the same information into every share, which only an audit of a share can tell.

Refused on the transformer stack, whose layers need the whole width.

Source: Privacy Failure in Split-LLM Training, K complementary channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tln.topology.group import GroupCrossing


class ViewsCrossing(GroupCrossing):
    """The width of the rows must be a multiple of the number of nodes."""

    def split(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Shares [N, R, D/K]."""
        return [share.contiguous() for share in rows.chunk(len(self.members), dim=-1)]

    def join(self, answers: Sequence[torch.Tensor], step: int) -> torch.Tensor:  # noqa: ARG002 - the seam
        """The shares side by side."""
        return torch.cat(list(answers), dim=-1)

    def join_norms(self, squared_norms: Sequence[float], step: int) -> float:  # noqa: ARG002 - the seam
        """Their sum: the nodes train different parameters."""
        return sum(squared_norms)
