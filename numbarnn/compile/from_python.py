"""The way from Python into a plain function: a tenth of a microsecond, where `ctypes` takes one or two."""

import ctypes

from llvmlite import ir

from numbarnn.compile import native, types
from numbarnn.compile.calls import Plain
from numbarnn.compile.plain import Entry, finished
from numbarnn.compile.statements import call
from numbarnn.compile.values import BYTES, Value

_FASTCALL = 0x80  # METH_FASTCALL: function(self, address of the arguments, how many) -> result
# What the code calls of Python's: name -> (result, arguments)
_INT, _VOID = types.int64.llvm, ir.VoidType()
_OF_PYTHON = {
    "PyLong_AsLongLong": (_INT, [BYTES]), "PyLong_FromLongLong": (BYTES, [_INT]), "PyErr_BadArgument": (_INT, []),
    "PyEval_SaveThread": (BYTES, []), "PyEval_RestoreThread": (_VOID, [BYTES]),
}  # fmt: skip


class _MethodDef(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


class FromPython(Entry):
    """An entry that Python calls, with integers; it returns an integer, 0 if the function returns nothing.

    Args:
        function, what: as of an `Entry`. Python's other threads may run meanwhile.

    Attributes:
        compiled: the same function for those who call it often; this object is one in Python.
    """

    def __call__(self, *numbers):
        return self.compiled(*numbers)

    def __getattr__(self, name):  # no cached_property, whose lock (up to Python 3.11) a forked process may find held
        if name != "compiled":
            raise AttributeError(name)
        self.compiled = self._compile()
        return self.compiled

    def _compile(self):
        for name in _OF_PYTHON:
            native.offer_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
        self._method = _MethodDef(self.__name__.encode(), self.address(), _FASTCALL, None)
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_MethodDef), ctypes.c_void_p, ctypes.c_void_p)
        return make(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.byref(self._method), None, None)

    def module(self, symbol, first):
        """LLVM's module with the function as Python calls it."""
        module, count = ir.Module(symbol), self.py_func.__code__.co_argcount
        kind = ir.FunctionType(BYTES, [BYTES, BYTES.as_pointer(), _INT])
        function = ir.Function(module, kind, symbol)
        of_python = {
            name: ir.Function(module, ir.FunctionType(result, arguments), name)
            for name, (result, arguments) in _OF_PYTHON.items()
        }
        builder, (_, given, number) = ir.IRBuilder(function.append_basic_block()), function.args
        with builder.if_then(builder.icmp_signed("!=", number, _INT(count))):
            builder.call(of_python["PyErr_BadArgument"], [])
            builder.ret(ir.Constant(BYTES, None))
        given = [builder.load(builder.gep(given, [_INT(k)])) for k in range(count)]
        numbers = [builder.call(of_python["PyLong_AsLongLong"], [one]) for one in given]
        state = builder.call(of_python["PyEval_SaveThread"], [])
        result = call(Plain(self.py_func), [Value(types.int64, one) for one in numbers], builder)
        builder.call(of_python["PyEval_RestoreThread"], [state])
        number = _INT(0) if result is None else result.llvm
        builder.ret(builder.call(of_python["PyLong_FromLongLong"], [number]))
        return finished(module)
