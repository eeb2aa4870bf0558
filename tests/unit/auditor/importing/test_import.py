"""Tensors of other systems as bundles: what is written is what was given, and what does not fit is named."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from auditor.importing import Mapping, import_tensors, load_mapping
from auditor.importing.mapping import TensorMapping
from splitwire.bundles import open_bundle, read_truth, verify_bundle
from splitwire.errors import BundleError, SettingsError
from splitwire.sealing import load_signing_key, write_audit_keys
from splitwire.v1 import channels_pb2, stack_pb2

S, R, D = 4, 6, 3
MAPPING = Mapping(
    stack="gram",
    forward=TensorMapping("h", ("step", "row", "width")),
    backward=TensorMapping("g", ("row", "step", "width")),
    returned=TensorMapping("back.rows", ("step", "width", "row")),
    real=TensorMapping("mask", ("step", "row")),
    token=TensorMapping("tokens", ("step", "row")),
    label=TensorMapping("labels", ("row", "step")),
    document=TensorMapping("doc", ("step",)),
    members="member",
)
Save = Callable[[Path, dict[str, torch.Tensor]], Path]


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "h": torch.randn(S, R, D, generator=generator),
        "g": torch.randn(R, S, D, generator=generator),
        "back.rows": torch.randn(S, D, R, generator=generator),
        "mask": torch.rand(S, R, generator=generator) < 0.5,
        "tokens": torch.randint(0, 99, (S, R), generator=generator),
        "labels": torch.randint(0, 99, (R, S), generator=generator, dtype=torch.int32),
        "doc": torch.tensor([0, 1, 1, 2]),
        "member": torch.tensor([True, False, True]),
    }


def save_npz(path: Path, values: dict[str, torch.Tensor]) -> Path:
    np.savez(path.with_suffix(".npz"), **{name: value.numpy() for name, value in values.items()})
    return path.with_suffix(".npz")


def save_npz_compressed(path: Path, values: dict[str, torch.Tensor]) -> Path:
    arrays = {name: np.asfortranarray(value.numpy()) for name, value in values.items()}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return path.with_suffix(".npz")


def save_safetensors(path: Path, values: dict[str, torch.Tensor]) -> Path:
    save_file({name: value.contiguous() for name, value in values.items()}, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def save_pt(path: Path, values: dict[str, torch.Tensor]) -> Path:
    nested: dict[str, Any] = {name: value for name, value in values.items() if name != "back.rows"}
    torch.save(nested | {"back": {"rows": values["back.rows"]}, "note": "left out"}, path.with_suffix(".pt"))
    return path.with_suffix(".pt")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import") / "keys"
    write_audit_keys(folder)
    return folder


@pytest.mark.parametrize("save", [save_npz, save_npz_compressed, save_safetensors, save_pt])
def test_every_format_gives_the_same_rows_truth_and_documents(save: Save, keys: Path, tmp_path: Path) -> None:
    values, out = tensors(), tmp_path / "bundle"
    signing = load_signing_key(keys / "tln-recorder.key")
    done = import_tensors(
        save(tmp_path / "source", values), MAPPING, out, audit_key=keys / "audit.pub", signing_key=signing
    )
    assert (done.num_steps, done.num_documents, done.hops) == (S, 3, ("forward", "returned", "backward"))
    assert verify_bundle(out, keys / "trust.json").is_good
    bundle, truth = open_bundle(out), read_truth(out / "truth.sealed", keys / "audit.key")
    expected = {
        channels_pb2.HOP_FORWARD: values["h"],
        channels_pb2.HOP_BACKWARD: values["g"].permute(1, 0, 2),
        channels_pb2.HOP_RETURN: values["back.rows"].permute(0, 2, 1),
    }
    for hop, rows_SRD in expected.items():
        frames = list(bundle.frames(hop))
        assert torch.equal(torch.cat([frame.tensor for frame in frames]), rows_SRD)
        assert [frame.header.step for frame in frames] == [1, 2, 3, 4]
        if hop == channels_pb2.HOP_FORWARD:
            records = [truth.records[frame.session_hash, frame.header.step] for frame in frames]
            assert [record.forward_digest for record in records] == [frame.message_digest for frame in frames]
    assert np.array_equal(np.concatenate([record.real for record in records]), values["mask"].numpy())
    assert np.array_equal(np.concatenate([record.token for record in records]), values["tokens"].numpy())
    assert np.array_equal(np.concatenate([record.label for record in records]), values["labels"].T.numpy())
    assert [int(record.document[0, 0]) for record in records] == [0, 1, 1, 2]
    assert [document["member"] for document in truth.documents] == [True, False, True]
    assert bundle.problems == []


def test_half_precision_keeps_its_bits_and_sequences_stay_apart(keys: Path, tmp_path: Path) -> None:
    values = {"x": torch.randn(2, 3, R, D).bfloat16(), "d": torch.arange(6).reshape(2, 3)}
    mapping = Mapping(
        mode="evaluate",
        forward=TensorMapping("x", ("step", "sequence", "row", "width")),
        document=TensorMapping("d", ("step", "sequence")),
    )
    source = save_safetensors(tmp_path / "s", values)
    import_tensors(source, mapping, tmp_path / "bundle", audit_key=keys / "audit.pub")
    frames = list(open_bundle(tmp_path / "bundle").frames(channels_pb2.HOP_FORWARD))
    assert [tuple(frame.tensor.shape) for frame in frames] == [(3, R, D), (3, R, D)]
    assert torch.equal(torch.stack([frame.tensor for frame in frames]), values["x"])
    assert frames[0].header.dtype == stack_pb2.WIRE_DTYPE_BF16
    record = next(iter(read_truth(tmp_path / "bundle" / "truth.sealed", keys / "audit.key").records.values()))
    assert record.real.all()
    assert record.document[:, 0].tolist() == [0, 1, 2]
    assert set(record.label.ravel()) == {-100}


def changed(**tensor: Any) -> dict[str, torch.Tensor]:
    return tensors() | tensor


def without_steps() -> dict[str, torch.Tensor]:
    return {name: value[:, :0] if name in ("g", "labels") else value[:0] for name, value in tensors().items()}


@pytest.mark.parametrize(
    ("values", "mapping", "named"),
    [
        ({k: v for k, v in tensors().items() if k != "g"}, {}, "has no tensor 'g'"),
        (changed(g=torch.zeros(R, S + 1, D)), {}, r"'g' has 5 of axis step, and the forward tensor has 4"),
        (changed(h=torch.zeros(S, R)), {}, r"'h' has shape \[4, 6\], and forward.axes names 3 axes"),
        (changed(tokens=torch.zeros(S, R)), {}, r"'tokens' has dtype torch.float32"),
        (changed(h=torch.zeros(S, R, D, dtype=torch.int32)), {}, r"'h' has dtype torch.int32"),
        (changed(h=torch.full((S, R, D), float("nan"))), {}, r"'h' step 0: .*"),
        (changed(doc=torch.tensor([0, 1, 1, 9])), {"document_ids": ("a", "b")}, r"'doc' names 10 documents"),
        (changed(member=torch.ones(7)), {}, r"'member' has shape \[7\], expected \[3\]"),
        (changed(mask=torch.ones(S, R + 2)), {}, r"'mask' has 8 of axis row"),
        (changed(tokens=torch.full((S, R), 1 << 40)), {}, "beyond 32 bits"),
        (changed(tokens=torch.full((S, R), 1 << 20)), {}, r"'tokens' step 0 has numbers from 1048576 to 1048576"),
        (changed(doc=torch.tensor([0, 1, 2, 2**31 - 1])), {}, r"'doc' names document 2147483647"),
        (changed(h=torch.zeros(S, R, 0)), {}, "at least one value"),
        (changed(mask=torch.full((S, R), 2)), {}, r"'mask' step 0 has numbers from 2 to 2"),
        (changed(doc=torch.tensor([0, 1, 2, -5])), {}, r"'doc' step 3 has numbers from -5 to -5"),
        (without_steps(), {}, "has no step"),
    ],
)
def test_what_does_not_fit_is_named_with_key_and_shape_and_leaves_nothing(
    values: dict[str, torch.Tensor], mapping: dict[str, Any], named: str, keys: Path, tmp_path: Path
) -> None:
    source = save_npz(tmp_path / "source", values)
    with pytest.raises(SettingsError, match=named) as error:
        import_tensors(
            source, dataclasses.replace(MAPPING, **mapping), tmp_path / "bundle", audit_key=keys / "audit.pub"
        )
    assert "source.npz" in str(error.value)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("ending", [".safetensors", ".npz", ".pt"])
@pytest.mark.parametrize("content", [b"", b"no tensors at all", b"PK\x03\x04 cut off"])
def test_a_file_that_is_not_what_its_ending_says_is_refused(
    ending: str, content: bytes, keys: Path, tmp_path: Path
) -> None:
    source = tmp_path / f"source{ending}"
    source.write_bytes(content)
    with pytest.raises(SettingsError, match="cannot be read as"):
        import_tensors(source, MAPPING, tmp_path / "bundle", audit_key=keys / "audit.pub")
    assert not (tmp_path / "bundle").exists()


def test_truncated_sources_pickles_and_other_endings_are_refused(keys: Path, tmp_path: Path) -> None:
    whole = save_safetensors(tmp_path / "whole", tensors())
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-20])
    np.savez(tmp_path / "objects.npz", h=np.array([object()], dtype=object))
    np.savez(tmp_path / "texts.npz", **{name: value.numpy() for name, value in tensors().items()} | {"doc": ["a"] * S})
    torch.save({"h": Path("x")}, tmp_path / "pickle.pt")
    (tmp_path / "x.csv").write_text("1,2")
    for name in ("cut.safetensors", "objects.npz", "texts.npz", "pickle.pt", "x.csv", "missing.npz"):
        with pytest.raises(SettingsError):
            import_tensors(tmp_path / name, MAPPING, tmp_path / "bundle", audit_key=keys / "audit.pub")


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.zeros(3, 1, dtype=torch.int64), torch.ones(1), (S, R, D), check_invariants=False
    )


def test_tensors_without_plain_values_are_left_out_and_named(keys: Path, tmp_path: Path) -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    torch.save(endless, tmp_path / "endless.pt")
    for name, tensor in (("sparse", sparse()), ("meta", torch.empty(S, R, D, device="meta"))):
        torch.save(tensors() | {"h": tensor}, tmp_path / f"{name}.pt")
    for name, named in (
        ("endless", "nested without an end"),
        ("sparse", "has no tensor 'h'"),
        ("meta", "has no tensor 'h'"),
    ):
        with pytest.raises(SettingsError, match=named):
            import_tensors(tmp_path / f"{name}.pt", MAPPING, tmp_path / "bundle", audit_key=keys / "audit.pub")


def test_members_of_an_archive_that_are_no_arrays_are_refused(keys: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "long.npz", h=np.zeros((S, R, D), np.longdouble))
    plain = io.BytesIO()
    np.save(plain, np.zeros((1, 1), np.float32))
    for name, kind in (("boolean", zipfile.ZIP_STORED), ("packed", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", kind) as archive:
            archive.writestr("h.npy", plain.getvalue().replace(b"(1, 1)", b"(True,)"))
    np.savez_compressed(tmp_path / "broken.npz", h=np.random.default_rng(0).normal(size=(S, R, D)))
    content = bytearray((tmp_path / "broken.npz").read_bytes())
    content[60:120] = bytes(60)
    (tmp_path / "broken.npz").write_bytes(content)
    for name in ("long", "boolean", "packed", "broken"):
        with pytest.raises(SettingsError, match=r"cannot be read as \.npz: member h: "):
            import_tensors(tmp_path / f"{name}.npz", MAPPING, tmp_path / "bundle", audit_key=keys / "audit.pub")


def test_a_folder_that_is_not_empty_is_left_as_it_is(keys: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(BundleError, match="not empty"):
        import_tensors(save_npz(tmp_path / "s", tensors()), MAPPING, out, audit_key=keys / "audit.pub")
    assert (out / "mine").exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("forward = 1", "forward"),
        ("[forward]\ntensor = 'h'\naxes = ['row', 'depth']", "axes"),
        ("[forward]\ntensor = 'h'\naxes = ['row', 'depth']", "see docs/importing.md"),
        ("[forward]\ntensor = 'h'\naxes = ['row', 'row', 'width']", "name every dimension once"),
        ("[forward]\ntensor = 'h'\naxes = ['step', 'width']", "row and width are needed"),
        ("[forward]\nkey = 'h'", "unknown key forward.key"),
        ("stack = 'other'", "stack"),
        ("", "forward.tensor is missing"),
        ("[forward]\ntensor = 'h'\naxes = ['row', 'width']", "document.tensor is missing"),
        ("[document]\naxes = ['step']\n[forward]\ntensor = 'h'\naxes = ['row', 'width']", "document.tensor"),
        ("[", "not TOML"),
        ("stack = " + "[" * 5000, "not TOML"),
        ("stack = 1" + "0" * 5000, "not TOML"),
    ],
)
def test_a_wrong_mapping_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "mapping.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as error:
        load_mapping(file)
    assert named in str(error.value)
