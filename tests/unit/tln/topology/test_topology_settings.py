"""A topology that could not do what it says is refused, with the field and the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitwire.errors import SettingsError
from splitwire.tls import TlsFiles
from tln.adversaries import AdversarySettings
from tln.connection import ConnectionSettings
from tln.gradient_policy import GradientSettings
from tln.pipeline import FrameSettings
from tln.settings import TlnSettings, check_training
from tln.stack_settings import StackSettings
from tln.topology.settings import TopologySettings, connections
from tln.training.corpus import CorpusSettings
from tln.training.settings import TrainSettings

CONNECTION = ConnectionSettings(tls=TlsFiles(Path("ca"), Path("certificate"), Path("key")), step_timeout_seconds=7.0)
TWO, THREE = ("10.0.0.2:7431",), ("10.0.0.2:7431", "10.0.0.3:7431")
GRAM: dict[str, Any] = {
    "stack": StackSettings(kind="gram"),
    "frame": FrameSettings(mechanisms=("bottleneck", "clip_noise")),
}
GOOD = TlnSettings(connection=CONNECTION, corpus=CorpusSettings(path="text"), train=TrainSettings(out="out"))
DECOYS = ("bottleneck", "clip_noise", "decoys", "permutation")
SEGMENTS = TopologySettings("segments", TWO, segment_1_end=2, segment_2_start=3)


@pytest.mark.parametrize(
    ("topology", "changes"),
    [
        (TopologySettings(), {}),
        (TopologySettings("replicas", THREE, max_deviation=0.1, on_deviation="warn"), {}),
        (TopologySettings("replicas", THREE), GRAM),
        (TopologySettings("views", TWO), GRAM),
        (SEGMENTS, {}),
        (TopologySettings("segments", TWO), GRAM),
    ],
)
def test_what_makes_sense_is_taken(topology: TopologySettings, changes: dict[str, Any]) -> None:
    """The refusals below are of their own fields."""
    check_training(replace(GOOD, topology=topology, **changes))


@pytest.mark.parametrize(
    ("topology", "changes", "match"),
    [
        (TopologySettings(addresses=TWO), {}, "topology is configured and topology.kind is single"),
        (TopologySettings("replicas", TWO), {}, "replicas with 2 nodes"),
        (TopologySettings("replicas", THREE, max_deviation=0.0), {}, "max_deviation is 0.0"),
        (TopologySettings("replicas", (*TWO, *TWO)), {}, "10.0.0.2:7431 twice"),
        (TopologySettings("replicas", ("127.0.0.1:7431", *TWO)), {}, "127.0.0.1:7431 twice"),
        (TopologySettings("replicas", ("no-port", *TWO)), {}, "no-port"),
        (TopologySettings("replicas", THREE, server_names=("a",)), {}, "1 names for 2 addresses"),
        (TopologySettings("replicas", THREE, segment_1_end=2), {}, "segment_1_end is set and does nothing"),
        (TopologySettings("views", TWO), {}, "views is refused on the transformer stack"),
        (TopologySettings("views", THREE), GRAM, "cannot share frame.bottleneck.width 64 between 3"),
        (TopologySettings("views"), GRAM, "between 1 nodes"),
        (TopologySettings("views", TWO, max_deviation=0.1), GRAM, "max_deviation is set and does nothing"),
        (TopologySettings("segments", THREE), GRAM, "segments with 3 nodes"),
        (TopologySettings("segments", TWO), {}, "no cut of the delegated layers"),
        (replace(SEGMENTS, segment_1_end=4), {}, "segment_1_end 4 and segment_2_start 3"),
        (SEGMENTS, GRAM, "segment_1_end is set and does nothing"),
        (SEGMENTS, {"frame": FrameSettings(mechanisms=("clip_noise", "decoys"))}, "mechanism decoys is refused"),
        (SEGMENTS, {"train": TrainSettings(out="out", checkpoint_every=2)}, "checkpoint_every"),
    ],
)
def test_what_does_not_is_refused(topology: TopologySettings, changes: dict[str, Any], match: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(SettingsError, match=match):
        check_training(replace(GOOD, topology=topology, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"adversaries": AdversarySettings(heads=("token",))},
        {"frame": FrameSettings(mechanisms=DECOYS), "gradient": GradientSettings(policy="matched")},
    ],
)
def test_segments_refuse_what_knows_of_one_hop(changes: dict[str, Any]) -> None:
    """It would claim to protect both."""
    settings = replace(GOOD, topology=TopologySettings("segments", TWO), **(GRAM | changes))
    with pytest.raises(SettingsError, match="segments"):
        check_training(settings)


def test_every_node_is_reached_with_the_same_keys_and_limits() -> None:
    """Only address and name differ, and a server name of the first is not the others'."""
    first = replace(CONNECTION, server_name="first")
    every = connections(TopologySettings("replicas", THREE, server_names=("b", "c")), first)
    assert [(each.address, each.server_name) for each in every] == [
        ("127.0.0.1:7431", "first"),
        ("10.0.0.2:7431", "b"),
        ("10.0.0.3:7431", "c"),
    ]
    assert {(each.tls, each.step_timeout_seconds) for each in every} == {(CONNECTION.tls, 7.0)}
    assert connections(TopologySettings("replicas", THREE), first)[1].server_name == ""
