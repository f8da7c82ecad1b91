"""The product of a tile of many rows with a panel, both packed: what takes most of the time of large products.

Its idea is `vectors.tile_product`'s; besides it fetches the next panel while it multiplies this one.
"""

from llvmlite import ir

from numbarnn.compile import cgutils, types
from numbarnn.compile.translate import intrinsic
from numbarnn.engines.cpu.vectors import INT, LINE, VECTOR_BYTES, Vectors, own_memory

# Terms that are multiplied one after another, without a branch between, while one line of the next panel is fetched.
UNROLLED = 2 if VECTOR_BYTES == 64 else 4


def packed_tile(least, most, beside=2):
    """A function for compiled code: out = tile panel, or +=, where out has `least` to `most` rows, and the panel's
    columns, or with `beside` = 1 the first half of these.

    Args of the function:
        rows: how many.
        tile: address of the rows, all of them at each term: (terms, rows), see `pack_tile`.
        panel: address of the panel (terms, `panel_width`).
        ahead: address of what is fetched meanwhile: a line of the caches for each UNROLLED terms. The machine does not
            see which panel is next, and large weights are in the third cache.
        terms, chain: how many, and of how many a sum is made; these are added up, which keeps rounding errors small.
        out, out_row: address of the result, and bytes between its rows. add: add to out, to which the sums are added
            one after another.
    """

    def generate(context, builder, signature, arguments):
        v = Vectors(context, builder, signature.args[0])
        _, rows, *given = arguments
        for count in cgutils.each_of(builder, rows, range(least, most + 1)):
            _write_tile(v, count, beside, *given)
        return context.get_dummy_value()

    @intrinsic
    def product(typing_context, zero, rows, tile, panel, ahead, terms, chain, out, out_row, add):
        return types.void(zero, *[types.intp] * 8, types.boolean), generate

    return product


def _write_tile(v, rows, beside, tile, panel, ahead, terms, chain, out, out_row, add):
    """Write what `packed_tile` does with so many rows, of so many vectors side by side.

    Between two chains their sum is in memory of the function's own: the first cache has it, where rows of out, some KB
    apart, get into each other's way.
    """
    builder = v.builder
    sums = [[v.variable() for _ in range(beside)] for _ in range(rows)]
    total = builder.ptrtoint(own_memory(builder, v.type, 2 * rows), INT), INT(2 * VECTOR_BYTES)
    last = builder.sdiv(builder.sub(terms, INT(1)), chain)  # 0, too, where there are no terms
    with cgutils.for_range(builder, builder.add(last, INT(1))) as loop:
        begins, ends = (builder.icmp_signed("==", loop.index, number) for number in (INT(0), last))
        start = builder.mul(loop.index, chain)
        left = builder.sub(terms, start)
        count = builder.select(builder.icmp_signed("<", left, chain), left, chain)
        # Sums that are added to are far away; a store would wait for a line from there, and so would all after it.
        with builder.if_then(begins):
            for i in range(rows):
                for j in range(max(1, beside * VECTOR_BYTES // LINE)):
                    v.fetch(v.moved(v.moved(out, i, out_row), j, LINE))
        at = v.moved(tile, start, rows * v.bytes), v.moved(panel, start, 2 * VECTOR_BYTES)
        _add_chain(v, sums, at, v.moved(ahead, builder.sdiv(start, INT(UNROLLED)), LINE), count)
        before, after = (
            [builder.select(of_out, one, other) for one, other in zip((out, out_row), total, strict=True)]
            for of_out in (begins, ends)
        )
        v.put_sums(sums, after, builder.or_(add, builder.not_(begins)), before)


def _add_chain(v, sums, at, ahead, terms):
    """sums = the products of so many terms: rows of a tile times a panel, which begin at two addresses."""
    builder, rows = v.builder, len(sums)
    (tile, panel), zero = at, ir.Constant(v.type, None)
    for row in sums:
        for place in row:
            builder.store(zero, place)

    def add_products(place, number):  # of the term so many after that at `place`
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
