"""A user's path is resolved once."""

import pytest

from anchorlens.errors import InputError
from anchorlens.paths import resolve_path


def test_a_path_is_absolute_expanded_and_without_links(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("there")
    wanted = {
        "a": "a",
        "~/a": "home/a",
        "./~/a": "~/a",
        "b/../a": "a",
        "link": "there",
        "link/../a": "a",
        "link/a": "there/a",
        "~nobody-has-this-name/a": "~nobody-has-this-name/a",
    }
    for given, path in wanted.items():
        assert resolve_path(given, "out") == tmp_path / path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "^out=3: must be the path of a run directory"),
        ("", "^out='': must be the path of a run directory"),
        ("a\0b", r"^out='a\\x00b': is no path \(embedded null byte\)"),
        ("\ud800", "^out=.*: is no path"),
        ("loop", "^out='loop': the link .*loop leads to itself"),
        ("loop/a/b", "^out='loop/a/b': the link .*loop leads to itself"),
        ("x" * 300, r"cannot be resolved \(File name too long\)"),
    ],
)
def test_what_is_no_path_is_refused(tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=said) as why:
        resolve_path(given, "out")
    assert why.value.arguments == ("out",)
