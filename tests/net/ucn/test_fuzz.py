"""Whatever bytes a peer sends, the node answers with a status of the contract and goes on serving."""

from __future__ import annotations

import random
from typing import Any

import pytest

from splitwire import wire
from splitwire.v1 import channels_pb2, stack_pb2

NUM_STREAMS = 120
NUM_OPENINGS = 200
ALLOWED = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "ABORTED", "RESOURCE_EXHAUSTED", "DATA_LOSS"}


def _mutated(raw: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(4)
    if kind == 0 or not raw:
        return chance.randbytes(chance.randrange(40))
    place = chance.randrange(len(raw))
    if kind == 1:
        return raw[:place]
    if kind == 2:
        return raw[:place] + chance.randbytes(chance.randrange(1, 4)) + raw[place:]
    return raw[:place] + bytes([chance.randrange(256)]) + raw[place + 1 :]


def _script(kit: Any, chance: random.Random) -> list[bytes]:
    """A conversation of valid messages in any order, some of them changed."""
    train = stack_pb2.COMPUTE_MODE_TRAIN
    valid = [
        *kit.frame(channels_pb2.HOP_FORWARD, chance.randrange(1, 6), kit.rows(), compute_mode=chance.randrange(5)),
        *kit.frame(channels_pb2.HOP_FORWARD, 3, kit.rows(), compute_mode=train, chunk_bytes=chance.randrange(32, 200)),
        *kit.frame(channels_pb2.HOP_BACKWARD, 3, kit.rows(), compute_mode=0),
        kit.control(4, zero_grad=stack_pb2.ZeroGrad()),
        kit.control(5, optimizer_step=stack_pb2.OptimizerStep(learning_rate=chance.uniform(-1, 1), gradient_scale=1)),
        kit.control(6, cache_crop=stack_pb2.CacheCrop(cache_id=1, num_positions=chance.randrange(9))),
        kit.control(7, cache_reorder=stack_pb2.CacheReorder(cache_id=1, indices=[chance.randrange(9)])),
        kit.control(8, discard_step=stack_pb2.DiscardStep(train_step=chance.randrange(5))),
        kit.control(9, checkpoint=stack_pb2.Checkpoint(label="a")),
    ]
    chosen = [chance.choice(valid) for _ in range(chance.randrange(1, 6))]
    return [_mutated(raw, chance) if chance.random() < 0.5 else raw for raw in chosen]


@pytest.mark.parametrize("stack", ["gram", "transformer"])
def test_no_stream_makes_the_node_fail(
    start_server: Any, connect: Any, kit: Any, tiny_settings: dict[str, Any], stack: str
) -> None:
    """Changed, cut and shuffled messages end in a status of the contract, never INTERNAL."""
    running = start_server(**tiny_settings)
    client = connect(running)
    request = kit.gram_request()
    if stack == "transformer":
        from splitwire.backbone import identity  # noqa: PLC0415 - brings transformers in

        model = identity(tiny_settings["model"])
        request = kit.request(model=model)
        kit = kit.replace(kit, width=model.hidden_width)
    chance = random.Random(20261130)  # noqa: S311 - repeatable
    seen: dict[str, int] = {}
    for number in range(NUM_STREAMS):
        session_id = client.open(request).session_id
        stream = client.stream(session_id)
        script = _script(kit, chance)
        stream.send(*script)
        code = _outcome(stream, kit)
        assert code in ALLOWED | {"OK"}, f"conversation {number} ended in {code}"
        seen[code] = seen.get(code, 0) + 1
        client.close_session(session_id)
    assert len(running.server.table) == 0
    assert {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "OK"} <= set(seen), seen


def _outcome(stream: Any, kit: Any) -> str:
    stream.send(None)
    try:
        while True:
            stream.receive_raw()
    except StopIteration:
        return "OK"
    except kit.refusal as refusal:
        return str(refusal.code)


def test_no_opening_makes_the_node_fail(start_server: Any, connect: Any, kit: Any) -> None:
    """The same for OpenSession."""
    running = start_server()
    client = connect(running)
    chance = random.Random(7)  # noqa: S311 - repeatable
    raw = kit.gram_request().SerializeToString()
    for _ in range(NUM_OPENINGS):
        code = "OK"
        try:
            answer = client.call(wire.OPEN_SESSION, _mutated(raw, chance))
            client.close_session(stack_pb2.OpenSessionResponse.FromString(answer).session_id)
        except kit.refusal as refusal:
            code = refusal.code
        assert code in ALLOWED | {"OK"}
    assert len(running.server.table) == 0
