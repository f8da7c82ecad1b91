"""What tests of compiled kernels share."""

import pytest

from numbarnn.cuda import compiler


@pytest.fixture(scope="module")
def toolchain(toolchain_installed, tmp_path_factory):
    """The CUDA compiler, with a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path_factory.mktemp("cubins")))
        patch.setattr(compiler, "_compiled", {})
        yield


@pytest.fixture
def written_ptx(monkeypatch):
    """The PTX texts that are linked during a test."""
    texts, link = [], compiler._link

    def record(text, *arguments):
        texts.append(text)
        return link(text, *arguments)

    monkeypatch.setattr(compiler, "_link", record)
    return texts
