"""The package's names are all there, and none is hidden by a module of the same name."""

from __future__ import annotations

from types import ModuleType

import pytest

import splitwire.backbone


@pytest.mark.parametrize("name", splitwire.backbone.__all__)
def test_every_exported_name_resolves_to_no_module(name: str) -> None:
    assert not isinstance(getattr(splitwire.backbone, name), ModuleType)


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        splitwire.backbone.nothing  # noqa: B018 - the access is the test
