"""Numba's part of compiling a kernel in two thirds of its time, to the same code.

A persistent kernel is sixty functions, and with each Numba asks much that is known: whether a function without closures
has closures to inline, what `+` of two numbers returns, whether the options are those of the function before. It also
keeps LLVM's code of each function as Python objects, to write it out again for each kernel that calls it.

This reaches into numba-cuda as 0.30 has it. With one that lacks something of it `quicker` changes nothing, and
compiling takes longer.
"""

from contextlib import contextmanager
from types import CodeType

from numba.core import types

try:
    from numba.core.types.functions import BaseFunction
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.compiler import CUDACompiler
    from numba.cuda.core.compiler_machinery import PassManager
    from numba.cuda.core.targetconfig import TargetConfig
except ImportError:  # an older one, in which these are parts of Numba
    TargetConfig = None

# Passes for what our functions do not have: `with`, closures, calls that Numba inlines, literal_unroll, `raise`,
# expressions of whole arrays.
_NOT_NEEDED = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables",
    "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "NopythonRewrites",
}  # fmt: skip
_PACKAGE = __name__.partition(".")[0]
_NUMBERS = (types.Number, types.Boolean)
_signatures = {}  # (identities of an operation and a typing context, types) -> (signature, both, so that they live on)


@contextmanager
def quicker():
    """Let numba-cuda compile quicker."""
    if TargetConfig is None:
        yield
        return
    instead = {
        (CUDACompiler, "define_pipelines"): _few_passes(CUDACompiler.define_pipelines),
        (BaseFunction, "get_call_type"): _known_signatures(BaseFunction.get_call_type),
        (TargetConfig, "__eq__"): _same_options(TargetConfig.__eq__),
        (TargetConfig, "__hash__"): _hash_of_options,
        (CUDACodeLibrary, "finalize"): _writing_what_is_linked(CUDACodeLibrary.finalize),
    }
    before = {place: vars(place[0])[place[1]] for place in instead}
    try:
        for place, function in instead.items():
            setattr(*place, function)
        yield
    finally:
        for place, function in before.items():
            setattr(*place, function)


def _few_passes(define_pipelines):
    def of_plain_functions(compiler):
        found = define_pipelines(compiler)
        if not _is_plain(compiler.state.func_id.func):
            return found
        return [_without_those_not_needed(whole) for whole in found]

    return of_plain_functions


def _without_those_not_needed(whole):
    few = PassManager(whole.pipeline_name)
    for one, about in whole.passes:
        if one.__name__ not in _NOT_NEEDED:
            few.add_pass(one, about)
    few.finalize()
    return few


def _is_plain(function):
    """Whether it is one of this package, which Numba's own helpers are not, or made by it, and has no closures."""
    ours, code = function.__module__.partition(".")[0] == _PACKAGE, function.__code__
    return ours and "literal_unroll" not in code.co_names and not any(isinstance(c, CodeType) for c in code.co_consts)


def _known_signatures(get_call_type):
    def of_numbers(operation, context, arguments, named):
        if named or not all(isinstance(argument, _NUMBERS) for argument in arguments):
            return get_call_type(operation, context, arguments, named)
        key = id(operation), id(context), arguments
        if key not in _signatures:
            signature = get_call_type(operation, context, arguments, named)
            if operation._impl_keys.get(signature.args) != operation.typing_key:
                return signature  # of a function that is compiled for it, which other options compile anew
            _signatures[key] = signature, operation, context
        return _signatures[key][0]

    return of_numbers


def _same_options(equal):
    def same(options, other):
        if isinstance(other, TargetConfig) and options._values == other._values:
            return True
        return equal(options, other)

    return same


def _hash_of_options(options):
    """Of equal options the same: of the names of those that are not as usual."""
    unusual = (name for name, value in options._values.items() if value != options.options[name].default)
    return hash(frozenset(unusual))


class _Written:
    """LLVM's code of a function that others call, as text: a tenth of the memory, and written once for all kernels."""

    functions = ()  # those whose linkage Numba has yet to set

    def __init__(self, module):
        self._text = str(module)

    def __str__(self):
        return self._text


def _writing_what_is_linked(finalize):
    def finalized(library):
        finalize(library)  # sets the linkage of all that it links, the last change to their code
        for linked in library._linking_libraries:
            if not isinstance(linked._module, _Written):
                linked._module = _Written(linked._module)

    return finalized
