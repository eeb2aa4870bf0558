"""Several real untrusted nodes over mutual TLS: replicas, views, segments; and rows on the fixed grid of the wire."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.backbone import ModelSettings, load_whole
from splitwire.bundles import TRUTH_FILE, WireRecord, open_bundle, read_truth, verify_bundle
from splitwire.errors import PeerError
from splitwire.sealing import write_audit_keys
from splitwire.settings import build
from splitwire.tls import TlsFiles
from splitwire.v1 import channels_pb2, stack_pb2
from tests.net.tln.training.runs import BLOCK, LATENT
from tln import connect as connecting
from tln.connect import connect as connected_to
from tln.replay import replay
from tln.settings import TlnSettings, check_generation, check_training_session
from tln.topology.opening import links_of, sessions_of
from tln.topology.replicas import ReplicaCrossing
from tln.training.finetune import finetune
from tln.training.prepare import dependencies_of, load_texts, prepare
from tln.training.progress import NoProgress

FORWARD, RETURN = channels_pb2.HOP_FORWARD, channels_pb2.HOP_RETURN
BACKWARD = channels_pb2.HOP_BACKWARD
TOLERANCE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
TRAINED: dict[str, Any] = {
    "stack": {"kind": "transformer", "trainable": "full"},
    "gradient": {"policy": "open", "unsafe": True},
}


@pytest.fixture
def settings_for(pki: dict[str, TlsFiles], tmp_path: Path) -> Callable[..., TlnSettings]:
    """settings_for(nodes, kind, LATENT, ...) -> settings of a topology over running nodes, layers merged by section."""

    def make(nodes: list[Any], kind: str, *layers: dict[str, Any], cut: tuple[int, int] = (2, 4)) -> TlnSettings:
        words = ["river", "stone", "walks", "green", "under", "seven", "small", "lamps"]
        for name, offset in (("private", 1), ("public", 3)):
            lines = [
                json.dumps({"id": f"{name}-{n}", "text": " ".join(words[(n * offset + i * i) % 8] for i in range(12))})
                for n in range(12)
            ]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        if not (tmp_path / "keys").exists():
            write_audit_keys(tmp_path / "keys")
        first, *others = (node.settings.listen for node in nodes)
        tree: dict[str, Any] = {
            "model": {"source": nodes[0].settings.model.source, "first_layer": cut[0], "last_layer": cut[1]},
            "connection": {"address": first, "tls": {name: str(path) for name, path in vars(pki["tln"]).items()}},
            "topology": {"kind": kind, "addresses": others},
            "corpus": {
                "path": str(tmp_path / "private.jsonl"),
                "public_path": str(tmp_path / "public.jsonl"),
                "block_tokens": BLOCK,
                "public_blocks": 4,
            },
            "train": {"out": str(tmp_path / "out"), "steps": 3, "frames_per_step": 4, "max_evaluation_blocks": 2},
            "record": {
                "folder": str(tmp_path / "bundle"),
                "audit_key": str(tmp_path / "keys" / "audit.pub"),
                "signing_key": str(tmp_path / "keys" / "tln-recorder.key"),
            },
        }
        for layer in layers:
            for section, values in layer.items():
                tree[section] = {**tree.get(section, {}), **values}
        return build(TlnSettings, tree, "test")

    return make


def _train(settings: TlnSettings) -> dict[str, dict[int, list[torch.Tensor]]]:
    """Prepares, trains, verifies the bundle; the tensors that crossed by session and hop, in order."""
    texts = load_texts(settings.model, settings.corpus)
    prepare(settings.model, settings.prepare, texts, NoProgress(), dependencies_of(settings.model, texts))
    finetune(settings, NoProgress(), lambda _defence: None)
    bundle = Path(settings.record.folder)
    keys = Path(settings.record.audit_key).parent
    verified = verify_bundle(bundle, keys / "trust.json")
    assert verified.problems == []
    assert verified.is_complete
    replayed = replay(bundle, key=keys / "audit.key", truth=bundle / TRUTH_FILE)
    assert replayed.problems == []
    assert replayed.is_order_checked
    truth = read_truth(bundle / TRUTH_FILE, keys / "audit.key")
    crossed: dict[str, dict[int, list[torch.Tensor]]] = defaultdict(lambda: defaultdict(list))
    for hop in (FORWARD, RETURN, BACKWARD):
        for frame in open_bundle(bundle).frames(hop):
            crossed[frame.session_hash][hop].append(frame.tensor)
            if hop == FORWARD:
                assert truth.records[(frame.session_hash, frame.header.step)].forward_digest == frame.message_digest
    return crossed


def _lie(node: Any, factor: float) -> None:
    """From now on the node multiplies every row that it computes."""
    honest = node.server._node.open_stack

    def lying(request: stack_pb2.OpenSessionRequest) -> Any:
        stack = honest(request)
        forward = stack.forward
        stack.forward = lambda rows, call: forward(rows, call) * factor
        return stack

    object.__setattr__(node.server._node, "open_stack", lying)


def _whole(settings: TlnSettings) -> Any:
    return load_whole(settings.model)


def test_replicas_generate_what_the_unsplit_model_generates(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor
) -> None:
    """Three honest nodes with their caches in step."""
    settings = settings_for([start_node() for _ in range(3)], "replicas", _NO_RECORD)
    check_generation(settings)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "num_beams": 2, "do_sample": False}
    with connected_to(settings) as split:
        ours = split.model.generate(batch, **options)
    assert torch.equal(ours, _whole(settings).generate(batch, **options))


@pytest.mark.parametrize("kind", ["replicas", "segments"])
def test_nodes_that_are_started_again_take_the_same_steps_as_the_others(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor, kind: str
) -> None:
    """Two of them before one step, of a generation with beams: each is restored by itself."""
    if kind == "segments":
        nodes = _segment_nodes(start_node, 3)
        cut = {"topology": {"segment_1_end": 3, "segment_2_start": 3}}
        settings = settings_for(nodes, kind, _NO_RECORD, cut, cut=(1, 5))
    else:
        nodes = [start_node() for _ in range(3)]
        settings = settings_for(nodes, kind, _NO_RECORD)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "num_beams": 2, "do_sample": False}
    with connected_to(settings) as split:
        seen: list[str] = []

        def guard(route: Any, _messages: Any) -> None:
            seen.append(str(route.hop))
            if len(seen) == 5:
                for node in nodes[:2]:
                    node.stop()
                    node.start()

        before = sessions_of(split.model.crossing)
        lost = {member.session_hash for member in before[:2]}
        before[0].guards.append(guard)
        ours = split.model.generate(batch, **options)
        assert not lost & {member.session_hash for member in before}
    assert len(seen) > 8
    assert torch.equal(ours, _whole(settings).generate(batch, **options))


def test_replicas_of_the_surrogate_answer_alike_through_training(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes to each, and the same bytes back, in every step of a training run; one of them is recorded."""
    seen: list[list[WireRecord]] = []

    def watched(settings: TlnSettings, first: Any = None) -> Any:
        links = links_of(settings, first)
        for link in links:
            seen.append([])
            link.observers.append(seen[-1].append)
        return links

    monkeypatch.setattr(connecting, "links_of", watched)
    assert len(_train(settings_for([start_node() for _ in range(3)], "replicas", LATENT))) == 1
    for hop in (FORWARD, RETURN, BACKWARD, channels_pb2.HOP_INPUT_GRADIENT):
        first, *others = ([record.message for record in records if record.hop == hop] for records in seen)
        assert len(first) > 2
        assert others == [first, first]


@pytest.mark.parametrize("trainable", ["full", "lora"])
def test_replicas_of_layers_stay_together_while_they_train(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor, trainable: str
) -> None:
    """Optimizer steps included; the gradient norm that goes on is that of one node."""
    layers = TRAINED | {"stack": {"kind": "transformer", "trainable": trainable}}
    settings = settings_for([start_node() for _ in range(3)], "replicas", layers, _NO_RECORD)
    with connected_to(settings, mode="training", make_policy=lambda _parts: _Open()) as split:
        for _ in range(3):
            split.model(batch, labels=batch).loss.backward()
            assert split.model.crossing.optimizer_step(0.01) > 0
            split.model.crossing.zero_grad()
        assert isinstance(split.model.crossing, ReplicaCrossing)
        assert not split.model.crossing.suspects


@pytest.mark.parametrize("liar", [0, 2])
def test_a_lying_replica_is_named(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor, liar: int
) -> None:
    """By its address; the honest ones are not, and a lie below the bound is not told as one."""
    nodes = [start_node() for _ in range(3)]
    settings = settings_for(nodes, "replicas", _NO_RECORD)
    _lie(nodes[liar], 1.05)
    with connected_to(settings) as split, pytest.raises(PeerError) as caught, torch.no_grad():
        split.model(batch)
    named = [node.settings.listen for node in nodes if node.settings.listen in caught.value.message]
    assert named == [nodes[liar].settings.listen]


def test_the_median_goes_on_without_the_liar_when_it_is_only_reported(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor
) -> None:
    """The logits are those of the unsplit model, and the liar is counted."""
    nodes = [start_node() for _ in range(3)]
    settings = settings_for(nodes, "replicas", _NO_RECORD, {"topology": {"on_deviation": "warn"}})
    _lie(nodes[1], -3.0)
    with connected_to(settings) as split, torch.no_grad():
        torch.testing.assert_close(split.model(batch).logits, _whole(settings)(batch).logits, **TOLERANCE)
        assert isinstance(split.model.crossing, ReplicaCrossing)
        assert split.model.crossing.suspects == {nodes[1].settings.listen: 1}


def test_the_report_of_a_training_run_counts_what_the_liar_answered(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], tmp_path: Path
) -> None:
    """By its address, and nobody else."""
    nodes = [start_node() for _ in range(3)]
    _lie(nodes[2], 1.5)
    settings = settings_for(nodes, "replicas", LATENT, {"topology": {"on_deviation": "warn"}})
    _train(settings)
    counted = json.loads((tmp_path / "out" / "report.json").read_text())["deviating_answers"]
    assert list(counted) == [nodes[2].settings.listen]
    assert counted[nodes[2].settings.listen] >= settings.train.steps


def test_a_node_that_is_gone_is_named(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor
) -> None:
    """The failure of one of several nodes says which one failed."""
    nodes = [start_node() for _ in range(3)]
    settings = settings_for(nodes, "replicas", _NO_RECORD, {"connection": {"retry_attempts": 0}})
    with connected_to(settings) as split, torch.no_grad():
        split.model(batch)
        nodes[2].stop()
        with pytest.raises(PeerError, match=f"untrusted node {nodes[2].settings.listen}"):
            split.model(batch)


def test_each_view_gets_its_share_of_the_width_and_no_more(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings]
) -> None:
    """Two nodes train on halves of the latent rows, which are different rows under different noise."""
    first, second = _train(settings_for([start_node(), start_node()], "views", LATENT)).values()
    for hop in (FORWARD, RETURN, BACKWARD):
        for ours, theirs in zip(first[hop], second[hop], strict=True):
            assert ours.shape == theirs.shape
            assert ours.shape[-1] == 4
            assert float((ours - theirs).abs().max()) > 1e-4


@pytest.mark.parametrize("end", [2, 3])
def test_two_segments_equal_the_unsplit_model(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor, end: int
) -> None:
    """Loss, gradients of head and tail, and the norm over both nodes; with a layer in between and without."""
    nodes = _segment_nodes(start_node, end)
    cut = {"topology": {"segment_1_end": end, "segment_2_start": 3}}
    settings = settings_for(nodes, "segments", TRAINED, _NO_RECORD, cut, cut=(1, 5))
    check_training_session(settings)
    whole = _whole(settings)
    mask = torch.ones_like(batch)
    mask[1, 9:] = 0
    labels = batch.masked_fill(mask == 0, -100)
    with connected_to(settings, mode="training", make_policy=lambda _parts: _Open()) as split:
        loss = split.model(batch, attention_mask=mask, labels=labels).loss
        expected = whole(batch, attention_mask=mask, labels=labels).loss
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected, **TOLERANCE)
        embedding = whole.get_input_embeddings().weight
        torch.testing.assert_close(split.model.head.embedding.weight.grad, embedding.grad, **TOLERANCE)
        delegated = [layer for number, layer in enumerate(whole.model.layers) if 1 <= number < end or 3 <= number < 5]
        norm = sum(float(p.grad.square().sum()) for layer in delegated for p in layer.parameters())
        assert split.model.crossing.squared_gradient_norm() == pytest.approx(norm, rel=1e-4)
        split.model(batch, labels=batch)  # whose graphs are let go of on both nodes
        split.model.crossing.zero_grad()


def test_consecutive_segments_generate_what_the_unsplit_model_generates(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings], batch: torch.Tensor
) -> None:
    """Beam search: both nodes' caches are reordered together."""
    cut = {"topology": {"segment_1_end": 3, "segment_2_start": 3}}
    settings = settings_for(_segment_nodes(start_node, 3), "segments", _NO_RECORD, cut, cut=(1, 5))
    check_generation(settings)
    options = {"max_new_tokens": 10, "min_new_tokens": 10, "num_beams": 2, "do_sample": False}
    with connected_to(settings) as split:
        ours = split.model.generate(batch, **options)
    assert torch.equal(ours, _whole(settings).generate(batch, **options))


def test_both_hops_of_two_surrogates_have_secrets_of_their_own(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings]
) -> None:
    """Two gram nodes in a row train; no frame of the second hop is one of the first, nor is its noise."""
    settings = settings_for([start_node(), start_node()], "segments", LATENT)
    first, second = _train(settings).values()
    assert len(first[FORWARD]) == len(second[FORWARD]) > 3
    assert len(first[BACKWARD]) == len(second[BACKWARD]) == 3
    for hop in (FORWARD, BACKWARD):
        for ours, theirs in zip(first[hop], second[hop], strict=True):
            assert float((ours - theirs).abs().max()) > 1e-4


def test_rows_on_the_fixed_grid_cross_a_training_run_with_one_scale(
    start_node: Callable[..., Any], settings_for: Callable[..., TlnSettings]
) -> None:
    """Every value of every FORWARD frame is a multiple of the one grid step; without the grid there is none."""
    frame = LATENT["frame"]
    gridded = {
        "stack": {"kind": "gram", "request_dtype": "int8"},
        "frame": {**frame, "mechanisms": [*frame["mechanisms"], "fixed_grid"], "fixed_grid": {"limit": 4.0}},
    }
    settings = settings_for([start_node()], "single", LATENT, gridded)
    (session,) = _train(settings).values()
    step = torch.tensor(4.0 / 127)
    for rows in session[FORWARD]:
        assert torch.equal((rows / step).round() * step, rows)
        assert len(set((rows / step).round().flatten().tolist())) > 20


class _Open:
    """Sends the raw gradient."""

    def __call__(self, gradient: torch.Tensor, context: Any) -> torch.Tensor:  # noqa: ARG002 - the seam
        return gradient

    def describe(self) -> dict[str, Any]:
        return {"policy": "open"}


_NO_RECORD: dict[str, Any] = {"record": {"folder": "", "audit_key": "", "signing_key": ""}}


def _segment_nodes(start_node: Callable[..., Any], end: int) -> list[Any]:
    """Nodes over layers [1, end) and [3, 5) of the tiny model."""
    first = start_node()
    source = first.settings.model.source
    first.stop()
    return [start_node(model=ModelSettings(source=source, first_layer=a, last_layer=b)) for a, b in ((1, end), (3, 5))]
