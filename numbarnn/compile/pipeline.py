"""How Numba compiles the CPU engine's functions: without machine code that nobody calls and passes without effect.

This reaches into Numba's libraries of code, as numba 0.61 to 0.68 have them. With a Numba that lacks something of it,
`ForParts` and `ForDoors` are Numba's own compiler, and first calls take longer.
"""

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager

# Passes for what doors do not have: closures, `with`, functions that Numba inlines, arrays, `raise`.
_NOT_NEEDED = {
    "WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables",
    "FindLiterallyCalls", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads", "NopythonRewrites",
    "DumpParforDiagnostics",
}  # fmt: skip
_OF_LIBRARIES = "finalize _finalize_dynamic_globals _optimize_functions _optimize_final_module"


class _Part(JITCodeLibrary):
    """The code of a function that only compiled functions call. LLVM optimises it with these, of which it becomes a
    part; machine code of its own, which takes as long, it has none. Who calls it is linked with all that it calls."""

    def finalize(self):
        self._finalize_dynamic_globals()
        self._finalized, self._shared_module = True, self._final_module
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage.name == "external":
                function.linkage = "linkonce_odr"


class _Door(JITCodeLibrary):
    """The code of a `plain.door`. It has none of what Numba's first round of passes is for, references to objects."""

    def _optimize_functions(self, module):
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self):
        made = self._codegen._module_pass_manager()
        passes, *builder = made if isinstance(made, tuple) else (made,)  # without a builder before numba 0.62
        passes.run(self._final_module, *builder)


class _Compiler(Compiler):
    """Compiles into a library of a class of its own."""

    library = None

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        state = self.state
        if state.library is None:
            state.library = self.library(state.targetctx.codegen(), "numbarnn")
            state.library.enable_object_caching()


class ForParts(_Compiler):
    """Of functions that only compiled functions call."""

    library = _Part

    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.state.flags.no_compile = True


class ForDoors(_Compiler):
    """Of doors."""

    library = _Door

    def define_pipelines(self):
        whole, few = DefaultPassBuilder.define_nopython_pipeline(self.state), PassManager("doors")
        for one, about in whole.passes:
            if one.__name__ not in _NOT_NEEDED:
                few.add_pass(one, about)
        few.finalize()
        return [few]


if not all(hasattr(JITCodeLibrary, name) for name in _OF_LIBRARIES.split()):
    ForParts = ForDoors = Compiler
