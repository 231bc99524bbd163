"""From a kernel to a `Program`: the only rooms that know JAX.

`trace` has the function for each primitive, by its name, and hands equations to the other modules,
which know none by name. `code` compiles a jaxpr into closures; `copies` and `flow` make the
closures of accesses and of control flow. `views` turns a ref under transforms into regions, and
`layouts` and `banks` count what an access of shared memory takes. `state` is what a trace knows as
it goes, `source` finds where the kernel's file says something, and `arithmetic` computes integers
as the device does and costs of tensors.
"""
