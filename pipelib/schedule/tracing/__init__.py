"""The parts of `pipelib.schedule.trace`; nothing else imports them.

`state` is what a trace knows as it goes, `views` turns a ref under transforms into regions, `code`
compiles a jaxpr into closures, `copies` and `flow` make the closures of accesses and of control
flow, `source` says where things are written in the kernel's file, `arithmetic` is that of integers
and the cost of that on tensors. None of them knows a primitive by name: `trace` does, and hands
equations to them.
"""
