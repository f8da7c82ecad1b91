"""Spelling of pages, package and tests, American as everywhere: what `codespell` knows to be wrong is not there."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KNOWN = "specialise,writeable,grey,maths,bais,weigths,whis"  # names of modules and arguments, and mistakes on purpose


def test_words_are_spelled_as_americans_do(monkeypatch):
    codespell = pytest.importorskip("codespell_lib")
    monkeypatch.chdir(ROOT)
    dictionaries = "--builtin=clear,rare,en-GB_to_en-US", f"-L={KNOWN}", "--skip=*.json,*.svg,*.npz,*.csv,*.pyc"
    assert codespell.main(*dictionaries, "notebooks", "numbarnn", "tests") == 0
