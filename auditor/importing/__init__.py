"""Tensors of another split system as an ordinary wire bundle with sealed truth, so that it can be audited.

mapping.py   which tensor is which hop, and where the truth is; a TOML file
tensors.py   safetensors, npz and pt files, read a step at a time
convert.py   checks sizes, then writes bundle and truth
"""

from __future__ import annotations

from auditor.importing.convert import import_tensors
from auditor.importing.mapping import Mapping, load_mapping

__all__ = ["Mapping", "import_tensors", "load_mapping"]
