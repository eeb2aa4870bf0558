"""Parameters of an attack as a plan sets them: `[inversion.parameters.NAME]` replaces fields by name.

Refused: an attack that is unknown or has no parameters, a field that it does not have, a value of another type, and one
that the attack itself does not accept.
"""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from typing import Any

import pydantic

from auditor.attacks.base import Attack
from auditor.plan import InversionSettings
from splitwire.errors import SettingsError

_CLASS_ATTRIBUTES = frozenset({"name", "question", "families", "knowledge", "assumes", "paper"})
_LARGEST = 1e9


def configured(attack: Attack, settings: InversionSettings) -> Attack:
    """The attack with the plan's parameters in place of the published ones."""
    values = settings.parameters.get(attack.name)
    return attack if not values else _replaced(attack, values)


def check_parameters(attacks: Mapping[str, Attack], settings: InversionSettings, source: str) -> None:
    """SettingsError for the first parameter that no attack takes."""
    for name in settings.parameters:
        if name not in attacks:
            near = difflib.get_close_matches(name, attacks, 1)
            raise SettingsError(
                f"{source}: inversion.parameters.{name}: there is no such attack",
                remedy=f"did you mean {near[0]}?" if near else "see `auditor compare --help` for the names",
            )
        configured(attacks[name], settings)


def parameters_of(attack: Attack) -> dict[str, Any]:
    """The parameters of an attack with their values; empty when it has none."""
    told: Any = attack
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(told) if dataclasses.is_dataclass(told) else ()
    return {field.name: getattr(attack, field.name) for field in fields if field.name not in _CLASS_ATTRIBUTES}


def _replaced(attack: Attack, values: Mapping[str, Any]) -> Attack:
    known, place = parameters_of(attack), f"inversion.parameters.{attack.name}"
    if not known:
        raise SettingsError(f"{place}: this attack has no parameters", remedy="remove the section")
    hints = typing.get_type_hints(type(attack), include_extras=True)
    converted = {}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(known))}"
            raise SettingsError(f"{place}: there is no parameter {name}", remedy=remedy)
        converted[name] = _converted(value, hints[name], f"{place}.{name}")
    try:
        return typing.cast("Attack", dataclasses.replace(typing.cast("Any", attack), **converted))
    except ValueError as error:
        raise SettingsError(f"{place}: {error}", remedy="see the attack's docstrings") from None


def _converted(value: Any, hint: Any, place: str) -> Any:
    """The value as its field has it. A whole number is a number; nothing else is converted."""
    if isinstance(value, int | float) and not abs(value) <= _LARGEST:
        raise SettingsError(f"{place} is {value!r}", remedy=f"give a number, of at most {_LARGEST:g}")
    is_whole_number = isinstance(value, int) and not isinstance(value, bool)
    try:
        return pydantic.TypeAdapter(hint).validate_python(value, strict=not is_whole_number)
    except (pydantic.ValidationError, pydantic.PydanticSchemaGenerationError):
        told = getattr(hint, "__name__", str(hint))
        raise SettingsError(f"{place} is {value!r}", remedy=f"give a value of type {told}") from None
