"""Sizes of the cases that `numbarnn bench` takes times of, the named sets of them, and words of its arguments."""

from typing import NamedTuple

from numbarnn.bench import report


class Shape(NamedTuple):
    """Sizes of a case with layers of one size."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int
    L: int

    def __str__(self):
        return ",".join(map(str, self))


def deepbench(*groups):
    """Shapes of DeepBench (code/kernels/rnn_problems.h): one layer, I = H; groups of (hidden sizes, batches, steps)."""
    return tuple(
        Shape(T, B, H, H, 1) for sizes, batches, steps in groups for H in sizes for B in batches for T in steps
    )


def parse_shape(text):
    """An argparse type: "25,16,512,512,1" -> Shape."""
    expected = "T,B,I,H,L, five whole numbers of at least 1 such as 25,16,512,512,1;"
    return Shape(*report.whole_numbers(text, expected, 5))


def shapes(text):
    """Shapes as on a command line, with blanks between."""
    return tuple(map(parse_shape, text.split()))


#: Name -> shapes. DeepBench itself leaves the input product out (CUDNN_SKIP_INPUT), and has other shapes for each cell.
SETS = {
    "default": shapes(
        "25,16,512,512,1 50,64,512,512,1 25,32,1024,1024,1 100,1,256,256,1 8,128,1024,1024,3 3,1,255,20,2 "
        "1,1,512,512,1 50,32,128,128,2"
    ),
    "quick": shapes("25,16,512,512,1 100,1,256,256,1 3,1,255,20,2 1,1,512,512,1 50,32,128,128,2"),
    "stream": shapes("1,1,64,128,1 1,1,256,256,1 1,1,512,512,1"),  # one step, for `--stream`
    "schedules": shapes(  # where schedules differ: long or short, one layer or several
        "1024,16,768,768,1 25,16,512,512,1 25,32,512,512,1 25,64,512,512,1 25,64,1024,1024,1 150,16,256,256,1 "
        "100,64,512,512,4 8,128,1024,1024,3"
    ),
    "deepbench-lstm": deepbench(
        ((512, 1024, 2048, 4096), (16, 32, 64, 128), (25,)),
        ((1536,), (8, 16, 32), (50,)),
        ((256,), (16, 32, 64), (150,)),
    ),
    "deepbench-gru": deepbench(
        ((2816, 2048, 1536, 2560), (32,), (1500, 750, 375, 187)), ((512,), (32,), (1,)), ((1024,), (32, 64), (1500,))
    ),
    "deepbench-rnn": deepbench(((1760, 2048, 2560), (16, 32, 64, 128), (50,))),
}


TF32 = {"off": False, "on": True}  # the words of --tf32
