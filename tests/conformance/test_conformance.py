"""Registering a component is enough to have it tested."""

import inspect

import pytest

from gossamer import registry
from gossamer.testing import check_compressor, check_method


@pytest.mark.parametrize("name", registry.methods.names())
def test_method(name: str) -> None:
    check_method(registry.methods.get(name))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", registry.compressors.names())
def test_compressor(name: str) -> None:
    check_compressor(registry.compressors.get(name))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [registry.methods, registry.compressors], ids=lambda r: r.kind)
def test_every_component_is_documented(kind: registry.Registry) -> None:
    for name in kind:
        assert inspect.getdoc(kind.get(name)), name
