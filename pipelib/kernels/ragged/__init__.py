"""`ragged_dot`: the products of groups of rows, each with a matrix of its own.

The model. The rows of `lhs` come in groups, one after another; a mixture of experts has one for
each expert. The sizes of the groups are known only on the GPU. Each module has one part:

==========  ==================================================================================
`visits`    which tiles of rows there are, by the sizes of the groups
`call`      `ragged_dot` itself: what it refuses, its configuration, its gradients
`forward`   the kernel: a pipeline for each tile, one chain of them for each block
`weights`   the kernel of the matrices' gradients: the rows of a group are its steps
==========  ==================================================================================
"""

from pipelib.kernels.ragged.call import ragged_dot

__all__ = ["ragged_dot"]
