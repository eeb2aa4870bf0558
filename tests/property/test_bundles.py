"""Whatever crosses, in whatever order, a bundle gives it back unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitwire.bundles import BundleWriter, WireRecord, open_bundle, verify_bundle
from splitwire.bundles.records import MESSAGE_KINDS
from splitwire.v1 import channels_pb2

TIMES = st.integers(0, (1 << 64) - 1)
RECORDS = st.lists(
    st.builds(
        WireRecord,
        hop=st.sampled_from(sorted(set(channels_pb2.Hop.values()) - {channels_pb2.HOP_UNSPECIFIED})),
        direction=st.sampled_from(["request", "response"]),
        session_hash=st.sampled_from(["", "a" * 16, "b" * 16]),
        message=st.binary(max_size=200),
        sent_ns=TIMES,
        received_ns=TIMES,
        kind=st.sampled_from(MESSAGE_KINDS),
    ),
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(records=RECORDS, flush_after=st.sets(st.integers(0, 19)))
def test_records_come_back_in_order_and_the_bundle_verifies(
    tmp_path_factory: pytest.TempPathFactory, records: list[WireRecord], flush_after: set[int]
) -> None:
    folder: Path = tmp_path_factory.mktemp("bundle")
    with BundleWriter(folder, recorder="tap", settings={"n": len(records)}) as writer:
        for number, record in enumerate(records):
            writer.write(record)
            if number in flush_after:
                writer.flush()
    bundle = open_bundle(folder)
    assert list(bundle.messages()) == records
    assert bundle.sessions() == list(dict.fromkeys(record.session_hash for record in records if record.session_hash))
    assert bundle.manifest is not None
    assert bundle.manifest["num_messages"] == len(records)
    assert verify_bundle(folder).problems == []
