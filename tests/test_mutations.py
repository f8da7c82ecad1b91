"""The mistakes that tests are known to see (tests/support/mutations.py) can still be made."""

import pytest

from mutations import MUTATIONS, ROOT


@pytest.mark.parametrize("name", MUTATIONS)
def test_its_texts_stand_where_they_are_to_be_changed(name):
    file, old, new, tests = MUTATIONS[name]
    assert (ROOT / file).read_text(encoding="utf-8").count(old) == 1 and new != old, file
    assert all((ROOT / test).exists() for test in tests.split() if test.startswith("tests/"))
