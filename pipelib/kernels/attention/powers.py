"""`powers_of_two`: exponentials that two units of an SM make, where one of them is the slowest.

The model. An SM makes 16 exponentials in a cycle, and 128 multiply-adds. With a soft cap, a step
needs two numbers of the first unit for each score, tanh and exp2. With heads of 128 that takes as
many cycles as both products, and nothing is left to hide what is between them. So the exponentials
of a step's first `COLUMNS` columns are made of multiply-adds::

    2^x = 2^n 2^f       n = x rounded, by an addition of 1.5 2^23       -1/2 <= f <= 1/2
    2^f = 1 + c1 f + c2 f^2 + c3 f^3             2^n: n is added to the exponent's bits

Ten operations replace one that takes the other unit eight times as long as each of them. So little
is gained by itself; what is gained is that ptxas finds work for both units. Of a step of 128 keys,
8 columns are worth 8% dense and 5% causal on an H200, 16 are worth 4% and 1%, and 32 cost 5% or
nothing. With heads of 64 or 256, and in gradients, 8 gain nothing or lose.

XLA would drop the addition and the subtraction of 1.5 2^23, and so f. Mosaic GPU does not; JAX's
interpreter, which runs kernels by XLA, makes all exponentials by `exp2`.

The polynomial's relative error is at most `LARGEST_ERROR`, a 20th of what rounding to bfloat16 may
take. It is exact at f = 0. So x = -127, to which less is raised, gives 0: its bits are those of
1, less 127 in the exponent. More than 127 is lowered to 127, and no infinity arises.

Sources: W. J. Cody and W. Waite, "Software Manual for the Elementary Functions", 1980, for the
reduction; FlashAttention-4 (2025) for exponentials on both units. The coefficients are those of
the least relative error of a polynomial that is 1 at 0, by Lawson's iteration on 4,001 points.
"""

import jax
import jax.numpy as jnp
from jax import lax

#: The size of a head that gains.
HEAD_DIM = 128
#: Columns of a step that multiply-adds make: a lane has two of each row.
COLUMNS = 8
#: The coefficients of 2^f, the highest first.
COEFFICIENTS = (0.05500895124219555, 0.24221100969447373, 0.6932829304710769, 1.0)
#: The largest error of the polynomial, relative to 2^f.
LARGEST_ERROR = 1.02e-4
#: A float32 of at most 2^22 that is added to this is rounded to an integer.
_ROUNDS = 1.5 * 2.0**23
#: The largest exponent of a float32, and its bits behind the exponent.
_LARGEST, _FRACTION_BITS = 127.0, 23


def powers_of_two(exponents: jax.Array) -> jax.Array:
    """2 to each power: float32 [rows, columns], of both units."""
    parts = by_multiply_adds(exponents[:, :COLUMNS]), jnp.exp2(exponents[:, COLUMNS:])
    return jnp.concatenate(parts, axis=1)


def by_multiply_adds(exponents: jax.Array) -> jax.Array:
    """2 to each power: float32, 0 for -127 and less, 2^127 for 127 and more."""
    limited = jnp.minimum(jnp.maximum(exponents, -_LARGEST), _LARGEST)
    rounded = limited + _ROUNDS
    f = limited - (rounded - _ROUNDS)
    power = f * COEFFICIENTS[0]
    for coefficient in COEFFICIENTS[1:-1]:
        power = (power + coefficient) * f
    power += COEFFICIENTS[-1]
    n = lax.shift_left(_bits(rounded), jnp.int32(_FRACTION_BITS))
    return lax.bitcast_convert_type(_bits(power) + n, jnp.float32)


def _bits(number: jax.Array) -> jax.Array:
    """The bits of a float32."""
    return lax.bitcast_convert_type(number, jnp.int32)
