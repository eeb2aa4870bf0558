"""Prints what pyproject.toml and the extras named after it depend on, one a line.

An image installs that before the code, which changes daily: `python requirements.py pyproject.toml http`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    extras = [line for name in sys.argv[2:] for line in project["optional-dependencies"][name]]
    sys.stdout.writelines(f"{line}\n" for line in [*project["dependencies"], *extras])
