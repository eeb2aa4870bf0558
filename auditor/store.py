"""Finished parts of an audit on disk, so that one that was ended goes on where it stopped. A part is (attack, family).

The stamp is written before anything is scored: hash of the plan, digests of bundles and truth, software versions. Parts
are taken only under the very same stamp; anything else is refused with what differs. Every part is written whole
or not at all, and a part that was taken reads the same as one that was just made. The folder goes with the result.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic

from auditor.results import MatchedControl, NotMeasured, Result, plain
from splitwire.errors import RecordingError, SettingsError
from splitwire.private_files import replace_file

PARTS_FOLDER = "parts"
_STAMP = "stamp.json"
_SCHEMA = "splitwire.audit-parts/1"
_KINDS: dict[str, type[Any]] = {"result": Result, "not_measured": NotMeasured, "control": MatchedControl}
Part = Result | NotMeasured


class Store:
    """The parts below one folder, each a dataclass of `kinds`. `folder` None keeps nothing."""

    def __init__(
        self, folder: Path | None = None, *, kinds: Mapping[str, type[Any]] = _KINDS, schema: str = _SCHEMA
    ) -> None:
        self._folder, self._kinds, self._schema = folder, kinds, schema

    def begin(self, stamp: Mapping[str, Any]) -> None:
        """Writes the stamp, or compares it with the one that is there. SettingsError when they differ."""
        if self._folder is None:
            return
        wanted = {"schema": self._schema, **stamp}
        found = _read(self._folder / _STAMP)
        if found is None:
            _write(self._folder / _STAMP, wanted)
        elif found != wanted:
            differing = [name for name in wanted | found if wanted.get(name) != found.get(name)]
            raise SettingsError(
                f"{self._folder} holds parts of another audit: it differs in {', '.join(differing)}",
                remedy="audit with the plan, bundles, truth and software it was begun with, or give a new --out",
            )

    def get(self, name: str) -> tuple[Any, float] | None:
        """A finished part and the seconds that it took; None when there is none."""
        tree = None if self._folder is None else _read(self._folder / _file(name))
        return None if tree is None else _parse(tree, name, self._kinds)

    def put(self, name: str, part: Any, seconds: float) -> Any:
        """Keeps a part, and gives it back as a reader of the store would get it."""
        kind = next(kind for kind, cls in self._kinds.items() if isinstance(part, cls))
        tree = {"kind": kind, "seconds": seconds, "value": plain(part)}
        if self._folder is not None:
            _write(self._folder / _file(name), tree)
        return _parse(json.loads(_text(tree)), name, self._kinds)[0]


def count_parts(out: Path) -> int:
    """Finished parts of an audit that was not ended there."""
    return sum(1 for file in (out / PARTS_FOLDER).glob("*.json") if file.name != _STAMP)


def has_parts(out: Path) -> bool:
    """Whether an audit was begun there and not finished."""
    return (out / PARTS_FOLDER / _STAMP).exists()


def remove_parts(out: Path) -> None:
    """Removes what only an unfinished audit needs."""
    shutil.rmtree(out / PARTS_FOLDER, ignore_errors=True)


def _write(file: Path, tree: Mapping[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, _text(tree).encode())
    except OSError as error:
        raise RecordingError(
            f"a finished part cannot be kept in {file.parent}: {error.strerror}",
            remedy="free space, or give another folder with --out",
        ) from None


def _file(name: str) -> str:
    return f"{name.replace('/', '.')}.json"


def _text(tree: Mapping[str, Any]) -> str:
    return json.dumps(tree, allow_nan=False, indent=1) + "\n"


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        return dict(json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        raise _damaged(file.name) from None


def _parse(tree: Mapping[str, Any], name: str, kinds: Mapping[str, type[Any]]) -> tuple[Any, float]:
    try:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kinds[tree["kind"]])
        return adapter.validate_python(tree["value"]), float(tree["seconds"])
    except (KeyError, TypeError, ValueError):
        raise _damaged(name) from None


def _damaged(name: str) -> SettingsError:
    return SettingsError(f"the finished part {name} was changed or damaged", remedy="give a new folder with --out")
