"""From a kernel to a `Program`: the only rooms that know JAX.

`trace` is the entry; `host` finds the kernels that a function calls, and `kernel` reads the
equation of one. `code` compiles a jaxpr into closures: for each equation it asks `primitives`,
which has the table by name. The functions of this table are in `copies` (accesses and copies),
`sync` (barriers), `tensor_core`, `flow` (control flow and scopes of memory) and `calls` (what the
trace does not look into); primitives without effects are `pure`'s. `views` turns a ref under
transforms into regions, and `layouts` and `banks` count what an access of shared memory takes.
`state` is what a trace knows as it goes, `source` finds where the kernel's file says something, and
`arithmetic` computes integers as the device does and costs of tensors.
"""
