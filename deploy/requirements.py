"""Prints what pyproject.toml depends on, one a line: an image installs that before the code, which changes daily."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    project = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["project"]
    sys.stdout.writelines(f"{line}\n" for line in project["dependencies"])
