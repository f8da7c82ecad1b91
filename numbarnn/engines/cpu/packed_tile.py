"""The product of a tile of many rows with a panel, both packed: the innermost loop of large products.

The algorithm is that of `vectors.tile_product`; it also prefetches the next panel.
"""

from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.translate import intrinsic
from numbarnn.engines.cpu.vectors import INT, LINE, VECTOR_BYTES, Vectors, own_memory

# Terms to multiply without a branch while one cache line of the next panel is prefetched.
UNROLLED = 2 if VECTOR_BYTES == 64 else 4


def packed_tile(least, most, vectors=2):
    """Return a function for compiled code: out = tile panel, or +=, for `least` to `most` rows.

    Args:
        vectors: vectors of the panel per term: 2, or 1 for the first half of its columns only.

    Args of the function:
        rows: number of rows. tile: address of the packed rows (terms, rows), see `pack_tile`.
        panel: address of the panel (terms, `panel_width`).
        ahead: address to prefetch, one cache line for each UNROLLED terms. The processor cannot guess the next panel,
            and large weights lie in the L3 cache.
        terms: number of terms.
        kc: terms per partial sum; partial sums are then added, which keeps rounding errors small.
        out, out_row: address of the result, and bytes between its rows.
        add: add to out; the partial sums are added one after another.
    """

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, rows, *operands = arguments
        for count in cgutils.each_of(builder, rows, range(least, most + 1)):
            _write_tile(v, count, vectors, *operands)
        return context.get_dummy_value()

    @intrinsic
    def product(typing_context, zero, rows, tile, panel, ahead, terms, kc, out, out_row, add):
        return types.void(zero, *[types.intp] * 8, types.boolean), generate

    return product


def _write_tile(v, rows, vectors, tile, panel, ahead, terms, kc, out, out_row, add):
    """Write `packed_tile`'s instructions for a fixed number of rows and vectors per term.
    Between two partial sums the total lies on the stack, in the L1 cache: rows of out, some KB apart, would evict each
    other."""
    builder = v.builder
    sums = [[v.variable() for _ in range(vectors)] for _ in range(rows)]
    total = builder.ptrtoint(own_memory(builder, v.type, 2 * rows), INT), INT(2 * VECTOR_BYTES)
    last = builder.sdiv(builder.sub(terms, INT(1)), kc)  # 0 without terms, too
    with cgutils.for_range(builder, builder.add(last, INT(1))) as loop:
        begins, ends = (builder.icmp_signed("==", loop.index, number) for number in (INT(0), last))
        start = builder.mul(loop.index, kc)
        left = builder.sub(terms, start)
        count = builder.select(builder.icmp_signed("<", left, kc), left, kc)
        # Prefetch the sums to add to: a store would wait for their line, and everything after it too.
        with builder.if_then(begins):
            for i in range(rows):
                for j in range(max(1, vectors * VECTOR_BYTES // LINE)):
                    v.fetch(v.moved(v.moved(out, i, out_row), j, LINE))
        at = v.moved(tile, start, rows * v.bytes), v.moved(panel, start, 2 * VECTOR_BYTES)
        _add_chain(v, sums, at, v.moved(ahead, builder.sdiv(start, INT(UNROLLED)), LINE), count)
        before, after = (
            [builder.select(of_out, one, other) for one, other in zip((out, out_row), total, strict=True)]
            for of_out in (begins, ends)
        )
        v.put_sums(sums, after, builder.or_(add, builder.not_(begins)), before)


def _add_chain(v, sums, at, ahead, terms):
    """Add the products of `terms` terms to sums: tile rows times a panel, read from the addresses `at`."""
    builder, rows = v.builder, len(sums)
    (tile, panel), zero = at, ir.Constant(v.type, None)
    for row in sums:
        for place in row:
            builder.store(zero, place)

    def add_products(place, number):  # of the term `number` terms after `place`
        first = v.moved(v.moved(panel, place, 2 * VECTOR_BYTES), number, 2 * VECTOR_BYTES)
        b = [v.load(v.moved(first, j, VECTOR_BYTES)) for j in range(len(sums[0]))]
        factors = v.moved(v.moved(tile, place, rows * v.bytes), number, rows * v.bytes)
        for i in range(rows):
            v.add_products(sums[i], v.same(v.moved(factors, i, v.bytes)), b)

    groups = builder.sdiv(terms, INT(UNROLLED))
    with cgutils.for_range(builder, groups) as loop:
        v.fetch(v.moved(ahead, loop.index, LINE))
        place = builder.mul(loop.index, INT(UNROLLED))
        for number in range(UNROLLED):
            add_products(place, number)
    done = builder.mul(groups, INT(UNROLLED))
    with cgutils.for_range(builder, builder.sub(terms, done)) as loop:
        add_products(builder.add(done, loop.index), 0)
