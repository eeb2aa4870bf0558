"""What must hold of the repository itself: documents that are true, contracts that are kept, nothing secret in it."""

from __future__ import annotations

import importlib
import itertools
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import splitwire
from splitwire.settings import load_settings

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PROGRAMS = ("splitwire", "tln", "ucn", "auditor")
DOCUMENTS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
DOCUMENTS += sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS.append(ROOT / "deploy" / "README.md")
TEXT_SUFFIXES = {".md", ".py", ".pyi", ".proto", ".toml", ".yaml", ".yml", ".sh", ".txt", ".json", ".jsonl", ".html"}
SKIPPED = {".git", "build", "dist", "__pycache__", "node_modules"}

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INDENTED = re.compile(r"^ {4,}((?:splitwire|tln|ucn|auditor|make) .*)$", re.MULTILINE)
FENCE = re.compile(r"^ *```(?:sh|bash|console)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^ *```toml\n *# (\w+)\.toml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{20}")
LEFT_OPEN = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
MACHINE_PATH = re.compile(r"(?<![\w.<])/(work|home|root|Users)/\w")


def _files() -> Iterator[Path]:
    """Files that belong to the project: what git tracks, or everything where there is no git."""
    if shutil.which("git") and (ROOT / ".git").exists():
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        yield from (ROOT / name for name in names.splitlines() if (ROOT / name).is_file())
        return
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if path.is_file() and not any(part in SKIPPED or part.startswith(".venv") for part in parts):
            yield path


def _texts() -> Iterator[tuple[str, str]]:
    for path in _files():
        if path.suffix in TEXT_SUFFIXES or path.name in {"Makefile", "Dockerfile", "LICENSE"}:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def _run(*command: str | Path) -> None:
    path = f"{BIN}:/usr/bin:/bin"
    environment = {"PATH": path, "PYTHON": sys.executable, "HOME": str(Path.home())}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _commands(text: str) -> Iterator[str]:
    """Command lines of the shell blocks and indented blocks of a document, without comments; long lines joined."""
    lines = [line for block in FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    lines += [re.split(r" {2,}", line)[0] for line in INDENTED.findall(FENCE.sub("", text))]
    for line in lines:
        command = re.sub(r"(^|\s)#.*$", "", line).removeprefix("$ ").strip()
        yield from (part.strip().rstrip("& ") for part in re.split(r"&&|;|\|", command) if part.strip())


def _documented() -> list[Any]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in DOCUMENTS]


@pytest.mark.parametrize("document", _documented())
def test_links_of_a_document_resolve(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in LINK.findall(FENCE.sub("", text)):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        linked = (document.parent / name).resolve() if name else document
        assert linked.exists(), f"{target} does not exist"
        if anchor:
            assert anchor in _anchors(linked.read_text(encoding="utf-8")), f"{target}: no such heading"


def test_the_readme_links_every_page() -> None:
    linked = {target.partition("#")[0] for target in LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))}
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert pages <= linked


def _anchors(text: str) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(text)}


@pytest.mark.parametrize("document", _documented())
def test_commands_of_a_document_exist_with_their_options(document: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for command in _commands(document.read_text(encoding="utf-8")):
        words = [word for word in command.split() if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        if not words:
            continue
        program = words[0].removeprefix(".venv/bin/")
        if program == "make":
            assert set(words[1:]) <= set(targets), command
        elif program in PROGRAMS:
            _check_command(program, words[1:], command)


def _check_command(program: str, words: list[str], line: str) -> None:
    """Every subcommand named on the line exists and takes every option on it."""
    command: Any = typer.main.get_command(importlib.import_module(f"{program}.cli").app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"{line}: {program} has no command {words[0]}"
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in known | {"--help"}, f"{line}: no option {word}"


def test_settings_files_in_the_readme_are_acceptable(tmp_path: Path) -> None:
    roots = {"ucn": "ucn.settings:UcnSettings", "tln": "tln.settings:TlnSettings"}
    blocks = TOML.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    for program, block in blocks:
        file = tmp_path / f"{program}.toml"
        file.write_text(textwrap.dedent(block), encoding="utf-8")
        module, _, name = roots[program].partition(":")
        settings = load_settings(
            getattr(importlib.import_module(module), name), program=program, file=file, environment={}
        )
        if program == "tln":
            importlib.import_module(module).check_training(settings)
        else:
            importlib.import_module(module).check(settings)
    assert {program for program, _ in blocks} == set(roots)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_command_line_answers_without_loading_torch(program: str) -> None:
    code = f"import sys, {program}.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    _run(sys.executable, "-c", code)


def test_make_lists_every_target_that_the_readme_names() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= named
    for target in named:
        assert f"make {target} " in listed


def test_the_tree_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert tree is not None
    paths, stack = [], []
    for line in tree[1].splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        stack[depth:] = [name.rstrip("/")]
        paths.append("/".join(stack))
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert missing == []
    packages = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(paths)


def test_the_changelog_begins_with_the_current_version() -> None:
    versions = re.findall(r"^## \[?([0-9.]+)\]?", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert versions[0] == splitwire.__version__


def test_the_programs_keep_apart() -> None:
    _run(BIN / "lint-imports")


def test_generated_stubs_are_those_of_the_contract() -> None:
    _run(ROOT / "tools" / "generate_stubs.sh", "--check")


def test_the_configuration_page_is_that_of_the_settings() -> None:
    _run(sys.executable, ROOT / "tools" / "generate_configuration.py", "--check")


def test_every_setting_says_what_it_means() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| (.*) \|$", (ROOT / "docs/configuration.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 20
    assert [name for name, meaning in rows if not meaning] == []


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"], *itertools.chain(*extras)]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    names = {re.split(r"[<>=\[ ]", item)[0].lower().replace("_", "-") for item in wanted}
    assert names - pinned == set()


def test_no_private_key_lies_in_the_tree() -> None:
    names = [path.name for path in _files()]
    assert [name for name in names if name.endswith((".key", ".pem", ".p12", ".pfx"))] == []
    assert [name for name, text in _texts() if PRIVATE_KEY.search(text)] == []


def test_nothing_is_left_open_and_no_machine_is_named() -> None:
    for pattern in (LEFT_OPEN, MACHINE_PATH):
        found = [(name, pattern.search(text)) for name, text in _texts()]
        assert [(name, match[0]) for name, match in found if match] == []


def test_code_is_ascii() -> None:
    code = (".py", ".pyi", ".proto", ".sh", ".toml", ".yaml")
    assert [name for name, text in _texts() if name.endswith(code) and not text.isascii()] == []


def test_foreign_data_is_never_unpickled() -> None:
    pattern = re.compile(r"^\s*(import|from) (pickle|dill|cloudpickle|marshal)\b|\bpickle\.loads?\(", re.MULTILINE)
    assert [name for name, text in _texts() if name.endswith(".py") and pattern.search(text)] == []
