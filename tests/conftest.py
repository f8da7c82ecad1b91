"""What all tests share: the `gpu` marker skips itself, `full` is left out, workers share the tests well."""

import ctypes
import gc
import os
import sys

import pytest

# PyTorch's threads spin for a while after each of its small operations, on the cores of the other workers. Before
# PyTorch is imported, and for child processes too: a third of what tests against autograd take is left.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests compare persistent kernels themselves, and count what calls ask of the driver; those of the self-check set it.
os.environ.setdefault("NUMBARNN_SELF_CHECK", "0")

import emulator
import idle_gpu

if emulator.is_wanted():
    emulator.install()
if idle_gpu.is_wanted():
    idle_gpu.install()

from numbarnn import engines
from numbarnn.cuda import compiler

# Compiling makes a million objects at a time that live on: Python looks for garbage among them less often, and among
# those of earlier modules no more. That is a tenth of the time of a compiler's test.
gc.set_threshold(50_000, 20, 20)


# glibc keeps what is freed for later: after ten persistent kernels were compiled, 90 of 480 MB.
malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@pytest.fixture(scope="module", autouse=True)
def what_is_left_stays():
    yield
    gc.collect()
    gc.freeze()
    if malloc_trim is not None:
        malloc_trim(0)


@pytest.fixture(scope="module", autouse=True)
def torchdynamo_begins_anew():
    """It compiles a function for eight kinds of modules, then no more: tests do not count those of other files."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


def pytest_collection_modifyitems(config, items):
    problem = engines.why_not("cuda")
    emulated = emulator.is_wanted()
    for item in items:
        if item.get_closest_marker("gpu") and problem:
            item.add_marker(pytest.mark.skip(reason=problem))
        elif item.get_closest_marker("real_gpu") and emulated:
            item.add_marker(pytest.mark.skip(reason="the emulated GPU cannot do that"))
    everything = "full" in config.option.markexpr  # whoever names it says what of it; -m gpu does not mean it

    def is_chosen(item):
        of_sample = not emulated or emulator.is_in_sample(item.nodeid)
        return of_sample and (everything or not item.get_closest_marker("full"))

    config.hook.pytest_deselected(items=[item for item in items if not is_chosen(item)])
    items[:] = sorted(filter(is_chosen, items), key=lambda item: not is_long(item.nodeid))


# ----------------------------------------------------------------------------------------------------- several workers
# Tests that start processes of their own, or take long: first, so that no worker waits for them at the end.
LONG = ("test_emulated.py", "test_conformance.py", "test_notebooks.py", "test_kernels.py")
ALONE = LONG[:1]  # what one of its tests compiles is nothing to the next one


def is_long(nodeid):
    return nodeid.partition("::")[0].endswith(LONG)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadfile` files go to workers whole and in order, but for those of child processes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return nodeid if nodeid.partition("::")[0].endswith(ALONE) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def toolchain_installed():
    """The CUDA compiler. It is in the `test` extra: in CI it must be there."""
    try:
        compiler.toolchain()
    except RuntimeError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must compile the kernels: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def toolchain(toolchain_installed, tmp_path_factory):
    """The CUDA compiler, with a cache of the module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path_factory.mktemp("cubins")))
        patch.setattr(compiler, "_compiled", {})
        yield


@pytest.fixture
def refused(capsys):
    """A function that runs a command with wrong arguments: what it says to them."""

    from numbarnn import cli

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            cli.main([*map(str, arguments)])
        assert stop.value.code == 2
        return capsys.readouterr().err

    return run


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


@pytest.fixture
def cpu_on_threads(monkeypatch):
    """The CPU engine, with small work shared and its weights packed too; its number of threads is put back
    afterwards."""
    from numbarnn.engines.cpu import engine as cpu

    for least in ("LEAST_WORK", "LEAST_CALL", "LEAST_STEP", "LEAST_STEP_OF_STAGES"):
        monkeypatch.setattr(cpu, least, 0)
    monkeypatch.setattr(cpu, "PACKED_FROM", cpu.PACKED_BACK_FROM)
    engine = engines.get("cpu")
    before = engine.num_threads
    yield engine
    engine.set_num_threads(before)
