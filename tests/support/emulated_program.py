"""Programs written in PTX, run on the emulated GPU (tests/fakes/emulator)."""

import numpy as np

from emulator import machine
from emulator.memory import Memory

THREADS = 64


def ptx(body, registers="", before=""):
    """A kernel with one parameter, an address: %rd1; %r1 is the thread's number, %rd2 its own 8 bytes' address."""
    return f"""
.version 8.8
.target sm_90
.address_size 64
{before}
.visible .entry kernel(.param .u64 kernel_param_0)
{{
    .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<20>; .reg .f64 %fd<20>;
    {registers}
    ld.param.u64 %rd9, [kernel_param_0];
    cvta.to.global.u64 %rd1, %rd9;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd2, %rd1, %rd3;
    {body}
    ret;
}}
"""


def run(text, values, *, grid=1, threads=THREADS, order=None, dynamic_bytes=0, cooperative=False, seed=0):
    """The array after the kernel, which gets its address."""
    memory = Memory(1 << 20)
    address = memory.allocate(values.nbytes)
    memory.array(address, values.dtype, values.shape)[...] = values
    parameters = [np.uint64(address).tobytes()]
    order = None if order is None else np.random.default_rng(order)
    sizes = (grid, 1, 1), (threads, 1, 1)
    machine.load(text).launch(memory, *sizes, parameters, dynamic_bytes, cooperative, order, seed)
    return memory.array(address, values.dtype, values.shape).copy()
