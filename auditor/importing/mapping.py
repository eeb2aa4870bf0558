"""The mapping file of `auditor import`: which tensor of a source is which hop, in which axes, and what is true.

Axes are named: `step` (one frame of the wire), `sequence` (sequences or frames that cross together), `row` (a wire row)
and `width`. A hop needs `row` and `width`. Truth has no `width`; an axis that a truth tensor lacks holds one value for
all, so that one document a step is enough.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from splitwire.errors import SettingsError
from splitwire.settings import build

Axis = Literal["step", "sequence", "row", "width"]
HOP_SECTIONS = ("forward", "returned", "backward", "input_gradient")
TRUTH_SECTIONS = ("real", "token", "label", "document")


@dataclass(frozen=True)
class TensorMapping:
    """One tensor of the source. An empty name maps nothing."""

    tensor: str = ""
    """Its key in the source."""
    axes: tuple[Axis, ...] = ()
    """What its dimensions are, in their order."""


@dataclass(frozen=True)
class Mapping:
    """What a source holds."""

    stack: Literal["gram", "transformer"] = "transformer"
    """gram: real and decoy rows share a frame; transformer: whole sequences of a batch are real or not."""
    mode: Literal["train", "evaluate"] = "train"
    """Which compute mode the frames count as."""
    forward: TensorMapping = field(default_factory=TensorMapping)
    """Rows that the trusted side sent."""
    returned: TensorMapping = field(default_factory=TensorMapping)
    """Rows that came back."""
    backward: TensorMapping = field(default_factory=TensorMapping)
    """Gradient that the trusted side sent for the returned rows."""
    input_gradient: TensorMapping = field(default_factory=TensorMapping)
    """Gradient that came back for the sent rows."""
    real: TensorMapping = field(default_factory=TensorMapping)
    """Which rows are real, bool or 0 and 1; all of them where it is not mapped."""
    token: TensorMapping = field(default_factory=TensorMapping)
    """Token id of a row; -1 where there is none."""
    label: TensorMapping = field(default_factory=TensorMapping)
    """Id of the token after it, which probes predict; -100 where there is none."""
    document: TensorMapping = field(default_factory=TensorMapping)
    """Number of the document, from 0; -1 where there is none."""
    members: str = ""
    """Key of a bool or 0 and 1 tensor [documents]: which documents were trained on. All, where it is empty."""
    document_ids: tuple[str, ...] = ()
    """Ids of the documents by number; document-0, document-1 and so on where it is empty."""


def load_mapping(file: Path) -> Mapping:
    """The mapping in a TOML file; SettingsError for what cannot be meant."""
    mapping = build(Mapping, _read(file), str(file), guide="docs/importing.md")
    for name in (*HOP_SECTIONS, *TRUTH_SECTIONS):
        _check_axes(f"{file}: {name}", getattr(mapping, name), is_hop=name in HOP_SECTIONS)
    if not mapping.forward.tensor:
        raise SettingsError(f"{file}: forward.tensor is missing", remedy="name the tensor of the rows that were sent")
    if not mapping.document.tensor:
        raise SettingsError(
            f"{file}: document.tensor is missing",
            remedy="map a tensor with the number of the document of each step: documents are what an audit splits by",
        )
    return mapping


def _check_axes(where: str, mapped: TensorMapping, *, is_hop: bool) -> None:
    if not mapped.tensor:
        if mapped.axes:
            raise SettingsError(f"{where}.axes is set and {where}.tensor is not", remedy="name the tensor")
        return
    allowed = get_args(Axis) if is_hop else get_args(Axis)[:-1]
    missing = {"row", "width"} - set(mapped.axes) if is_hop else set()
    wrong = [axis for axis in mapped.axes if axis not in allowed or mapped.axes.count(axis) > 1]
    if wrong or missing or not mapped.axes:
        needed = "; row and width are needed" if is_hop else ""
        raise SettingsError(
            f"{where}.axes is {list(mapped.axes)}",
            remedy=f"name every dimension once, of {', '.join(allowed)}{needed}",
        )


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"mapping {file} cannot be read: {error.strerror}", remedy="check the path") from None
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, digits or depth
        raise SettingsError(f"mapping {file} is not TOML: {error}", remedy="correct the line it names") from None
