"""The functions of `ptx` as intrinsics that Numba compiles."""

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

WORD, FLOAT32 = types.uint32, types.float32
_LETTERS = {types.uint16: "h", WORD: "r", types.int32: "r", types.int64: "l", FLOAT32: "f"}


def _emit(context, builder, text, results, operands, pinned):
    """Emit an instruction, and return one LLVM value per result.

    Args:
        operands: (LLVM value, constraint letter) of each operand. pinned: see `_intrinsic`.
    """
    result_types = [context.get_value_type(result) for result in results] or [ir.VoidType()]
    returned = result_types[0] if len(result_types) == 1 else ir.LiteralStructType(result_types)
    constraints = [f"={_LETTERS[result]}" for result in results] + [letter for _, letter in operands]
    constraints += ["~{memory}"] * (pinned == "memory")
    # All lanes of a warp run mma and barriers together, so LLVM must not move these to where fewer lanes come.
    of_a_warp = ".sync" in text or "barrier" in text
    function = ir.FunctionType(returned, [value.type for value, _ in operands])
    assembly = ir.InlineAsm(function, text, ",".join(constraints), side_effect=bool(pinned) or of_a_warp)
    value = builder.call(assembly, [value for value, _ in operands], attrs=("convergent",) if of_a_warp else ())
    if len(results) < 2:
        return [value] * len(results)
    return [builder.extract_value(value, number) for number in range(len(results))]


def _address(context, builder, array_type, array, index, shared):
    """Return the address of array[index] as an operand."""
    pointer = builder.gep(context.make_array(array_type)(context, builder, value=array).data, [index])
    if shared:
        pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, addrspace=3))
        return builder.ptrtoint(pointer, ir.IntType(32)), "r"
    return builder.ptrtoint(pointer, ir.IntType(64)), "l"


def _typed(parts):
    """Return the type of an argument or a result with these parts: void, a scalar or a tuple."""
    return types.void if not parts else parts[0] if len(parts) == 1 else types.Tuple(parts)


def _intrinsic(name, count, form_of, pinned=False, shared=False, kept=0):
    """Make an intrinsic of `count` arguments.

    Args:
        form_of: function of the argument types -> (text, result types, parameters), or None for types without such an
            instruction. parameters: types of the parts of each argument, without those of an array and its index. In
            text, $n counts the results, then the address if there is one, then the parts.
        pinned: "memory" for an instruction that accesses memory, "place" for one that must stay in its loop.
        shared: whether the array is in shared memory.
        kept: number of last parts that are also results, for an instruction that may leave them unchanged.
    """

    def typed(*given):
        form = form_of(*given)
        if form is None:
            return None
        text, results, parameters = form
        has_array = len(parameters) < len(given)
        types_of = (*given[: 2 * has_array], *map(_typed, parameters))

        def generate(context, builder, signature, arguments):
            operands = []
            if has_array:
                index = context.cast(builder, arguments[1], signature.args[1], types.int64)
                operands.append(_address(context, builder, given[0], arguments[0], index, shared))
            for argument, parts in zip(arguments[2 * has_array :], parameters, strict=True):
                one = len(parts) == 1
                values = [argument] if one else [builder.extract_value(argument, k) for k in range(len(parts))]
                operands += zip(values, [_LETTERS[part] for part in parts], strict=True)
            for k in range(kept):
                operands[k - kept] = operands[k - kept][0], str(k)
            values = _emit(context, builder, text, results, operands, pinned)
            if len(values) > 1:
                return context.make_tuple(builder, signature.return_type, values)
            return values[0] if values else context.get_dummy_value()

        return _typed(results)(*types_of), generate

    functions = (  # Numba's intrinsics take no *arguments
        lambda typing_context: typed(),
        lambda typing_context, a: typed(a),
        lambda typing_context, a, b: typed(a, b),
        lambda typing_context, a, b, c: typed(a, b, c),
    )
    functions[count].__name__ = name
    return intrinsic(functions[count])


def _instruction(name, text, results, *parameters, pinned=False):
    """Make an intrinsic of scalars and tuples. parameters: types of the parts of each argument."""
    return _intrinsic(name, len(parameters), lambda *_: (text, results, parameters), pinned)


def _memory_instruction(name, forms, shared=False, kept=0):
    """Make an intrinsic name(array, index), or name(array, index, value) if the forms have parts of a value.

    Args:
        forms: array's element type -> (text, result types[, types of the value's parts]).
    """

    def form_of(array, index, *_):
        if not isinstance(array, types.Array) or array.ndim != 1 or array.dtype not in forms:
            return None
        text, results, *parts = forms[array.dtype]
        return text, results, parts

    count_of_values = len(next(iter(forms.values()))) - 2
    return _intrinsic(name, 2 + count_of_values, form_of, "memory", shared, kept)


_NAMES = {types.uint16: "u16", FLOAT32: "f32"}  # element types of weights and of arrays that blocks exchange
_STORED = {**_NAMES, types.int64: "s64", types.float64: "f64"}
_FOUR_WORDS = "{$0, $1, $2, $3}"


def _four_words(text):
    """Return the forms of an instruction whose results are four words, for arrays of each type in `_NAMES`."""
    return {kind: (text, [WORD] * 4) for kind in _NAMES}


# ---- memory that blocks share
load_words = _memory_instruction("load_words", _four_words(f"ld.relaxed.gpu.global.v4.u32 {_FOUR_WORDS}, [$4];"))
# load_words_if(array, index, (wanted, four words)) loads if `wanted` is not 0, else returns the four words. It has no
# branch, so that several loads are in flight at once.
_IF_WANTED = (
    f"{{ .reg .pred wanted; setp.ne.u32 wanted, $5, 0; @wanted ld.relaxed.gpu.global.v4.u32 {_FOUR_WORDS}, [$4]; }}"
)
load_words_if = _memory_instruction(
    "load_words_if", {kind: (*form, [WORD] * 5) for kind, form in _four_words(_IF_WANTED).items()}, kept=4
)
load = _memory_instruction(
    "load", {kind: (f"ld.relaxed.gpu.global.{name} $0, [$1];", [kind]) for kind, name in _STORED.items()}
)
store = _memory_instruction(
    "store", {kind: (f"st.relaxed.gpu.global.{name} [$0], $1;", [], [kind]) for kind, name in _STORED.items()}
)
store_word = _memory_instruction("store_word", {types.uint16: ("st.relaxed.gpu.global.u32 [$0], $1;", [], [WORD])})
prefetch = _memory_instruction("prefetch", {kind: ("prefetch.global.L2 [$0];", []) for kind in _NAMES})

# ---- weights, which no kernel writes: one, two neighbors (16-bit ones as a word), or 16 bytes as four words
load_weight = _memory_instruction(
    "load_weight", {kind: (f"ld.global.nc.{name} $0, [$1];", [kind]) for kind, name in _NAMES.items()}
)
load_weight_pair = _memory_instruction(
    "load_weight_pair",
    {
        types.uint16: ("ld.global.nc.u32 $0, [$1];", [WORD]),
        FLOAT32: ("ld.global.nc.v2.f32 {$0, $1}, [$2];", [FLOAT32] * 2),
    },
)
load_weight_words = _memory_instruction("load_weight_words", _four_words(f"ld.global.nc.v4.u32 {_FOUR_WORDS}, [$4];"))


# ---- shared memory: declare arrays with alignment=16
def _shared_instruction(name, *form):
    return _memory_instruction(name, {FLOAT32: form}, shared=True)


load_shared = _shared_instruction("load_shared", f"ld.shared.v4.f32 {_FOUR_WORDS}, [$4];", [FLOAT32] * 4)
load_shared_words = _shared_instruction("load_shared_words", f"ld.shared.v4.u32 {_FOUR_WORDS}, [$4];", [WORD] * 4)
store_shared_words = _shared_instruction(
    "store_shared_words", "st.shared.v4.u32 [$0], {$1, $2, $3, $4};", [], [WORD] * 4
)
store_shared = _shared_instruction("store_shared", "st.shared.f32 [$0], $1;", [], [FLOAT32])
store_shared_pair = _shared_instruction("store_shared_pair", "st.shared.v2.f32 [$0], {$1, $2};", [], [FLOAT32] * 2)


# ---- the tensor cores: 16 x K by K x 8, float32 sums; lane layouts as in the PTX ISA, "Matrix Fragments"
def _mma(name, shape_and_types):
    text = f"mma.sync.aligned.{shape_and_types} {_FOUR_WORDS}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
    return _instruction(name, text, [FLOAT32] * 4, [WORD] * 4, [WORD] * 2, [FLOAT32] * 4)


mma_float16 = _mma("mma_float16", "m16n8k16.row.col.f32.f16.f16.f32")
mma_bfloat16 = _mma("mma_bfloat16", "m16n8k16.row.col.f32.bf16.bf16.f32")
mma_tf32 = _mma("mma_tf32", "m16n8k8.row.col.f32.tf32.tf32.f32")

# ---- bits
to_tf32 = _instruction("to_tf32", "cvt.rna.tf32.f32 $0, $1;", [WORD], [WORD])
# Split a float32 into large + small, where large is the nearest TF32 number. Tensor cores read the upper 19 bits of
# small, so the error is at most 2^-23 of the number. `cvt` would take four instructions in place of three, since it
# looks for infinities, for which small is NaN here. Pinned, since splitting all weights before the loop would take
# twice their registers.
split_tf32 = _instruction(
    "split_tf32",
    "{ .reg .b32 raised; add.u32 raised, $2, 0x1000; and.b32 $0, raised, 0xFFFFE000; sub.rn.f32 $1, $2, $0; }",
    [WORD] * 2,
    [WORD],
    pinned="place",
)
# Return 0 for a number that is not negative, unknown to the compiler. A value computed with it in a loop is computed
# again in each iteration, so that it takes no registers between iterations.
hidden_zero = _instruction("hidden_zero", "shr.u32 $0, $1, 31;", [types.int32], [types.int32], pinned="place")
as_float32 = _instruction("as_float32", "mov.b32 $0, $1;", [FLOAT32], [WORD])
as_word = _instruction("as_word", "mov.b32 $0, $1;", [WORD], [FLOAT32])
largest = _instruction("largest", "max.u32 $0, $1, $2;", [WORD], [WORD], [WORD])
pack_halves = _instruction("pack_halves", "mov.b32 $0, {$1, $2};", [WORD], [types.uint16], [types.uint16])
float32_of_half = _instruction("float32_of_half", "cvt.f32.f16 $0, $1;", [FLOAT32], [types.uint16])
half_of_float32 = _instruction("half_of_float32", "cvt.rn.f16.f32 $0, $1;", [types.uint16], [FLOAT32])
# Pack the lower, or the upper, 16 bits of two words into one.
lower_halves = _instruction("lower_halves", "prmt.b32 $0, $1, $2, 0x5410;", [WORD], [WORD], [WORD])
upper_halves = _instruction("upper_halves", "prmt.b32 $0, $1, $2, 0x7632;", [WORD], [WORD], [WORD])

# ---- float32: a / b within 2 ulp for any b; 2^x and 1 / x within about 2 and 1 ulp, with subnormals as 0
divide = _instruction("divide", "div.full.f32 $0, $1, $2;", [FLOAT32], [FLOAT32], [FLOAT32])
exp2 = _instruction("exp2", "ex2.approx.ftz.f32 $0, $1;", [FLOAT32], [FLOAT32])
reciprocal = _instruction("reciprocal", "rcp.approx.ftz.f32 $0, $1;", [FLOAT32], [FLOAT32])

# ---- order
# Do nothing for a number that is not negative: a loop without iterations. The assembler moves no loads across it, which
# would keep registers occupied for longer, but would move them across a mere branch.
keep_order = _instruction(
    "keep_order",
    "{ .reg .pred more; .reg .u32 left; shr.u32 left, $0, 31; setp.ne.u32 more, left, 0; "
    "@!more bra DONE${:uid}; AGAIN${:uid}: nanosleep.u32 1000; add.u32 left, left, -1; "
    "setp.ne.u32 more, left, 0; @more bra AGAIN${:uid}; DONE${:uid}: }",
    [],
    [types.int32],
    pinned="memory",
)
sleep = _instruction("sleep", "nanosleep.u32 $0;", [], [WORD], pinned="memory")  # for about so many nanoseconds
