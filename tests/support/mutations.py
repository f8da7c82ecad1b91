# ruff: noqa: E501 - texts of code stand here as they are there
"""Mistakes made on purpose, as data, and a runner: does the test that should see each of them see it?

    python tests/support/mutations.py --list
    python tests/support/mutations.py [NAME ...]

Each is made in a copy of this checkout, and the tests named with it are run there, once without it (they must pass) and
once with it (they must fail). tests/test_mutations.py holds that every text still stands where it is to be changed.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutation(NamedTuple):
    """A mistake.

    Attributes:
        file, old, new: a text that stands once in a file, and what it becomes.
        tests: pytest's arguments: what should fail.
    """

    file: str
    old: str
    new: str
    tests: str

    @property
    def simulated(self):
        """Whether the tests run in the simulator."""
        return self.tests.startswith(("tests/simulated/", "tests/test_conformance.py"))


MUTATIONS = {
    "calibrated_by_other_launches": Mutation(
        "tests/support/calibrate.py",
        'given=not backward and GIVEN.format(launch.first) in row["plan"],',
        "given=launch.tile.given,",
        "tests/schedules/test_calibration.py -k new_records",
    ),
    "gru_candidate_gradient": Mutation(
        "numbarnn/cells/gru.py",
        "return (dr, dz, dn), (dr, dz, dq), (dh * z,)",
        "return (dr, dz, dn), (dr, dz, dn), (dh * z,)",
        "tests/test_conformance.py",
    ),
    "cpu_state_two_steps_ago": Mutation(
        "numbarnn/engines/cpu/forward.py",
        "h = call.h + before * call.h_slot + b * call.h_row, call.h_row",
        "h = call.h + (before - (t > 1 and t == call.steps - 1 and call.direction == 0)) * call.h_slot + b * call.h_row, call.h_row",
        "tests/layers/test_layers.py -k 'large_recurrent and GRU'",
    ),
    "cpu_absent_state_of_other_call": Mutation(
        "numbarnn/engines/cpu/forward.py",
        "    if step == 0 and call.from_zero:",
        "    if step == call.first and call.from_zero:",
        "tests/layers/test_absent_state.py",
    ),
    "rows_of_absent_state_of_other_direction": Mutation(
        "numbarnn/passes/backward.py",
        "return slice(batch, None) if direction == 0",
        "return slice(batch, None) if direction == 1",
        "tests/layers/test_absent_state.py",
    ),
    "bound_with_and_without_a_state_are_one": Mutation(
        "numbarnn/layers/reserved.py",
        "problem, reserves, shape.from_zero, arrays.into",
        "problem, reserves, arrays.into",
        "tests/layers/test_need.py -k with_a_state",
    ),
    "absent_state_is_not_told": Mutation(
        "numbarnn/torch/core.py",
        "self.output_states, hx is None)",
        "self.output_states, False)",
        "tests/pytorch/test_operators.py -k product_of_zeros",
    ),
    "cpu_last_unit_of_second_tile": Mutation(
        "numbarnn/engines/cpu/cell_steps.py",
        "_put(zero, rows.new_h + b * rows.new_h_row, first, rows.H, tile, 0, 1, n)",
        "_put(zero, rows.new_h + b * rows.new_h_row, first, rows.H, tile, 0, 1, n - (first > rows.first))",
        "tests/layers/test_layers.py -k 'tiles and GRU and 130'",
    ),
    "cpu_second_chunk_overwrites": Mutation(
        "numbarnn/engines/cpu/products.py",
        "at.add != 0 or k > 0\n",
        "at.add != 0 or (k > 0 and not transpose_b)\n",
        "tests/engines/test_products_cpu.py -k multiply",
    ),
    "cpu_products_are_cut_anywhere": Mutation(
        "numbarnn/engines/cpu/products.py",
        "share_of_product(whole.rows, ROWS_ALIKE * item // 4, least",
        "share_of_product(whole.rows, 1, least",
        "tests/engines/test_products_cpu.py -k bits",
    ),
    "cpu_small_parts_of_products": Mutation(
        "numbarnn/engines/cpu/products.py",
        "return SMALL_PRODUCT // max(1, whole.columns * terms) + 1",
        "return 1",
        "tests/engines/test_products_cpu.py -k bits",
    ),
    "cpu_recurrent_bias_from_input": Mutation(
        "numbarnn/engines/cpu/product_parts.py",
        '(("b_w", dax), ("b_r", dah))',
        '(("b_w", dax), ("b_r", dax))',
        "tests/layers/test_layers.py -k 'large_recurrent and GRU'",
    ),
    "cpu_row_sums_lose_a_row": Mutation(
        "numbarnn/engines/cpu/products.py",
        "rows = min(SUM_ROWS, at.rows - m)",
        "rows = min(SUM_ROWS, at.rows - (at.rows > SUM_ROWS**2) - m)",
        "tests/engines/test_products_cpu.py -k column_sums",
    ),
    "dropout_ignores_call": Mutation(
        "numbarnn/common/philox.py",
        "(seed >> 32) & 0xFFFFFFFF, layer, call & 0xFFFFFFFF, first)\n    return (scale",
        "(seed >> 32) & 0xFFFFFFFF, layer, 0, first)\n    return (scale",
        "tests/layers/test_layers_calls.py tests/cells/test_cells.py -k 'dropout or masks or call'",
    ),
    "segments_drop_out_as_the_first_one": Mutation(
        "numbarnn/passes/reserve.py",
        "rows = self.origin.time * self.batch * self.problem.directions",
        "rows = 0",
        "tests/passes/test_checkpoints.py -k every_length",
    ),
    "segments_of_a_layer_drop_out_as_the_first_one": Mutation(
        "numbarnn/passes/checkpoints.py",
        "self.scale, time * x[0].size)",
        "self.scale, 0)",
        "tests/passes/test_checkpoints.py -k every_length",
    ),
    "segments_draw_noise_as_the_first_one": Mutation(
        "numbarnn/common/philox.py",
        "(origin.time, origin.goes_back)",
        "(0, origin.goes_back)",
        "tests/passes/test_checkpoints.py -k random",
    ),
    "segments_forget_the_gradient_of_a_state": Mutation(
        "numbarnn/passes/checkpoints.py",
        "found, h, c = work.results()",
        "found, h, _ = work.results()",
        "tests/passes/test_checkpoints.py -k every_length",
    ),
    "dropout_without_scale": Mutation(
        "numbarnn/engines/cpu/products.py",
        "out[i] = x[i] * scale if words[k] >= threshold else scale - scale",
        "out[i] = x[i] if words[k] >= threshold else scale - scale",
        "tests/engines/test_products_cpu.py -k dropout",
    ),
    "cpu_barrier_after_step": Mutation(
        "numbarnn/engines/cpu/forward.py",
        "            meet(call, own)\n",
        "            pass\n",
        "tests/engines/test_sharing_cpu.py -k done_the_last",
    ),
    "cpu_barrier_after_packing": Mutation(
        "numbarnn/engines/cpu/forward.py",
        "    meet_packed(call, own)\n",
        "    pass\n",
        "tests/engines/test_sharing_cpu.py -k all_weights",
    ),
    "cpu_a_share_goes_with_its_thread": Mutation(
        "numbarnn/engines/cpu/products.py",
        "range(job.thread, work.pieces, job.threads)",
        "range(job.thread, job.threads)",
        "tests/engines/test_products_cpu.py -k who_comes",
    ),
    "cpu_last_tile_of_rows_loses_one": Mutation(
        "numbarnn/engines/cpu/panels.py",
        "rows * (tile + 1) // tiles\n",
        "rows * (tile + 1) // tiles - (tile > 0)\n",
        "tests/engines/test_panels.py -k numpys",
    ),
    "cpu_second_chain_overwrites": Mutation(
        "numbarnn/engines/cpu/packed_tile.py",
        "builder.or_(add, builder.not_(begins))",
        "add",
        "tests/engines/test_panels.py -k numpys",
    ),
    "cpu_second_block_of_terms_overwrites": Mutation(
        "numbarnn/engines/cpu/panels.py",
        "PANEL_ROW // item, at.add != 0 or start > 0",
        "PANEL_ROW // item, at.add != 0",
        "tests/engines/test_panels.py -k several_blocks",
    ),
    "cpu_last_panel_adds_to_what_is_in_memory": Mutation(
        "numbarnn/engines/cpu/panels.py",
        "(first, rows), own, YES)",
        "(first, rows - 1), own, YES)",
        "tests/engines/test_panels.py -k numpys",
    ),
    "cpu_steps_multiply_the_first_x": Mutation(
        "numbarnn/engines/cpu/forward.py",
        "rows = t * call.batch + own.first_row, own.last_row - own.first_row",
        "rows = own.first_row, own.last_row - own.first_row",
        "tests/engines/test_sharing_cpu.py -k own_x",
    ),
    "cpu_packing_loses_the_last_column": Mutation(
        "numbarnn/engines/cpu/packing.py",
        "    for i in range(columns):\n        row = numbers_at(zero, b",
        "    for i in range(columns - 1):\n        row = numbers_at(zero, b",
        "tests/engines/test_panels.py -k packing",
    ),
    "cpu_second_chain_of_a_wide_panel": Mutation(
        "numbarnn/engines/cpu/panels.py",
        "terms = panel + start * row, min",
        "terms = panel + start * PANEL_ROW, min",
        "tests/engines/test_panels.py -k 'numpys and wide'",
    ),
    "cpu_skipped_step_loses_a_unit": Mutation(
        "numbarnn/engines/cpu/forward.py",
        "copy_units(zero, c, c_before, call.private, H, own.first, own.last)",
        "copy_units(zero, c, c_before, call.private, H, own.first, own.last - 1)",
        "tests/engines/test_engine_steps.py -k 'lstm-masked and not_read'",
    ),
    "cpu_sums_lose_the_last_tile": Mutation(
        "numbarnn/engines/cpu/sharing.py",
        "tiles = (call.hidden + TILE - 1) // TILE",
        "tiles = call.hidden // TILE",
        "tests/engines/test_sums_cpu.py -k in_pairs",
    ),
    "wavefront_loses_a_need": Mutation(
        "numbarnn/schedules/wavefront.py",
        "covering(below, product.times(steps))\n",
        "covering(below, product.times(steps))[:1]\n",
        "tests/schedules/test_wavefront.py",
    ),
    "reset_beyond_length": Mutation(
        "numbarnn/common/order.py",
        "if start < resets.shape[0] and start < length and resets[start, b]:",
        "if start < resets.shape[0] and resets[start, b]:",
        "tests/test_conformance.py",
    ),
    "drop_connect_accumulates": Mutation(
        "numbarnn/passes/recurrent_weights.py",
        "        if self.words is not None:\n            yield from self.drop(out, out, place)",
        "        if self.words is not None and scratch is None:\n            yield from self.drop(out, out, place)",
        "tests/test_conformance.py",
    ),
    "formed_transpose_gradient": Mutation(
        "numbarnn/weights/formed.py",
        '"transpose": (lambda g, a: _transpose(g),),',
        '"transpose": (lambda g, a: g,),',
        "tests/cells/test_formed.py",
    ),
    "narrow_state_seen_beyond_its_units": Mutation(
        "numbarnn/weights/formed.py",
        "shape[1] // groups :] = 0\n",
        "shape[1] // groups :] = 1\n",
        "tests/cells/test_formed.py",
    ),
    "narrow_gradient_of_steps_misplaced": Mutation(
        "numbarnn/layers/private.py",
        "    wide[..., : part.shape[-1]] = part\n",
        "    wide[..., -part.shape[-1] :] = part\n",
        "tests/cells/test_formed.py",
    ),
    "formed_once_for_prepared_calls": Mutation(
        "numbarnn/passes/prepared.py",
        "        if self.work.formed is not None:\n            self.work.form_weights()\n",
        "",
        "tests/cells/test_formed.py",
    ),
    "cpu_few_rows_lose_the_last_column": Mutation(
        "numbarnn/engines/cpu/few_rows.py",
        "tiles, left = columns // COLUMNS, columns % COLUMNS",
        "tiles, left = columns // COLUMNS, columns % COLUMNS - 1",
        "tests/engines/test_panels.py",
    ),
    "tape_has_the_callers_weights": Mutation(
        "numbarnn/layers/stack.py",
        "keeps=training",
        "keeps=False",
        "tests/layers/test_layers_kept.py",
    ),
    "prepared_call_has_the_weights_of_an_earlier_one": Mutation(
        "numbarnn/passes/prepared.py",
        "            np.copyto(self._kept, self.weights)\n",
        "            pass\n",
        "tests/layers/test_layers_kept.py",
    ),
    "cpu_joined_copies_lose_a_row": Mutation(
        "numbarnn/engines/cpu/joined.py",
        "for i in range(copy.rows):",
        "for i in range(copy.rows - 1):",
        "tests/passes/test_prepared.py",
    ),
    "space_bias_order": Mutation(
        "numbarnn/weights/space.py",
        'order = ("W", "R", "b_w", "b_r", PER_UNIT, SCALAR, VECTOR, MATRIX, "W_hr")',
        'order = ("W", "R", "b_r", "b_w", PER_UNIT, SCALAR, VECTOR, MATRIX, "W_hr")',
        "tests/weights/test_weights.py",
    ),
    "gru_candidate_five_ulp": Mutation(
        "numbarnn/cells/gru.py",
        "n = tanh(ax[2] + r * q)\n    return (mix(n, z, h),), (r, z, n, q)",
        "n = tanh(ax[2] + r * q)\n    n = n + n * 5e-7\n    return (mix(n, z, h),), (r, z, n, q)",
        "tests/test_conformance.py",
    ),
    "scope_cta": Mutation(
        "numbarnn/cuda/ptx.py",
        '_four_words(f"ld.relaxed.gpu.global.v4.u32 {_FOUR_WORDS}',
        '_four_words(f"ld.relaxed.cta.global.v4.u32 {_FOUR_WORDS}',
        "tests/kernels/test_kernels_ptx.py",
    ),
    "load_not_coherent": Mutation(
        "numbarnn/cuda/ptx.py",
        '_four_words(f"ld.relaxed.gpu.global.v4.u32 {_FOUR_WORDS}',
        '_four_words(f"ld.global.nc.v4.u32 {_FOUR_WORDS}',
        "tests/kernels/test_kernels_ptx.py",
    ),
    "persistent_weights_of_the_other_unit": Mutation(
        "numbarnn/kernels/persistent/weights.py",
        "return lower(a, b) & mask, upper(a, b) & mask",
        "return upper(a, b) & mask, lower(a, b) & mask",
        "tests/simulated/test_persistent_simulated.py -k 'several_groups and registers'",
    ),
    "persistent_weights_not_aligned": Mutation(
        "numbarnn/passes/launches.py",
        "other = launch.tile.aligned and not _are_aligned(engine, weights, places)",
        "other = False",
        "tests/simulated/test_formed_simulated.py -k between_multiples",
    ),
    "persistent_no_barrier_before_loop": Mutation(
        "numbarnn/kernels/persistent/forward.py",
        "            fetch(now, gate_rows, owned, t, b0)\n        cuda.syncthreads()\n",
        "            fetch(now, gate_rows, owned, t, b0)\n",
        "tests/simulated/test_persistent_mutants.py -k slow",
    ),
    "persistent_fma_no_syncwarp2": Mutation(
        "numbarnn/kernels/persistent/fma.py",
        "(thread, sums):\n        shared, lane, warp = thread.shared, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32\n        cuda.syncwarp()",
        "(thread, sums):\n        shared, lane, warp = thread.shared, cuda.threadIdx.x % 32, cuda.threadIdx.x // 32",
        "tests/simulated/test_persistent_simulated.py -k 'several_groups and fma'",
    ),
    "persistent_bwd_reset_state": Mutation(
        "numbarnn/kernels/persistent/within_backward.py",
        "        if masked and thread.code_of[i] == RESET:\n            state = no_state()\n",
        "",
        "tests/simulated/test_persistent_simulated.py -k 'own_cells or masked'",
    ),
    "persistent_bwd_code_after": Mutation(
        "numbarnn/kernels/persistent/backward.py",
        "look_up(thread.code_after, options.step_mask, (slots + t + 2 - 2 * direction) * batch, b0, owned.end)",
        "look_up(thread.code_after, options.step_mask, (slots + t + 2) * batch, b0, owned.end)",
        "tests/simulated/test_persistent_simulated.py -k 'own_cells or masked'",
    ),
    "persistent_publish_nan": Mutation(
        "numbarnn/kernels/persistent/exchange.py",
        "store(array, index, nan if stored != stored else stored)",
        "store(array, index, stored)",
        "tests/simulated/test_persistent_simulated.py -k not_a_number",
    ),
    "persistent_limit_ignored": Mutation(
        "numbarnn/kernels/persistent/exchange.py",
        "if polls > role.limit or (",
        "if (",
        "tests/simulated/test_persistent_mutants.py -k never_publishes",
    ),
    "onnx_bias": Mutation(
        "numbarnn/weights/onnx.py",
        'found["b_w"], found["b_r"] = np.split(part["B"], 2)',
        'found["b_r"], found["b_w"] = np.split(part["B"], 2)',
        "tests/weights/test_weights_onnx.py",
    ),
    "onnx_state": Mutation(
        "numbarnn/weights/onnx.py",
        "        if kept and not runs:",
        "        if kept and not runs and exact:",
        "tests/weights/test_onnx_graphs.py -k state",
    ),
    "onnx_turned_input": Mutation(
        "numbarnn/weights/onnx.py",
        "for name in whole.inputs]",
        "for name in (*whole.inputs, *graph._makers)]",
        "tests/weights/test_onnx_graphs.py -k transpose",
    ),
    "torch_strides": Mutation(
        "numbarnn/torch/computation.py",
        "return y.transpose(0, 1), state",
        "return y.transpose(0, 1).contiguous(), state",
        "tests/pytorch/test_modules.py -k drawn_after",
    ),
    "mma_group_weights": Mutation(
        "numbarnn/kernels/persistent/mma.py",
        "_make_mma_group(tile, group * tile.gathered + chunk, tile.place_of(group) + chunk)",
        "_make_mma_group(tile, chunk, tile.place_of(group) + chunk)",
        "tests/simulated/test_persistent_simulated.py -k 'several_groups and mma'",
    ),
    "fma_shared_group_weights": Mutation(
        "numbarnn/kernels/persistent/fma.py",
        "skipped, unrolled = group * columns, 2",
        "skipped, unrolled = 0, 2",
        "tests/simulated/test_persistent_simulated.py -k 'several_groups and fma'",
    ),
    "check_limits_1000": Mutation(
        "numbarnn/bench/accuracy.py",
        "FUNCTION_ULPS = 3",
        "FUNCTION_ULPS = 3000",
        "tests/bench/test_check.py -k how_large",
    ),
    "problems_limits_1000": Mutation(
        "tests/support/cases.py",
        "ROUNDINGS, STORED = 12, 4",
        "ROUNDINGS, STORED = 12000, 4",
        "tests/test_problems.py",
    ),
    "reset_ignored_in_forward": Mutation(
        "numbarnn/kernels/step/unit_values.py",
        "        if masked and where.code == RESET:",
        "        if masked and where.code == 77:",
        "tests/test_conformance.py",
    ),
    "reset_ignored_in_backward": Mutation(
        "numbarnn/kernels/step/unit_values.py",
        "            if where.code == RESET:",
        "            if where.code == 77:",
        "tests/test_conformance.py",
    ),
    "gradient_passes_a_reset": Mutation(
        "numbarnn/kernels/step/unit_values.py",
        "            if where.code_after == RESET:",
        "            if where.code_after == 77:",
        "tests/test_conformance.py",
    ),
    "padding_not_carried": Mutation(
        "numbarnn/kernels/step/pointwise.py",
        "                    new_state = state\n",
        "                    pass\n",
        "tests/test_conformance.py",
    ),
    "skipped_stage_has_gradients": Mutation(
        "numbarnn/kernels/step/stages.py",
        "if masked and where.code == SKIP:",
        "if masked and where.code == 77:",
        "tests/test_conformance.py",
    ),
    "lent_memory_not_held": Mutation(
        "numbarnn/engines/gpu/buffer_pool.py",
        "self._pieces[name].append(memory)",
        "self._pieces[name].append(None)",
        "tests/passes/test_replays.py -k circle",
    ),
    "last_part_of_a_sum_lost": Mutation(
        "numbarnn/kernels/step/unit_sums.py",
        "            for part in range(PARTS):",
        "            for part in range(PARTS - 1):",
        "tests/test_conformance.py",
    ),
}


def applied(mutation, tree):
    """Make the mistake in a tree.

    Raises:
        ValueError: the text does not stand there once.
    """
    file, old, new = tree / mutation.file, mutation.old, mutation.new
    text = file.read_text(encoding="utf-8")
    if text.count(old) != 1:
        raise ValueError(f"{mutation.file} has the text {old!r} {text.count(old)} times, not once")
    file.write_text(text.replace(old, new), encoding="utf-8")


def fails(mutation, tree, limit):
    """(Whether its tests fail in a tree, seconds, the line that names the one that failed, else the last.)"""
    with tempfile.TemporaryDirectory() as caches:
        env = os.environ | {"NUMBA_CACHE_DIR": f"{caches}/numba", "NUMBARNN_CACHE_DIR": f"{caches}/cubins"}
        env |= {"PYTHONPATH": str(tree), "NUMBA_ENABLE_CUDASIM": str(int(mutation.simulated))}
        command = [sys.executable, "-m", "pytest", "-x", "-rf", "-p", "no:cacheprovider", *shlex.split(mutation.tests)]
        start = time.monotonic()
        try:
            ran = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return True, limit, "ran out of time"
        if ran.returncode not in (0, 1):  # neither passed nor failed: nothing was run
            raise RuntimeError(
                f"{' '.join(command)} ended with {ran.returncode}: {ran.stdout[-500:]}{ran.stderr[-500:]}"
            )
        lines = ran.stdout.strip().splitlines()
        line = next((line for line in lines if line.startswith("FAILED ")), lines[-1])
        return ran.returncode == 1, time.monotonic() - start, line


def main(argv=None):
    """Runs them; returns 1 if one escaped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print their names")
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds per run, after which a mistake counts as seen"
    )
    parser.add_argument("names", nargs="*", help="all if none is given")
    args = parser.parse_args(argv)
    if args.list:
        print("\n".join(MUTATIONS))
        return 0
    escaped, sound = 0, {}
    for name in args.names or MUTATIONS:
        mutation = MUTATIONS[name]
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", "__pycache__", ".venv", "venv"))
            if mutation.tests not in sound:
                sound[mutation.tests] = not fails(mutation, tree, args.limit)[0]
            applied(mutation, tree)
            seen, seconds, line = fails(mutation, tree, args.limit)
        verdict = ("caught" if seen else "ESCAPED") if sound[mutation.tests] else "its tests fail without it"
        escaped += verdict != "caught"
        print(f"{name:36} {verdict:10} {seconds:5.0f} s  {line[:90]}", flush=True)
    return int(escaped > 0)


if __name__ == "__main__":
    sys.exit(main())
