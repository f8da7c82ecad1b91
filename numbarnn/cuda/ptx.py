"""PTX instructions that Numba has no name for, as functions that kernels call; in the simulator their twins in Python.

    words = ptx.load_words(h, index)                # 16 bytes at h[index], seen as other blocks wrote them
    ptx.store(h, index, value)                      # visible to all blocks at once
    words = ptx.load_weight_words(weights, index)   # 16 bytes that nobody writes during the kernel
    sums = ptx.mma_float16(a, b, sums)              # the tensor cores, all lanes of a warp together

Arrays are one-dimensional and contiguous, in the form of `numbarnn.compile.storage.stored`. A word is a uint32.
"Relaxed" loads and stores go to the L2 cache, where all blocks meet, and are indivisible per element; they order
nothing else. Instructions are from NVIDIA's "PTX ISA", sections on ld, st, prefetch, mma and cvt.
"""

from numbarnn.cuda.compiler import simulated

if simulated():
    from numbarnn.cuda.ptx_simulated import *  # noqa: F403
else:
    from llvmlite import ir
    from numba import types
    from numba.cuda.extending import intrinsic

    WORD, FLOAT32 = types.uint32, types.float32
    _LETTERS = {types.uint16: "h", types.uint32: "r", types.int32: "r", types.int64: "l"}
    _LETTERS |= {types.float32: "f", types.float64: "d"}

    def _call(context, builder, text, results, operands, *, memory, stays=False):
        """Emit the instruction, and return one value per result.

        Args:
            operands: (LLVM value, constraint letter) of each.
        """
        result_types = [context.get_value_type(result) for result in results]
        returned = (
            ir.VoidType()
            if not results
            else result_types[0]
            if len(results) == 1
            else ir.LiteralStructType(result_types)
        )
        constraints = [f"={_LETTERS[result]}" for result in results] + [letter for _, letter in operands]
        function = ir.FunctionType(returned, [value.type for value, _ in operands])
        # A whole warp makes mma, and comes to barriers, together: these must not move to where fewer lanes come. Memory
        # operations must keep their place, and what `stays` is not moved out of a loop.
        of_a_warp = ".sync" in text or "barrier" in text
        assembly = ir.InlineAsm(
            function, text, ",".join(constraints + ["~{memory}"] * memory), side_effect=memory or of_a_warp or stays
        )
        value = builder.call(assembly, [value for value, _ in operands], attrs=("convergent",) if of_a_warp else ())
        if len(results) < 2:
            return [value] * len(results)
        return [builder.extract_value(value, number) for number in range(len(results))]

    def _address(context, builder, array_type, array, index, shared=False):
        """The address of array[index] as an operand."""
        pointer = builder.gep(context.make_array(array_type)(context, builder, value=array).data, [index])
        if shared:
            pointer = builder.addrspacecast(pointer, ir.PointerType(pointer.type.pointee, addrspace=3))
            return builder.ptrtoint(pointer, ir.IntType(32)), "r"
        return builder.ptrtoint(pointer, ir.IntType(64)), "l"

    def _result(context, builder, signature, values):
        if not values:
            return context.get_dummy_value()
        return values[0] if len(values) == 1 else context.make_tuple(builder, signature.return_type, values)

    def _typed(results):
        if not results:
            return types.void
        return results[0] if len(results) == 1 else types.Tuple(results)

    def _memory_instruction(name, forms, *, values=0, shared=False, kept=0):
        """An intrinsic name(array, index[, value]).

        Args:
            forms: array's element type -> (text, result types); $n counts the results, the address, then the value's
                parts.
            values: 0: no value; 1: a scalar; n: a tuple of n.
            kept: so many of the results are what they were unless the instruction changes them: the value's last parts.
        """

        def generate_for(array, text, results, parts):
            def generate(context, builder, signature, arguments):
                index = context.cast(builder, arguments[1], signature.args[1], types.int64)
                operands = [_address(context, builder, array, arguments[0], index, shared)]
                if values == 1:
                    operands.append((arguments[2], _LETTERS[parts[0]]))
                elif values:
                    letters = [_LETTERS[part] for part in parts[: values - kept]] + [str(k) for k in range(kept)]
                    operands += [(builder.extract_value(arguments[2], k), letter) for k, letter in enumerate(letters)]
                return _result(
                    context, builder, signature, _call(context, builder, text, results, operands, memory=True)
                )

            return generate

        def typed(typing_context, array, index, value=None):
            if not isinstance(array, types.Array) or array.ndim != 1 or array.dtype not in forms:
                return None
            text, results, *parts = forms[array.dtype]
            parts = parts[0] if parts else ()
            arguments = (array, index) if not values else (array, index, _typed(parts))
            return _typed(results)(*arguments), generate_for(array, text, results, parts)

        if values:
            typed_exactly = lambda typing_context, array, index, value: typed(typing_context, array, index, value)  # noqa: E731
        else:
            typed_exactly = lambda typing_context, array, index: typed(typing_context, array, index)  # noqa: E731
        typed_exactly.__name__ = name
        return intrinsic(typed_exactly)

    def _instruction(name, text, results, parameters, *, stays=False):
        """An intrinsic of scalars and tuples.

        Args:
            parameters: lists of types, one list per argument. stays: see `_call`.
        """

        def generate(context, builder, signature, arguments):
            operands = []
            for argument, parts in zip(arguments, parameters, strict=True):
                values = (
                    [argument] if len(parts) == 1 else [builder.extract_value(argument, k) for k in range(len(parts))]
                )
                operands += [(value, _LETTERS[part]) for value, part in zip(values, parts, strict=True)]
            values = _call(context, builder, text, results, operands, memory=False, stays=stays)
            return _result(context, builder, signature, values)

        signature = _typed(results)(*map(_typed, parameters))
        functions = {
            1: lambda typing_context, a: (signature, generate),
            2: lambda typing_context, a, b: (signature, generate),
            3: lambda typing_context, a, b, c: (signature, generate),
        }
        function = functions[len(parameters)]
        function.__name__ = name
        return intrinsic(function)

    _STORED = {types.uint16: ("u16", "h"), types.float32: ("f32", "f"), types.float64: ("f64", "d")}
    _STORED |= {types.int64: ("s64", "l")}
    _FOUR_WORDS = "{$0, $1, $2, $3}"
    # Two float64 as four words: the loads must be of 64 bits, as the stores are.
    _TWO_DOUBLES = (
        "{{ .reg .b64 low, high; ld{0}.v2.b64 {{low, high}}, [$4]; "
        "mov.b64 {{$0, $1}}, low; mov.b64 {{$2, $3}}, high; }}"
    )

    def _load_four_words(qualifiers):
        text = f"ld{qualifiers}.v4.u32 {_FOUR_WORDS}, [$4];"
        return {
            types.uint16: (text, [WORD] * 4),
            types.float32: (text, [WORD] * 4),
            types.float64: (_TWO_DOUBLES.format(qualifiers), [WORD] * 4),
        }

    def _load_four_words_if():
        guard = "{ .reg .pred wanted; .reg .b64 low, high; setp.ne.u32 wanted, $5, 0; "
        text = f"@wanted ld.relaxed.gpu.global.v4.u32 {_FOUR_WORDS}, [$4]; }}"
        doubles = (
            "mov.b64 low, {$0, $1}; mov.b64 high, {$2, $3}; @wanted ld.relaxed.gpu.global.v2.b64 {low, high}, [$4]; "
            "mov.b64 {$0, $1}, low; mov.b64 {$2, $3}, high; }"
        )
        forms = {types.uint16: text, types.float32: text, types.float64: doubles}
        return {kind: (guard + form, [WORD] * 4, [WORD] * 5) for kind, form in forms.items()}

    # ---- memory that blocks share
    load_words = _memory_instruction("load_words", _load_four_words(".relaxed.gpu.global"))
    # load_words_if(array, index, (wanted, four words)): the words, unless `wanted` is not 0: then those of the array.
    # No branch, so that several are on their way together.
    load_words_if = _memory_instruction("load_words_if", _load_four_words_if(), values=5, kept=4)
    load = _memory_instruction(
        "load", {kind: (f"ld.relaxed.gpu.global.{name} $0, [$1];", [kind]) for kind, (name, _) in _STORED.items()}
    )
    store = _memory_instruction(
        "store",
        {kind: (f"st.relaxed.gpu.global.{name} [$0], $1;", [], [kind]) for kind, (name, _) in _STORED.items()},
        values=1,
    )
    store_word = _memory_instruction(
        "store_word", {types.uint16: ("st.relaxed.gpu.global.u32 [$0], $1;", [], [WORD])}, values=1
    )
    prefetch = _memory_instruction("prefetch", {kind: ("prefetch.global.L2 [$0];", []) for kind in _STORED})

    # ---- weights, which nobody writes during a kernel: one, two neighbours, 16 bytes of them as four words
    _WEIGHTS = {kind: _STORED[kind][0] for kind in (types.uint16, types.float32, types.float64)}
    load_weight = _memory_instruction(
        "load_weight", {kind: (f"ld.global.nc.{name} $0, [$1];", [kind]) for kind, name in _WEIGHTS.items()}
    )
    load_weight_pair = _memory_instruction(  # halves as one word
        "load_weight_pair",
        {
            types.uint16: ("ld.global.nc.u32 $0, [$1];", [WORD]),
            types.float32: ("ld.global.nc.v2.f32 {$0, $1}, [$2];", [FLOAT32] * 2),
            types.float64: ("ld.global.nc.v2.f64 {$0, $1}, [$2];", [types.float64] * 2),
        },
    )
    load_weight_words = _memory_instruction(
        "load_weight_words",
        {kind: (f"ld.global.nc.v4.u32 {_FOUR_WORDS}, [$4];", [WORD] * 4) for kind in _WEIGHTS},
    )

    # ---- shared memory, 16 bytes (two times 16 for four float64) at a time: declare arrays with alignment=16
    load_shared = _memory_instruction(
        "load_shared",
        {
            types.float32: (f"ld.shared.v4.f32 {_FOUR_WORDS}, [$4];", [types.float32] * 4),
            types.float64: (
                "ld.shared.v2.f64 {$0, $1}, [$4]; ld.shared.v2.f64 {$2, $3}, [$4+16];",
                [types.float64] * 4,
            ),
        },
        shared=True,
    )
    load_shared_words = _memory_instruction(
        "load_shared_words", {types.float32: (f"ld.shared.v4.u32 {_FOUR_WORDS}, [$4];", [WORD] * 4)}, shared=True
    )
    store_shared_words = _memory_instruction(
        "store_shared_words",
        {types.float32: ("st.shared.v4.u32 [$0], {$1, $2, $3, $4};", [], [WORD] * 4)},
        values=4,
        shared=True,
    )
    store_shared = _memory_instruction(
        "store_shared", {types.float32: ("st.shared.f32 [$0], $1;", [], [FLOAT32])}, values=1, shared=True
    )
    store_shared_pair = _memory_instruction(
        "store_shared_pair",
        {types.float32: ("st.shared.v2.f32 [$0], {$1, $2};", [], [FLOAT32] * 2)},
        values=2,
        shared=True,
    )

    # ---- clusters of blocks (compute capability 9.0): store_to_block(array, index, (block, value)), in the same array
    # of shared memory of another block of the cluster, by its number there; and a barrier of all threads of the
    # cluster, after which they see each other's stores. One that has ended is not waited for, nor may be stored to.
    store_to_block = _memory_instruction(
        "store_to_block",
        {
            kind: (
                f"{{ .reg .b32 there; mapa.shared::cluster.u32 there, $0, $1; "
                f"st.shared::cluster.{name} [there], $2; }}",
                [],
                [WORD, kind],
            )
            for kind, name in ((types.float32, "f32"), (types.float64, "f64"))
        },
        values=2,
        shared=True,
    )

    @intrinsic
    def cluster_barrier(typing_context):
        text = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"

        def generate(context, builder, signature, arguments):
            _call(context, builder, text, [], [], memory=True)
            return context.get_dummy_value()

        return types.void(), generate

    # ---- the tensor cores: 16 x K by K x 8, float32 sums; lane layouts as in the PTX ISA, "Matrix Fragments"
    def _mma(name, shape_and_types):
        text = (
            f"mma.sync.aligned.{shape_and_types} {_FOUR_WORDS}, {{$4, $5, $6, $7}}, {{$8, $9}}, {{$10, $11, $12, $13}};"
        )
        return _instruction(name, text, [FLOAT32] * 4, [[WORD] * 4, [WORD] * 2, [FLOAT32] * 4])

    mma_float16 = _mma("mma_float16", "m16n8k16.row.col.f32.f16.f16.f32")
    mma_bfloat16 = _mma("mma_bfloat16", "m16n8k16.row.col.f32.bf16.bf16.f32")
    mma_tf32 = _mma("mma_tf32", "m16n8k8.row.col.f32.tf32.tf32.f32")

    # ---- bits
    to_tf32 = _instruction("to_tf32", "cvt.rna.tf32.f32 $0, $1;", [WORD], [[WORD]])
    # A float32 as large + small: large is the nearest TF32 number, and of small the tensor cores read the upper 19
    # bits, so that 2^-23 of the number is lost at most. Three instructions; `cvt` alone takes four, as it looks for
    # infinities, of which small is NaN. They stay in the loop they are in: the parts of all weights, made before it,
    # would take twice the weights' registers.
    split_tf32 = _instruction(
        "split_tf32",
        "{ .reg .b32 raised; add.u32 raised, $2, 0x1000; and.b32 $0, raised, 0xFFFFE000; sub.rn.f32 $1, $2, $0; }",
        [WORD] * 2,
        [[WORD]],
        stays=True,
    )
    # 0 of a number that is not negative, which the compiler does not see: what is computed with it in a loop is
    # computed again in each round, and takes no registers between them.
    hidden_zero = _instruction("hidden_zero", "shr.u32 $0, $1, 31;", [types.int32], [[types.int32]], stays=True)
    as_float32 = _instruction("as_float32", "mov.b32 $0, $1;", [FLOAT32], [[WORD]])
    as_word = _instruction("as_word", "mov.b32 $0, $1;", [WORD], [[FLOAT32]])
    largest = _instruction("largest", "max.u32 $0, $1, $2;", [WORD], [[WORD], [WORD]])
    pack_halves = _instruction("pack_halves", "mov.b32 $0, {$1, $2};", [WORD], [[types.uint16], [types.uint16]])
    # Of two words the lower halves as a word, and the upper ones.
    lower_halves = _instruction("lower_halves", "prmt.b32 $0, $1, $2, 0x5410;", [WORD], [[WORD], [WORD]])
    upper_halves = _instruction("upper_halves", "prmt.b32 $0, $1, $2, 0x7632;", [WORD], [[WORD], [WORD]])

    # ---- a / b of float32, with an error of 2 units in the last place at most, whatever b is
    divide = _instruction("divide", "div.full.f32 $0, $1, $2;", [FLOAT32], [[FLOAT32], [FLOAT32]])

    # ---- 2^x and 1 / x of a float32, with errors of some 2 and 1 units in the last place; what is too small is 0
    exp2 = _instruction("exp2", "ex2.approx.ftz.f32 $0, $1;", [FLOAT32], [[FLOAT32]])
    reciprocal = _instruction("reciprocal", "rcp.approx.ftz.f32 $0, $1;", [FLOAT32], [[FLOAT32]])

    @intrinsic
    def keep_order(typing_context, number):
        """Nothing, for a number that is not negative: a loop of no rounds, over which the assembler moves no loads to
        where they would take registers for longer. It would move them over a branch alone."""
        text = (
            "{ .reg .pred more; .reg .u32 left; shr.u32 left, $0, 31; setp.ne.u32 more, left, 0; "
            "@!more bra DONE${:uid}; AGAIN${:uid}: nanosleep.u32 1000; add.u32 left, left, -1; "
            "setp.ne.u32 more, left, 0; @more bra AGAIN${:uid}; DONE${:uid}: }"
        )

        def generate(context, builder, signature, arguments):
            _call(context, builder, text, [], [(arguments[0], "r")], memory=True)
            return context.get_dummy_value()

        return types.void(types.int32), generate

    @intrinsic
    def sleep(typing_context, nanoseconds):
        """Let others run for about that time."""

        def generate(context, builder, signature, arguments):
            _call(context, builder, "nanosleep.u32 $0;", [], [(arguments[0], "r")], memory=True)
            return context.get_dummy_value()

        return types.void(types.uint32), generate

    def _reading(name, register):
        """An intrinsic name() that reads a counter of 64 bits, where it stands in the program."""

        def generate(context, builder, signature, arguments):
            (value,) = _call(context, builder, f"mov.u64 $0, {register};", [types.int64], [], memory=True)
            return value

        def reading(typing_context):
            return types.int64(), generate

        reading.__name__ = name
        return intrinsic(reading)

    # ---- clocks: of the SM, in its cycles; of the whole device, in nanoseconds
    clock, nanoseconds = _reading("clock", "%clock64"), _reading("nanoseconds", "%globaltimer")
