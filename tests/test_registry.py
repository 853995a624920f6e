import fractions
from importlib.metadata import EntryPoint

import pytest

import gossamer as gs
from gossamer import registry
from gossamer.registry import Registry


def test_names_are_forgiving() -> None:
    assert registry.methods.get("CHOCO-SGD") is gs.CHOCOSGD
    assert registry.methods.name_of(gs.CHOCOSGD) == "choco_sgd"
    assert registry.compressors.name_of(gs.gsgd(5)) == "gsgd"


def test_unknown_name_lists_the_choices() -> None:
    with pytest.raises(gs.InputError, match=r"Unknown method 'bear'; valid methods: .*'beer', .*Did you mean 'beer'"):
        registry.methods.get("bear")


@pytest.mark.parametrize(
    ("description", "made"),
    [
        ("gsgd:5", gs.gsgd(5)),
        ("top_k:10", gs.top_k(10)),
        ({"name": "top_k", "fraction": 0.1}, gs.top_k(fraction=0.1)),
        ("identity", gs.identity()),
        (gs.gsgd(3), gs.gsgd(3)),
    ],
)
def test_build(description: object, made: gs.Compressor) -> None:
    assert registry.compressors.build(description) == made


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("gsgd", "Compressor 'gsgd' needs the setting `bits`"),
        ("gsgd:5,6", "too many positional arguments"),
        ("gsgd:five", "`bits` must be an integer from 2 to 31, got 'five'"),
        (
            {"name": "gsgd", "bit": 5},
            "Compressor 'gsgd' has no setting 'bit'; valid settings: 'bits'. Did you mean 'bits'",
        ),
        ({"bits": 5}, "needs a `name`"),
        ({"name": 5}, "Unknown compressor 5"),
    ],
)
def test_bad_descriptions(description: object, said: str) -> None:
    with pytest.raises(gs.InputError, match=said):
        registry.compressors.build(description)


def test_two_things_cannot_share_a_name() -> None:
    mine = Registry("thing")
    mine.register("a")(int)
    mine.register("A")(int)
    with pytest.raises(gs.InputError, match="already registered"):
        mine.register("a")(float)


def test_a_broken_package_takes_nobody_down(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    point = EntryPoint("broken", "no.such.module:thing", "some.group")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    mine = Registry("thing", "some.group")
    mine.register("whole")(int)
    assert mine.names() == ["whole"]
    assert "'broken'" in caplog.text
    assert "cannot be loaded" in caplog.text


def test_entry_points_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("third-party", "fractions:Fraction", "some.group")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "some.group" else [])
    mine = Registry("thing", "some.group")
    assert mine.name_of(fractions.Fraction) == "third_party"
    assert mine.names() == ["third_party"]
    assert mine.get("third_party")(1, 2) == 0.5
