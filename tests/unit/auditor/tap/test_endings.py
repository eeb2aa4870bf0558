"""What the trusted node is told of a call that failed upstream."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from auditor.tap.proxy import ending_of


@pytest.mark.parametrize(
    ("code", "details", "told"),
    [
        (grpc.StatusCode.INTERNAL, "Internal error from Core", grpc.StatusCode.UNAVAILABLE),
        (grpc.StatusCode.INTERNAL, "internal error", grpc.StatusCode.INTERNAL),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_connection_that_went_while_the_tap_wrote_is_tried_again(
    code: grpc.StatusCode, details: str, told: grpc.StatusCode
) -> None:
    """grpc.aio calls it INTERNAL, which a trusted node takes for the peer's own fault and does not try again."""
    assert ending_of(AioRpcError(code, Metadata(), Metadata(), details)).code is told
