"""The type by which compiled CPU code knows a cell: equal for equal equations, readable by processes that lack them."""

import pickle
import pickletools
import subprocess
import sys
from dataclasses import replace

from numbarnn import cells
from numbarnn.cells.definition import Noise
from numbarnn.cells.lstm import lstm_forward
from numbarnn.engines.cpu.cell_tag import CellTag
from sum_cells import LADDER


def own_forward(ax, ah, state):
    return lstm_forward(ah, ah, state)


OWN = replace(cells.LSTM, name="own", forward=own_forward)


def type_of(cell):
    return CellTag(cell)._numba_type_


def test_a_type_goes_by_its_equations():
    assert type_of(cells.LSTM) is type_of(cells.LSTM)
    again = replace(cells.LSTM, name="own", forward=lambda ax, ah, state: lstm_forward(ax, ah, state))
    names = {type_of(cell).name for cell in (OWN, again, replace(OWN, saved=("i", "f", "g")), cells.LSTM)}
    assert len(names) == 4


def test_a_type_goes_by_sums_and_noise():
    cell, (stage, *stages) = LADDER, LADDER.stages
    noisy = replace(cell, noise=(Noise(0.25),))
    others = [
        noisy,
        replace(noisy, noise=(Noise(0.25, each_step=False),)),
        replace(noisy, noise=(Noise(0.25, kept=2.0),)),
        replace(noisy, noise=(Noise(0.25, mean=0.75),)),
        replace(cell, stages=(replace(stage, sums=("p",)), *stages)),
        replace(cell, stages=(replace(stage, gates=("p", "q"), sums=()), *stages)),
    ]
    assert len({type_of(cell).name for cell in (cell, *others)}) == 7
    assert type_of(replace(noisy, noise=(Noise(0.25),))) is type_of(noisy)


def test_files_name_no_module_of_the_cell():
    """Numba keeps the types of a function in one file: a process that cannot import this one reads it too."""
    dumped = pickle.dumps(type_of(OWN))
    words = {argument for _, argument, _ in pickletools.genops(dumped) if isinstance(argument, str)}
    assert not any("test_cell_tag" in word for word in words)
    assert pickle.loads(dumped) is type_of(OWN)


def test_a_type_known_by_name_gets_its_cell_later():
    program = (
        "import pickle, sys\n"
        "from numbarnn import cells\n"
        "from numbarnn.engines.cpu import cell_tag\n"
        "known = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "assert known.cell is None\n"
        "tag = cell_tag.CellTag(cells.LSTM)\n"
        "print(tag._numba_type_ is known, known.cell is cells.LSTM)\n"
    )
    dumped = pickle.dumps(type_of(cells.LSTM)).hex()
    ran = subprocess.run([sys.executable, "-c", program, dumped], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["True", "True"], ran.stderr
