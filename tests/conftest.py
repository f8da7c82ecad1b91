"""What all tests share: the `gpu` marker skips itself, and kernels can be run in the simulator."""

import os

import pytest

import emulator

if emulator.is_wanted():
    emulator.install()

from numbarnn import engines
from numbarnn.cuda import compiler


def pytest_collection_modifyitems(config, items):
    problem = engines.why_not("cuda")
    emulated = emulator.is_wanted()
    for item in items:
        if item.get_closest_marker("gpu") and problem:
            item.add_marker(pytest.mark.skip(reason=problem))
        elif item.get_closest_marker("real_gpu") and emulated:
            item.add_marker(pytest.mark.skip(reason="the emulated GPU cannot do that"))
    if emulated:
        left_out = [item for item in items if not emulator.is_in_sample(item.nodeid)]
        items[:] = [item for item in items if emulator.is_in_sample(item.nodeid)]
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def toolchain_installed():
    """The CUDA compiler. It is in the `test` extra: in CI it must be there."""
    try:
        compiler.toolchain()
    except RuntimeError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must compile the kernels: {error}")
        pytest.skip(str(error))


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def cpu_on_threads(monkeypatch):
    """The CPU engine, with small work shared too; its number of threads is put back afterwards."""
    from numbarnn.engines.cpu import engine as cpu

    monkeypatch.setattr(cpu, "SERIAL_WORK", 0)
    monkeypatch.setattr(cpu, "SERIAL_STEP", 0)
    engine = engines.get("cpu")
    before = engine.num_threads
    yield engine
    engine.set_num_threads(before)
