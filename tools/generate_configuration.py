"""Writes docs/configuration.md from the settings dataclasses; with --check it compares, and fails when they differ.

Keys, types, bounds and defaults come from the dataclasses, meanings from the docstring under each field. So the page
cannot disagree with the programs.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import itertools
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Configuration

Generated from the code by `make docs`; `make lint` fails when it is out of date.

Every program takes its settings from four places; later ones win:

1. the defaults below,
2. a TOML file: `--config FILE`,
3. the environment: `SPLITWIRE_<PROGRAM>__<SECTION>__<KEY>`, upper case, for instance
   `SPLITWIRE_UCN__LIMITS__MAX_SESSIONS=4`,
4. the command line: `--set limits.max_sessions=4`, or an option of its own where a command has one.

An unknown key is an error that names the nearest known one. A value of the wrong type or out of range is an error that
names the key and the value. `--print-settings` shows the effective settings and their hash, which also stands in every
bundle and report that was made with them. A table such as `limits` is a section: `[limits]` in the file.
"""


class Page(NamedTuple):
    """One program's settings: the root dataclass and what is said about it."""

    program: str
    root: str
    text: str


PAGES = (
    Page("ucn", "ucn.settings:UcnSettings", "The untrusted node: `ucn serve`. Environment prefix `SPLITWIRE_UCN__`."),
    Page(
        "tln",
        "tln.settings:TlnSettings",
        "The trusted node: `tln prepare`, `train`, `generate` and `serve`. Environment prefix `SPLITWIRE_TLN__`.",
    ),
    Page("tap", "auditor.tap.settings:TapSettings", "The tap: `auditor tap`. Environment prefix `SPLITWIRE_TAP__`."),
    Page(
        "watch",
        "auditor.watch.settings:WatchSettings",
        "The watch: `auditor watch`. Environment prefix `SPLITWIRE_WATCH__`.",
    ),
    Page(
        "plan",
        "auditor.plan:Plan",
        "The plan of an audit: `auditor audit --plan FILE`. A file only, without environment or `--set`, since what "
        "an audit decides beforehand belongs in one place.",
    ),
)


class Row(NamedTuple):
    """One setting."""

    key: str
    kind: str
    default: str
    meaning: str


def main() -> int:
    """Writes or compares the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    page = render()
    if not check:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        sys.stderr.write("docs/configuration.md differs from the settings: run 'make docs' and commit the result\n")
        return 1
    return 0


def render() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(_program(page) for page in PAGES)])


def _program(page: Page) -> str:
    module, _, name = page.root.partition(":")
    root = getattr(importlib.import_module(module), name)
    lines = [f"## {page.program}", "", page.text]
    for section, cls in sections(root):
        if section:
            lines += ["", f"### {page.program}: [{section}]", "", _summary(cls)]
        rows = list(settings(cls))
        if rows:
            lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"]
            lines += [f"| `{row.key}` | {row.kind} | {row.default} | {row.meaning} |" for row in rows]
    return "\n".join([*lines, ""])


def sections(cls: type, path: str = "") -> Iterator[tuple[str, type]]:
    """The dataclass itself and every one nested in it, with its dotted name."""
    yield path, cls
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        nested = _nested(hints[field.name])
        if nested is not None:
            yield from sections(nested, f"{path}.{field.name}" if path else field.name)


def settings(cls: type) -> Iterator[Row]:
    """The plain settings of one section; sections within it are left to `sections`."""
    hints = typing.get_type_hints(cls, include_extras=True)
    meanings = _field_docstrings(cls)
    for field in dataclasses.fields(cls):
        if _nested(hints[field.name]) is None:
            meaning = meanings.get(field.name, "")
            yield Row(field.name, _kind(hints[field.name]), _default(field), meaning.replace("|", "\\|"))


def _nested(hint: Any) -> type | None:
    options = typing.get_args(hint) or (hint,)
    return next((option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)), None)


def _field_docstrings(cls: type) -> dict[str, str]:
    """The string that follows each annotated field of a class, which Python itself does not keep."""
    body = typing.cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]).body
    found = {}
    for field, following in itertools.pairwise(body):
        match field, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def _summary(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    return f"`{_toml(value)}`" if value is not None and value != Path() else "none"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str | Path):
        return f'"{value}"'
    return str(value)


_KINDS = {int: "integer", float: "number", str: "text", bool: "true or false", Path: "path", type(None): "none"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return ", ".join([_kind(arguments[0]), *_bounds(arguments[1:])])
    if origin is typing.Literal:
        return " or ".join(f"`{_toml(value)}`" for value in arguments)
    if origin in {tuple, list}:
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return "table"
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(_kind(option) for option in arguments if option is not type(None))
    return _KINDS.get(hint, getattr(hint, "__name__", str(hint)))


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    for item in metadata:
        for constraint in getattr(item, "metadata", [item]):
            for attribute, words in _BOUNDS.items():
                if hasattr(constraint, attribute):
                    yield f"{words} {getattr(constraint, attribute)}"


if __name__ == "__main__":
    sys.exit(main())
