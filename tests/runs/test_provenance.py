"""The record of a run: its command."""

import sys

import pytest

from anchorlens.runs.provenance import command_line


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("{home}/data/q.jsonl", "~/data/q.jsonl"),
        ("mine={home}/q.jsonl", "mine=~/q.jsonl"),
        ("--out={here}/runs/a", "--out=./runs/a"),
        ("{here}", "."),
        ("{home}", "~"),
        ("{home}-other/q.jsonl", "{home}-other/q.jsonl"),
        ("/data{home}/q.jsonl", "/data{home}/q.jsonl"),
        ("runs/a", "runs/a"),
    ],
)
def test_the_command_names_no_home_folder(given, wanted, tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "home" / "work"
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    given, wanted = (text.format(home=home, here=here) for text in (given, wanted))
    monkeypatch.setattr(
        sys, "argv", [str(home / "bin" / "anchorlens"), "swap", given, "--seed", "1"]
    )
    assert command_line() == f"anchorlens swap {wanted} --seed 1"


@pytest.mark.parametrize("folder", ["HOME", "PWD"])
def test_the_root_as_home_or_current_folder_changes_nothing(folder, monkeypatch):
    monkeypatch.setenv("HOME", "/" if folder == "HOME" else "/nobody")
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", ["anchorlens", "status", "/data/a"])
    assert command_line() == "anchorlens status /data/a"
