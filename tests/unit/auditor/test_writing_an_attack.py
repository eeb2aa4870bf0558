"""The example of docs/writing-an-attack.md is an attack: it finds a leak, stays silent without one, and is short."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from auditor import attacks
from auditor.attacks import ATTACKS, Attack, register_installed
from auditor.audit import run_audit
from auditor.plan import Plan, StatisticsSettings
from splitwire.errors import SettingsError

PAGE = (Path(__file__).parents[3] / "docs" / "writing-an-attack.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def median_norm() -> Any:
    names: dict[str, Any] = {"__name__": "example"}
    exec(EXAMPLE, names)  # noqa: S102 - the text of our own page
    return names["MedianNorm"]


def entry_point(name: str) -> Any:
    return SimpleNamespace(name=name, load=median_norm)


def test_the_example_is_under_forty_lines() -> None:
    assert len(EXAMPLE.splitlines()) < 40


def test_the_example_finds_a_leak_and_not_where_there_is_none(
    make_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ATTACKS, "median_norm", median_norm()())
    plan = Plan(name="x", attacks=("median_norm",), statistics=StatisticsSettings(repetitions=200))
    states = {}
    for gradient in ("open", "hidden"):
        run = make_run(gradient=gradient, frames=200)
        report = run_audit([run.bundle], key=run.key, plan=plan)
        for result in report["results"]:
            assert all(control["found"] for control in result["controls"])
            expected = {"known_plaintext_ratio": 0.5, "public_weights": False, "auxiliary_text": False}
            assert result["assumptions"] == expected
        states[gradient] = {result["family"]: result["checks"][0]["state"] for result in report["results"]}
    assert states["open"]["gradient_only"] == "fail"
    assert "fail" not in states["hidden"].values()


def test_an_installed_package_adds_its_attacks_and_no_name_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Attack] = {}
    monkeypatch.setattr(attacks, "entry_points", lambda **_: [entry_point("median_norm")])
    register_installed(found)
    assert found["median_norm"].question == "partition"
    with pytest.raises(SettingsError, match="two attacks are called median_norm"):
        register_installed(found)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_says_what_it_assumes_and_where_it_comes_from(name: str) -> None:
    attack = ATTACKS[name]
    assert attack.families
    assert attack.knowledge
    assert attack.paper
    no_answers = "train" not in attack.knowledge
    assert attack.assumes.known_plaintext != no_answers
