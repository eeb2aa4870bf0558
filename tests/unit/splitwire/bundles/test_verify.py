"""Verification must find every way in which a bundle is not what its recorder closed, and say what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from splitwire.bundles import BundleWriter, verify_bundle
from splitwire.errors import BundleError, PkiError
from splitwire.sealing import write_audit_keys
from splitwire.settings import canonical_json

OpenWriter = Callable[..., BundleWriter]


@pytest.fixture
def bundle(open_writer: OpenWriter, wire: Any) -> Path:
    with open_writer() as writer:
        for record in wire.frame(torch.randn(2, 8, 8)):
            writer.write(record)
        (writer.folder / "truth.sealed").write_bytes(b"sealed")
    return writer.folder


def problem(folder: Path, trust: Path) -> str:
    report = verify_bundle(folder, trust)
    assert not report.is_good
    return "\n".join(report.problems)


def change_byte(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_an_untouched_bundle_of_a_pinned_signer_has_no_problem(bundle: Path, keys: Path) -> None:
    report = verify_bundle(bundle, keys / "trust.json")
    assert report.is_good
    assert (report.is_complete, report.is_signed, report.signer, report.num_dropped) == (True, True, "tln-recorder", 0)
    assert report.counts["FORWARD"].messages > 1
    assert report.notes == []


def test_without_a_trust_file_the_signer_is_not_named(bundle: Path) -> None:
    report = verify_bundle(bundle)
    assert report.is_good
    assert report.is_signed
    assert report.signer == ""
    assert "--trust" in report.notes[0]


def test_a_signer_that_is_not_pinned_is_a_problem(bundle: Path, tmp_path: Path) -> None:
    trust = write_audit_keys(tmp_path / "other")
    assert "a key that the trust file does not list" in problem(bundle, trust)


def test_an_unsigned_bundle_is_a_problem_once_signers_are_pinned(open_writer: OpenWriter, keys: Path) -> None:
    with open_writer("unsigned", signer=None) as writer:
        pass
    assert "not signed" in problem(writer.folder, keys / "trust.json")
    report = verify_bundle(writer.folder)
    assert report.is_good
    assert "not signed" in report.notes[0]


def test_taking_the_signature_away_does_not_help(bundle: Path, keys: Path) -> None:
    (bundle / "manifest.sig").unlink()
    assert "not signed" in problem(bundle, keys / "trust.json")


def test_signing_a_changed_manifest_with_another_key_does_not_help(
    bundle: Path, keys: Path, open_writer: OpenWriter
) -> None:
    with open_writer("own", signer="tap-recorder") as writer:
        pass
    shutil.copy(writer.folder / "manifest.sig", bundle / "manifest.sig")
    assert "does not fit manifest.json" in problem(bundle, keys / "trust.json")


@pytest.mark.parametrize("name", ["wire.mcap", "truth.sealed"])
def test_a_changed_file_is_named(bundle: Path, keys: Path, name: str) -> None:
    change_byte(bundle / name, -3)
    assert f"{name} was changed" in problem(bundle, keys / "trust.json")


@pytest.mark.parametrize("place", [-3, 200, 2000])
def test_a_changed_file_is_told_once(bundle: Path, keys: Path, place: int) -> None:
    """What no longer fits in it follows; the checksum of a chunk is no second problem."""
    change_byte(bundle / "wire.mcap", place)
    (told,) = verify_bundle(bundle, keys / "trust.json").problems
    assert told.startswith("wire.mcap was changed")
    (bundle / "wire.mcap").unlink()
    (told,) = verify_bundle(bundle, keys / "trust.json").problems
    assert told.startswith("wire.mcap is missing")


@pytest.mark.parametrize("name", ["wire.mcap", "truth.sealed"])
def test_a_missing_file_is_named(bundle: Path, keys: Path, name: str) -> None:
    (bundle / name).unlink()
    assert f"{name} is missing" in problem(bundle, keys / "trust.json")


def test_a_file_that_was_added_is_named(bundle: Path, keys: Path) -> None:
    (bundle / "extra").mkdir()
    (bundle / "extra" / "x.bin").write_bytes(b"x")
    assert "extra/x.bin is not in the manifest" in problem(bundle, keys / "trust.json")


def test_a_cut_off_file_is_changed(bundle: Path, keys: Path) -> None:
    (bundle / "wire.mcap").write_bytes((bundle / "wire.mcap").read_bytes()[:-100])
    assert "wire.mcap was changed" in problem(bundle, keys / "trust.json")


def test_a_changed_manifest_breaks_its_signature(bundle: Path, keys: Path) -> None:
    tree = json.loads((bundle / "manifest.json").read_text())
    tree["settings"]["frame"]["rows"] = 5
    (bundle / "manifest.json").write_bytes(canonical_json(tree))
    told = problem(bundle, keys / "trust.json")
    assert "manifest.sig does not fit manifest.json" in told
    assert "settings_hash does not fit" in told
    assert "the settings in wire.mcap differ" in told


def test_hiding_drops_breaks_the_signature(open_writer: OpenWriter, keys: Path) -> None:
    writer = open_writer()
    writer.close(num_dropped=3)
    report = verify_bundle(writer.folder, keys / "trust.json")
    assert report.num_dropped == 3
    assert "dropped 3 messages" in report.problems[0]
    tree = json.loads((writer.folder / "manifest.json").read_text())
    (writer.folder / "manifest.json").write_bytes(canonical_json({**tree, "num_dropped": 0}))
    assert "does not fit manifest.json" in problem(writer.folder, keys / "trust.json")


def test_counts_that_do_not_fit_the_wire_are_found(bundle: Path) -> None:
    tree = json.loads((bundle / "manifest.json").read_text())
    tree["counts"]["FORWARD"]["messages"] += 1
    (bundle / "manifest.json").write_bytes(canonical_json(tree))
    (bundle / "manifest.sig").unlink()
    assert any("counts of wire.mcap differ" in line for line in verify_bundle(bundle).problems)


def test_a_bundle_without_manifest_is_incomplete(bundle: Path, keys: Path) -> None:
    (bundle / "manifest.json").unlink()
    report = verify_bundle(bundle, keys / "trust.json")
    assert not report.is_complete
    assert not report.is_signed
    assert "manifest.json is missing" in report.problems[0]
    assert report.counts["FORWARD"].messages > 1


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"null", b"[" * 100_000])
def test_a_garbled_manifest_or_signature_is_a_problem_not_a_crash(
    bundle: Path, keys: Path, name: str, content: bytes
) -> None:
    (bundle / name).write_bytes(content)
    assert f"{name} is not a" in problem(bundle, keys / "trust.json")


def test_a_folder_that_is_no_bundle_has_problems(tmp_path: Path) -> None:
    assert not verify_bundle(tmp_path).is_good


def test_a_path_without_a_folder_is_one_problem(tmp_path: Path) -> None:
    """Not that a recorder was killed, which is what a missing manifest means."""
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "nowhere"):
        (problem,) = verify_bundle(path).problems
        assert problem == f"{path} is no folder. Give the folder of a bundle"


def test_a_trust_file_that_is_none_is_refused(bundle: Path, tmp_path: Path) -> None:
    for content in ("{}", "[" * 100_000):
        (tmp_path / "trust.json").write_text(content)
        with pytest.raises(PkiError, match="not a trust file"):
            verify_bundle(bundle, tmp_path / "trust.json")


def test_every_problem_ends_in_a_remedy(bundle: Path, keys: Path) -> None:
    change_byte(bundle / "truth.sealed", 0)
    for line in verify_bundle(bundle, keys / "trust.json").problems:
        assert ". " in line, line


def test_bundle_errors_have_the_exit_code_of_a_bundle() -> None:
    assert BundleError("x").exit_code == 4
