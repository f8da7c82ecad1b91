"""Sizes of the problems that `numbarnn bench` takes times of, the named sets of them, and words of its arguments."""

import argparse
from typing import NamedTuple


class Shape(NamedTuple):
    """Sizes of a problem with layers of one size."""

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


#: Name -> shapes. DeepBench itself leaves the input product out (CUDNN_SKIP_INPUT), and has other shapes for each cell.
SETS = {
    "default": (
        Shape(25, 16, 512, 512, 1),
        Shape(50, 64, 512, 512, 1),
        Shape(100, 1, 256, 256, 1),
        Shape(8, 128, 1024, 1024, 3),
        Shape(3, 1, 255, 20, 2),
        Shape(1, 1, 512, 512, 1),
        Shape(50, 32, 128, 128, 2),
    ),
    "schedules": (  # where schedules differ: long or short, one layer or several
        Shape(1024, 16, 768, 768, 1),
        Shape(25, 16, 512, 512, 1),
        Shape(25, 32, 512, 512, 1),
        Shape(25, 64, 512, 512, 1),
        Shape(25, 64, 1024, 1024, 1),
        Shape(150, 16, 256, 256, 1),
        Shape(100, 64, 512, 512, 4),
        Shape(8, 128, 1024, 1024, 3),
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


def parse_shape(text):
    """An argparse type: "25,16,512,512,1" -> Shape."""
    parts = text.split(",")
    if len(parts) != 5 or not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
        raise argparse.ArgumentTypeError(
            f"expected T,B,I,H,L, five whole numbers of at least 1 such as {SETS['default'][0]}; got {text!r}"
        )
    return Shape(*map(int, parts))
