"""Settings of every program: frozen dataclasses, filled from defaults, a file, the environment and the command line.

Later sources win: defaults < file < environment < command line. An unknown key, a wrong type or an unusable value is a
SettingsError that names the key, the value and the remedy. The effective settings have a canonical form and a hash.

Environment: SPLITWIRE_<PROGRAM>__<SECTION>__<KEY>, upper case, for instance SPLITWIRE_UCN__LIMITS__MAX_SESSIONS=4.
Command line: pairs such as ("limits.max_sessions", "4"). Both give text, read as a TOML value, else as a string.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import rfc8785

from splitwire.errors import SettingsError

_Tree = dict[str, Any]
_CANONICAL_INTEGERS = 1 << 53
T = TypeVar("T")


def load_settings(
    cls: type[T],
    *,
    program: str,
    file: Path | None = None,
    base: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Iterable[tuple[str, str]] = (),
) -> T:
    """The effective settings of `program`: a frozen dataclass `cls`, whose nested dataclasses are sections.

    `base` is a TOML file under `file`, such as a preset.
    """
    tree: _Tree = {}
    origins: dict[str, str] = {}
    for layer_file in (base, file):
        if layer_file is not None:
            layer = _read_toml(layer_file)
            check_keys(cls, layer, str(layer_file))
            merge(tree, layer, str(layer_file))
    from_environment = _from_environment(program, os.environ if environment is None else environment)
    for source, pairs in (("environment", from_environment), ("command line", overrides)):
        for key, text in pairs:
            layer = _nest(key, _value(text, _hint_of(cls, key)))
            check_keys(cls, layer, source)
            merge(tree, layer, source)
            origins[key] = source
    return build(cls, tree, str(file or base or "settings"), origins)


def build(
    cls: type[T],
    tree: Mapping[str, Any],
    source: str,
    origins: Mapping[str, str] | None = None,
    *,
    guide: str = "docs/configuration.md",
) -> T:
    """Validates a tree of plain values into `cls`; SettingsError names the first wrong key and the guide to them.

    Keys came from `source`, but for those that `origins` knows better.
    """
    check_keys(cls, tree, source)
    try:
        settings = pydantic.TypeAdapter(cls).validate_python(dict(tree))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(top level)"
        given = "" if first["type"] == "missing" else f", got {first['input']!r}"
        where = _origin(key, source, origins or {})
        raise SettingsError(f"{where}: {key}: {first['msg']}{given}", remedy=f"see {guide}") from None
    for key, value in flatten(to_tree(settings)):
        if not _is_canonical(value):
            where = _origin(key, source, origins or {})
            raise SettingsError(
                f"{where}: {key} is {value!r}", remedy="give a finite number, and an integer below 2**53"
            )
    return settings


def to_tree(settings: Any) -> _Tree:
    """Plain nested values of a settings dataclass; paths become strings."""
    return typing.cast("_Tree", _plain(dataclasses.asdict(settings)))


def canonical_json(tree: Mapping[str, Any]) -> bytes:
    """RFC 8785 form, for hashing and signing."""
    return rfc8785.dumps(typing.cast("Any", dict(tree)))


def settings_hash(settings: Any) -> str:
    """SHA-256 hex of the canonical form of the effective settings."""
    return hashlib.sha256(canonical_json(to_tree(settings))).hexdigest()


def render(settings: Any) -> str:
    """The effective settings as dotted `key = value` lines, and their hash: what --print-settings shows."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in flatten(to_tree(settings))]
    return "\n".join([*lines, f"# settings hash {settings_hash(settings)}"])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted keys and leaf values, in order."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def merge(into: _Tree, layer: Mapping[str, Any], source: str) -> None:
    """Lays one tree over another, section by section."""
    for key, value in layer.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value, source)
        else:
            into[key] = value


def check_keys(cls: type, tree: Mapping[str, Any], source: str, path: str = "") -> None:
    """SettingsError for the first key that `cls` does not have, with the nearest one that it has."""
    hints = typing.get_type_hints(cls)
    known = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    for key, value in tree.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            remedy = f"did you mean {path}{near[0]}?" if near else f"known keys: {', '.join(sorted(known))}"
            raise SettingsError(f"{source}: unknown key {path}{key}", remedy=remedy)
        section = _section(known[key])
        if section is None:
            if isinstance(value, bool) and _is_number(known[key]):
                raise SettingsError(f"{source}: {path}{key} is a number, got {value!r}", remedy="write a number")
            continue
        if not isinstance(value, Mapping):
            raise SettingsError(f"{source}: {path}{key} is a section, got {value!r}", remedy=f"write [{path}{key}]")
        check_keys(section, value, source, f"{path}{key}.")


def _section(hint: Any) -> type | None:
    return next((option for option in _options(hint) if dataclasses.is_dataclass(option)), None)


def _options(hint: Any) -> list[type]:
    """The types that a hint allows; empty for literals and containers."""
    is_union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    options = typing.get_args(hint) if is_union else (hint,)
    return [option for option in options if isinstance(option, type) and not typing.get_args(option)]


def _is_number(hint: Any) -> bool:
    options = _options(hint)
    return bool(options) and set(options) <= {int, float}


def _is_text(hint: Any) -> bool:
    options = _options(hint)
    return bool(options) and set(options) <= {str, Path, type(None)}


def _is_canonical(value: Any) -> bool:
    """Whether a leaf has a canonical form: hashes and signatures cover the settings."""
    if isinstance(value, list):
        return all(_is_canonical(item) for item in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) < _CANONICAL_INTEGERS


def _origin(key: str, source: str, origins: Mapping[str, str]) -> str:
    return next((where for known, where in origins.items() if key == known or key.startswith(f"{known}.")), source)


def _hint_of(cls: type, key: str) -> Any:
    """The type hint of a dotted key; None for one that does not exist, of which check_keys tells."""
    section: type | None = cls
    hint: Any = None
    for part in key.split("."):
        hints = {} if section is None else typing.get_type_hints(section)
        if part not in hints:
            return None
        hint = hints[part]
        section = _section(hint)
    return hint


def _read_toml(file: Path) -> _Tree:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {file} cannot be read: {error.strerror}", remedy="check the path") from None
    except UnicodeDecodeError:
        raise SettingsError(f"settings file {file} is not TOML: it is not UTF-8", remedy="give a TOML file") from None
    except RecursionError:
        raise SettingsError(f"settings file {file} is nested too deeply", remedy="see docs/configuration.md") from None
    except ValueError as error:  # a TOMLDecodeError, or an integer with more digits than Python converts
        raise SettingsError(f"settings file {file} is not TOML: {error}", remedy="correct the line it names") from None


def _from_environment(program: str, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    prefix = f"SPLITWIRE_{program.upper()}__"
    return [
        (name.removeprefix(prefix).lower().replace("__", "."), text)
        for name, text in sorted(environment.items())
        if name.startswith(prefix)
    ]


def _value(text: str, hint: Any) -> Any:
    """Text as a TOML value, else as it is; a setting that is text stays so where it looks like a number (--out 7)."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text
    return text if _is_text(hint) and not isinstance(value, str) else value


def _nest(key: str, value: Any) -> _Tree:
    for part in reversed(key.split(".")):
        value = {part: value}
    return typing.cast("_Tree", value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else ('""' if value is None else str(value))
