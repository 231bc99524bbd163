"""What a person found who read each finding on a foreign kernel: a fault, or a false alarm.

A reading is of one kind of finding in one test function of its project (or in a guide). It was made
from the kernel's source and from JAX's lowering (0.11.2). PTX asks for a proxy fence between
ordinary accesses of memory and those of the copy engine; JAX emits it for `commit_smem` alone, and
there for shared memory. Each case of JAX's tests of its race detection for Blackwell was compared
with what the test expects, and agrees.
"""

import enum
import re
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What a finding is."""

    FAULT = "fault"
    PLANTED = "fault that the test plants"
    LETTER = "fault by the letter of PTX"
    HARMLESS = "true, and harmless"
    FALSE = "false alarm"


@dataclass(frozen=True)
class Reading:
    """The verdict on findings of one kind, in tests whose name begins with `test`.

    That is the name of a function, or "Class::function", or of a file: "tests/file.py::". Where
    tests launch several kernels, `kernel` is the file and line at which the one that is meant
    begins: "file.py:3".
    """

    test: str
    kind: str
    verdict: Verdict
    why: str
    kernel: str = ""


_NO_FENCE = "The ordinary write and the copy have no commit_smem between them."
_NO_WAIT = "The kernel ends with a copy in flight: JAX's lowering adds no wait at the end."
_PART = "The test reads all of the array, and compares only the part that was loaded."
_EPILOGUE = (
    "Thread 0 writes its results over memory that thread 1's last product may still read: the named"
    " barrier that it passed says that this product began. With persistent=True it waits for the"
    " end."
)
_START = (
    "Causal, and k_start is beyond the diagonal: the loads begin at k_start's block, the causal"
    " loop at the diagonal's. So it takes steps that nothing loads, and the block hangs."
)
_BOTH = "Both blocks of the cluster write the same values to the same place."
_LOWERED = "The test only compiles the kernel, or runs it and compares nothing."
_SECOND = (
    "The second block's warp 1 waits for store_done_barrier, though it multiplies nothing. Nothing"
    " waits for this warp: if it slept through a product and both epilogues, the barrier would be a"
    " phase ahead, and the wait would not return. JAX's guide says that the wait is there since two"
    " arrivals without one trip assertions of the hardware. By PTX's letter a block may also end"
    " before the other's last arrival there: they meet at the end, but by a relaxed barrier."
)
_SCALES = (
    "Each block's own barrier counts the copy of the right operand's scales. The first block waits"
    " for its own only, and then reads the scales of both blocks."
)
_UNSET = "The test asks for races only: operands that it does not need hold what they may."
_DELAYED = (
    "The body has no wgmma_wait, and delay_release=1 frees a step's slot once the next product"
    " has begun. JAX's reference says that a wgmma waits for those before it; its lowering"
    " emits no such wait, and PTX only orders the two."
)
_MASKED = (
    "A tile is loaded a few rows shifted, so nothing wrote its first or last rows. jnp.where leaves"
    " out what is made of these rows, but first it goes through memory, a sum of each row, or from"
    " step to step of a loop."
)
_INTERPRETED = (
    "This form of the kernel is for JAX's interpreter, where a product is over when it returns."
)
_NO_ROWS = "A tile of which no row is stored is written to shared memory all the same."
_ROWS = (
    "Rows beyond the end of m, l and delta go into rows of the gradient that the store leaves out."
    " The reads go some hundred bytes too far, into memory of JAX's allocator."
)

READINGS = [
    Reading(
        "pipelining.md", "race", Verdict.FAULT,
        "All three threads store the whole of o_smem, and nothing orders a thread's store after"
        " the other's write of its half.",
    ),
    Reading("test_ragged_dot", "race", Verdict.LETTER, _DELAYED),
    Reading("tests/test_mosaic_gpu_ragged_dot.py::", "race", Verdict.LETTER, _DELAYED),
    Reading("tests/test_mosaic_gpu_ragged_dot_fp8.py::", "race", Verdict.LETTER, _DELAYED),
    Reading(
        "tests/test_mosaic_gpu_ragged_dot.py::", "race", Verdict.FAULT,
        "With delay_release=1 nobody arrives for a tile's last step. The slots are those of all"
        " tiles, and the next tile's first loads wait for nothing: one goes where the last product"
        " may still read.",
        "ragged_dot.py:374",
    ),
    *(
        Reading("tests/test_", "uninitialized-read", Verdict.HARMLESS, _MASKED, kernel)
        for kernel in (
            "gla_kernels.py:226",
            "gla_kernels.py:686",
            "vector_gate.py:601",
            "vector_gate_bwd.py:582",
        )
    ),
    Reading(
        "tests/test_mosaic_gpu_rwkv7.py::", "lost-store", Verdict.HARMLESS,
        "The block clears two slots, and has a step for one only.",
        "vector_gate_bwd.py:153",
    ),
    Reading(
        "tests/test_mosaic_gpu_gdn_hd256.py::", "lost-store", Verdict.HARMLESS,
        "Only the blocks of the first keys store dv and db. The others write both to shared memory"
        " all the same.",
        "gated_delta_rule_kb.py:908",
    ),
    *(
        Reading(test, "race", Verdict.HARMLESS, _INTERPRETED)
        for test in (
            "test_gla_dedicated_pipeline_in_the_interpreter",
            "test_gdn2_pipeline_in_the_interpreter",
            "test_kda_pipeline_in_the_interpreter",
        )
    ),
    Reading(
        "tests/test_mosaic_gpu_ragged_dot.py::", "lost-store", Verdict.HARMLESS, _NO_ROWS
    ),
    Reading(
        "test_flash_attention", "barrier-misuse", Verdict.FAULT,
        "Causal: the first tile has fewer steps than the ring has slots, and the loads of the"
        " others are in flight when the block ends.",
    ),
    Reading(
        "test_bwd_flash_attention", "barrier-misuse", Verdict.FAULT,
        "As test_flash_attention: the forward kernel of the same file.",
    ),
    Reading("test_autotune_configs", "race", Verdict.FAULT, _EPILOGUE),
    Reading("test_causal_mask", "race", Verdict.FAULT, _EPILOGUE),
    Reading("test_mask_api", "race", Verdict.FAULT, _EPILOGUE),
    Reading("test_mask_api", "deadlock", Verdict.FAULT, _START),
    Reading("test_mask_api", "barrier-misuse", Verdict.FAULT, _START),
    Reading("test_mask_api", "uninitialized-read", Verdict.FAULT, _START),
    Reading("test_non_power_of_two_q_seq_len", "out-of-bounds", Verdict.HARMLESS, _ROWS),
    Reading("test_small_sequences", "out-of-bounds", Verdict.HARMLESS, _ROWS),
    Reading(
        "test_quantized", "uninitialized-read", Verdict.HARMLESS,
        "A tile of few rows is loaded up to the next power of two, and the product takes the whole"
        " slot: each of the other rows makes only a row of the result that is not stored.",
    ),
    Reading("test_no_output", "missing-commit", Verdict.LETTER, _NO_FENCE),
    Reading("test_get_swap_with", "missing-commit", Verdict.LETTER, _NO_FENCE),
    Reading("test_copy_gmem_to_smem_predicate", "missing-commit", Verdict.LETTER, _NO_FENCE),
    Reading(
        "test_copy_gmem_to_smem_predicate", "deadlock", Verdict.FAULT,
        "A copy whose predicate is off arrives in JAX 0.11.2, and not in 0.12: the second block"
        " waits for ever there. The test is older than that change.",
    ),
    Reading(
        "test_copy_smem_to_gmem_predicate", "missing-commit", Verdict.LETTER,
        "An ordinary write of GMEM, then a copy to the same place: commit_smem, which stands"
        " between, is a fence for shared memory only.",
    ),
    Reading("test_smem_gmem_transposed_copies", "lost-store", Verdict.LETTER, _NO_WAIT),
    Reading("test_smem_aliasing", "lost-store", Verdict.LETTER, _NO_WAIT),
    Reading("test_loading_from_ref_union_works", "lost-store", Verdict.LETTER, _NO_WAIT),
    Reading("test_copy_gmem_to_smem", "uninitialized-read", Verdict.HARMLESS, _PART),
    Reading("test_async_prefetch", "uninitialized-read", Verdict.HARMLESS, _PART),
    Reading(
        "test_collective_arrival_count", "race", Verdict.HARMLESS,
        "Both blocks of the cluster write ones to the same array.",
    ),
    Reading(
        "test_carry_accumulate", "race", Verdict.HARMLESS,
        "Both compute threads write the same values, as its comment says.",
    ),
    Reading(
        "test_realistic_matmul_with_cluster", "race", Verdict.HARMLESS,
        "All four blocks of a cluster compute and store the same tile.",
    ),
    *(
        Reading(test, kind, Verdict.PLANTED, "The test wants JAX's interpreter to find it.")
        for test, kind in (
            ("test_interpret_core_map_with_race", "race"),
            ("test_barrier_multidimensional", "race"),
            ("test_race_in_sync_copy_smem_to_gmem_in_cluster", "race"),
            ("test_race_in_sync_copy_smem_to_gmem_in_cluster", "uninitialized-read"),
            ("test_not_waiting_for_all_barrier_completions_in_thread_raises", "barrier-misuse"),
            ("test_completing_barrier_twice_in_different_threads_raises", "barrier-misuse"),
            ("test_all_warps_must_wait_on_barrier", "deadlock"),
            ("test_mpmd_all_warps_must_wait_on_barrier", "deadlock"),
            ("test_warps_must_wait_on_barrier_evenly", "barrier-misuse"),
            ("test_mpmd_warps_must_wait_on_barrier_evenly", "barrier-misuse"),
            ("test_warps_of_warpgroup_must_wait_on_barrier_evenly", "deadlock"),
            ("test_mpmd_warps_of_warpgroup_must_wait_on_barrier_evenly", "deadlock"),
        )
    ),
    *(
        Reading(
            test, "resource", Verdict.HARMLESS,
            "A block of more than 1,024 lanes cannot be launched. Only JAX's interpreter runs it.",
        )
        for test in (
            "test_interpret_core_map",
            "test_interpret_kernel",
            "test_barrier_wait_in_multiple_threads_ok",
        )
    ),
    Reading(
        "test_cluster_ref_read", "race", Verdict.LETTER,
        "Each block reads the other's shared memory last, and nothing keeps the other from ending:"
        " CUDA asks for both to be there. JAX's lowering adds no barrier at the end.",
    ),
    Reading(
        "test_no_race_in", "lost-store", Verdict.HARMLESS,
        "The test writes shared memory to see that nothing races, and reads it never.",
    ),
    Reading("test_warp_specialized_smem_slice", "missing-commit", Verdict.LETTER, _NO_FENCE),
    Reading(
        "test_add_one_grid_pipelined_program_id", "out-of-bounds", Verdict.FAULT,
        "The grid is (4, 4), and the output has one row of blocks: three of four are outside.",
    ),
    Reading(
        "test_swizzled_blockspec_shapes", "out-of-bounds", Verdict.FAULT,
        "The grid is (2, 2), and the array has one row of blocks: two of four are outside.",
    ),
    Reading(
        "test_program_id_in_block_spec", "out-of-bounds", Verdict.FAULT,
        "The grid has two blocks and the index map takes rows by them, of which the array has one"
        " block's.",
    ),
    Reading(
        "test_out_of_bounds_tma_reads", "out-of-bounds", Verdict.PLANTED,
        "The test wants a load from beyond the end.",
    ),
    # For Blackwell.
    Reading(
        "RaggedDotTCGen05TestCase::test_ragged_dot", "race", Verdict.FAULT,
        "The first block multiplies again when its own sums have been read, and the second block"
        " may still read its own: store_done_barrier is each block's. JAX's commit d0d662d299"
        " mended this in the plain matrix product.",
    ),
    Reading(
        "RaggedDotTCGen05TestCase::test_ragged_dot", "barrier-misuse", Verdict.FAULT,
        "The same: the first block waits for nothing of the second one, whose threads may be two"
        " phases behind.",
    ),
    Reading(
        "RaggedDotTCGen05TestCase::test_ragged_dot", "lost-store", Verdict.HARMLESS, _NO_ROWS
    ),
    Reading("test_blackwell_matmul", "lost-store", Verdict.LETTER, _NO_WAIT),
    Reading(
        "MatmulTutorialTCGen05Test::test_matmul4", "race", Verdict.LETTER,
        "The first block waits for the second one's next copies before it overwrites that block's"
        " sums. They start after the sums have been read, but a copy's arrival has no fence of the"
        " tensor core.",
    ),
    Reading(
        "MatmulTutorialTCGen05Test::test_matmul5", "barrier-misuse", Verdict.FAULT, _SECOND
    ),
    Reading(
        "MatmulTutorialTCGen05Test::test_matmul6", "barrier-misuse", Verdict.FAULT, _SECOND
    ),
    Reading("test_collective_scaled_matmul", "race", Verdict.FAULT, _SCALES),
    Reading("test_collective_scaled_matmul", "barrier-misuse", Verdict.FAULT, _SCALES),
    Reading(
        "test_simple_collective_matmul", "race", Verdict.LETTER,
        "The second block tells the first one that its operand is in TMEM by a ClusterBarrier"
        " without orders_tensor_core.",
    ),
    Reading("test_warp_specialized_tmem_slice", "missing-commit", Verdict.LETTER, _NO_FENCE),
    Reading("test_tmem_store_load_collective", "race", Verdict.HARMLESS, _BOTH),
    Reading("test_tmem1", "race", Verdict.HARMLESS, _BOTH),
    Reading("test_copy_gmem_to_smem_replicated", "race", Verdict.HARMLESS, _BOTH),
    *(
        Reading(test, kind, Verdict.HARMLESS, _LOWERED)
        for test, kind in (
            ("test_async_copy_scales_to_tmem_warp_semantics", "uninitialized-read"),
            ("test_tmem_alloc_within_warp_map", "race"),
            ("test_tmem_alloc_within_warp_map", "uninitialized-read"),
            ("test_async_copy_sparse_metadata_smem_to_tmem_warp_semantics", "lost-store"),
            ("test_async_copy_sparse_metadata_smem_to_tmem_warp_semantics", "missing-commit"),
        )
    ),
    Reading("TCGen05RaceDetectionTest::", "uninitialized-read", Verdict.HARMLESS, _UNSET),
    Reading("TCGen05RaceDetectionTest::", "lost-store", Verdict.HARMLESS, _UNSET),
    *(
        Reading(
            f"TCGen05RaceDetectionTest::{test}", kind, Verdict.PLANTED,
            "The test wants JAX's interpreter to find it.",
        )
        for test, kind in (
            ("test_store_load_synchronization", "race"),
            ("test_store_then_mma_requires_commit_tmem", "race"),
            ("test_overlapping_stores_require_commit_tmem", "race"),
            ("test_tmem_load_then_overwrite_requires_wait", "race"),
            ("test_reading_mma_accumulator_requires_arrive_and_wait", "race"),
            ("test_commit_arrive_tracks_only_prior_mmas", "race"),
            ("test_store_to_accumulator_while_mma_in_flight", "race"),
            ("test_cross_thread_mma_pipeline_multiparent_has_race", "race"),
            ("test_smem_write_then_mma_requires_commit_smem", "missing-commit"),
            ("test_overwriting_tmem_operand_while_mma_in_flight", "race"),
            ("test_overwriting_copy_source_smem", "race"),
            ("test_reading_copied_tmem_requires_commit_arrive", "race"),
            ("test_unordered_overwrites_of_copied_tmem", "race"),
            ("test_copy_into_accumulator_while_mma_in_flight", "race"),
            ("test_cross_thread_handoff_requires_producer_wait", "race"),
            ("test_commit_arrive_does_not_cover_other_threads_mma", "race"),
        )
    ),
]  # fmt: skip


def reading_of(test: str, kind: str, kernel: str = "") -> Reading | None:
    """The reading of a finding in a kernel of a test; None if nobody has read it."""
    *_, owner, name = ["", *test.split("::")]
    if name == "cells":
        name = re.split(r"[/:]", test)[-3]
    names = name, f"{owner}::{name}"
    fitting = [
        r
        for r in READINGS
        if r.kind == kind
        and f"/{kernel}".endswith(r.kernel and f"/{r.kernel}")
        and any(each.startswith(r.test) for each in names)
    ]
    return max(fitting, key=lambda reading: (reading.kernel, len(reading.test)), default=None)
