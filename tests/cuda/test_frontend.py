"""The quicker way through Numba writes the same PTX, for our functions alone, and leaves Numba as it was."""

import inspect
import re
from contextlib import nullcontext

import pytest
from numba import cuda, float32, types
from numba.cuda.dispatcher import CUDADispatcher

from numbarnn.bench import planned
from numbarnn.cuda import compiler, frontend, patches
from numbarnn.kernels import catalog

pytestmark = [
    pytest.mark.usefixtures("toolchain_installed"),
    pytest.mark.skipif(frontend.TargetConfig is None, reason="an older numba-cuda, which is left alone"),
]
NAMES = {  # of kernels -> where they are listed
    "lstm_pointwise_backward_masked": catalog.shipped_kernels,
    "add_column_sums": catalog.shipped_kernels,
    "rnn_tanh_persistent_forward_training": lambda: planned.persistent_kernels((9, 0)),
}


def forget(function):
    """Let all device functions that a function calls be compiled anew."""
    names = inspect.getclosurevars(function)
    for value in (*names.nonlocals.values(), *names.globals.values()):
        if isinstance(value, CUDADispatcher) and value.overloads:
            value.overloads.clear()
            forget(value.py_func)


def lines(text):
    """Those of a PTX text, with names by the order in which they appear: Numba numbers its functions. Without the
    addresses for functions' environments, which nothing reads: what was compiled before decides how many there are."""
    found = {}
    text = re.sub(r"//.*|\.common \.global \.align 8 \.u64 _ZN08NumbaEnv\w+;\n", "", text)
    return re.sub(
        r"_Z\w+|_cudapy_smem_\d+", lambda name: found.setdefault(name[0], f"name{len(found)}"), text
    ).splitlines()


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.full if "persistent" in name else [], id=name) for name in NAMES
])  # fmt: skip
def test_the_same_code(monkeypatch, name):
    shipped, texts = next(one for one in NAMES[name]() if one.kernel.name == name), []
    for context in (frontend.quicker, nullcontext):
        monkeypatch.setattr(frontend, "quicker", context)
        forget(shipped.function)
        compiler._lowered.clear()
        texts.append(lines(shipped.ptx((9, 0))))
    assert texts[0] == texts[1] and len(texts[0]) > 100


def plain(x):
    return x + 1


def passes(function):
    """The names of the passes that Numba takes for a function."""
    found = []
    define = frontend.CUDACompiler.define_pipelines

    def record(compiler):
        (manager,) = define(compiler)
        found.append({one.__name__ for one, _ in manager.passes})
        return [manager]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frontend.CUDACompiler, "define_pipelines", record)
        cuda.compile(function, (float32,), device=True, abi="numba", cc=(9, 0))
    return found[0]


def test_functions_of_others_and_those_with_closures_take_all_passes(monkeypatch):
    def with_closure(x):
        def inner(y):
            return y + x

        return inner(x)

    every = passes(plain)
    assert every >= frontend._NOT_NEEDED, "a numba-cuda that names them otherwise"
    with frontend.quicker():
        assert passes(plain) == every
        monkeypatch.setattr(plain, "__module__", "numbarnn.somewhere")
        monkeypatch.setattr(with_closure, "__module__", "numbarnn.somewhere")
        assert passes(plain) == every - frontend._NOT_NEEDED and passes(with_closure) == every


def test_options_are_equal_as_before():
    from numba.cuda.flags import CUDAFlags

    def options(**given):
        found = CUDAFlags()
        for name, value in given.items():
            setattr(found, name, value)
        return found

    usual = CUDAFlags.options["no_compile"].default
    made = [options(), options(no_compile=usual), options(no_compile=not usual), options(fastmath=True)]
    before = [[one == other for other in made] for one in made]
    assert before[0] == [True, True, False, False]
    with frontend.quicker():
        assert [[one == other for other in made] for one in made] == before
        assert hash(made[0]) == hash(made[1]) and made[0] != "options"


def test_signatures_are_found_once_and_numba_is_left_as_it_was(monkeypatch):
    import operator

    from numba.cuda.descriptor import cuda_target

    asked, find = [], frontend.BaseFunction.get_call_type

    def record(operation, context, arguments, named):
        asked.append(arguments)
        return find(operation, context, arguments, named)

    monkeypatch.setattr(frontend.BaseFunction, "get_call_type", record)
    monkeypatch.setattr(frontend, "_signatures", {})
    context, add = cuda_target.typing_context, operator.add
    context.refresh()
    numbers, array = (types.float32, types.float32), (types.float32[::1], types.int64)
    with pytest.raises(KeyError), frontend.quicker():
        assert {context.resolve_function_type(add, numbers, {}) for _ in range(3)} == {types.float32(*numbers)}
        assert asked == [numbers]
        for _ in range(2):
            context.resolve_function_type(add, array, {})
        assert asked.count(array) == 2
        raise KeyError
    assert frontend.BaseFunction.get_call_type is record
    assert "__hash__" in vars(frontend.TargetConfig) and hash(frontend.TargetConfig()) is not None


def test_code_that_kernels_share_is_kept_as_text_which_numba_takes_too():
    shared = cuda.jit(device=True)(plain)

    def store(out):
        out[0] = shared(out[0])

    def add(out):
        out[0] += shared(out[1])

    def code(kernel):
        with patches.device_for_numba((9, 0)):
            return lines(cuda.compile(kernel, (float32[::1],), device=False, abi="numba", output="ptx", cc=(9, 0))[0])

    expected = code(store), code(add)
    shared.overloads.clear()
    with frontend.quicker():
        found = code(store), code(add)
    (compiled,) = shared.overloads.values()
    assert isinstance(compiled.library._module, frontend._Written) and "linkonce_odr" in str(compiled.library._module)
    assert found == expected == (code(store), code(add))
