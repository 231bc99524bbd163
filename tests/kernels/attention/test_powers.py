"""`pipelib.kernels.attention.powers`: 2^x of multiply-adds, beside NumPy's in float64.

Not compiled as a whole: XLA would drop the rounding, as the module says.
"""

import numpy as np

from pipelib.kernels.attention import powers


def test_error_and_ends():
    exponents = np.linspace(-126.0, 127.0, 2_000_003).astype(np.float32)
    found = np.asarray(powers.by_multiply_adds(exponents), np.float64)
    error = np.abs(found / 2.0 ** exponents.astype(np.float64) - 1.0).max()
    assert 0.98 * powers.LARGEST_ERROR < error < powers.LARGEST_ERROR


def test_what_is_masked_is_zero_and_what_is_no_number_stays():
    exponents = np.float32([-np.inf, -1e30, -127.0, 127.0, 1e30, np.inf, np.nan])
    found = np.asarray(powers.by_multiply_adds(exponents))
    np.testing.assert_array_equal(found, [0, 0, 0, 2.0**127, 2.0**127, 2.0**127, np.nan])


def test_both_units_make_the_same():
    exponents = np.random.default_rng(0).normal(0.0, 30.0, (64, 128)).astype(np.float32)
    found = np.asarray(powers.powers_of_two(exponents))
    np.testing.assert_allclose(found, np.exp2(exponents), rtol=1.1 * powers.LARGEST_ERROR)
    assert (found[:, : powers.COLUMNS] != np.exp2(exponents[:, : powers.COLUMNS])).any()
