"""The examples in numbarnn/convert.py: each function has one, and they say what happens."""

import doctest

import numpy as np
import pytest

import numbarnn
import weights_helpers
from numbarnn import convert

EXAMPLES = {test.name.split(".")[-1]: test for test in doctest.DocTestFinder().find(convert) if test.examples}
PACKAGES = ("torch", "onnx", "safetensors")  # whose names are in those of the functions that need them


def test_every_function_has_an_example():
    assert set(EXAMPLES) == set(convert.__all__)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # Keras'
@pytest.mark.parametrize("name", convert.__all__)
def test_example(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"numbarnn": numbarnn, "convert": convert, "np": np}
    given |= {package: pytest.importorskip(package) for package in PACKAGES if package in name}
    given |= {"keras": weights_helpers.import_keras()} if "keras" in name else {}
    test = EXAMPLES[name]
    said = []
    test.globs = given
    result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    assert result.attempted and not result.failed, "".join(said)
