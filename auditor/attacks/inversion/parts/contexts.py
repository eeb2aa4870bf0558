"""Synthetic contexts: tokens that public text lacks, put at random places of it.

Shapes: N pieces, T positions of a piece, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from auditor.attacks.inversion.parts.public_head import PublicHead

_CHUNK_PIECES = 256


def synthetic_rows(
    head: PublicHead, pieces_NT: torch.Tensor, tokens: torch.Tensor, replaced_ratio: float, generator: torch.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Chunks (rows [n, H], tokens [n]): each of `tokens` once, in a random piece at a random place.

    `replaced_ratio` of the places of a piece are taken at once; what is read there are rows of the new tokens alone.
    """
    num_positions = pieces_NT.shape[1]
    num_replaced = max(1, round(replaced_ratio * num_positions))
    order = torch.randperm(len(tokens), generator=generator).to(tokens.device)
    for chunk in torch.split(tokens[order], _CHUNK_PIECES * num_replaced):
        num_pieces = -(-len(chunk) // num_replaced)
        picked = torch.randint(len(pieces_NT), (num_pieces,), generator=generator)
        places_NR = torch.rand(num_pieces, num_positions, generator=generator).topk(num_replaced).indices
        places = (places_NR + num_positions * torch.arange(num_pieces)[:, None]).flatten()[: len(chunk)]
        mixed_NT = pieces_NT[picked.to(pieces_NT.device)]
        mixed_NT.view(-1)[places.to(mixed_NT.device)] = chunk
        yield head.rows_of_tokens(mixed_NT).flatten(0, 1)[places.to(head.device)], chunk
