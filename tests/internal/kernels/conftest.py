"""What tests of compiled kernels share."""

import pytest

from numbarnn.cuda import compiler


@pytest.fixture
def written_ptx(monkeypatch):
    """The PTX texts that are linked during a test."""
    texts, link = [], compiler._link

    def record(text, *arguments):
        texts.append(text)
        return link(text, *arguments)

    monkeypatch.setattr(compiler, "_link", record)
    return texts
