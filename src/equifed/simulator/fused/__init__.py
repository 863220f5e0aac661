"""The fused path: the whole local training of a lane in one compiled loop, on the CPU or on a GPU.

`problem` says what is computed, `cpu` (compiled by numba, kept on disk by `native`) and `cuda` (Triton) compute it,
`training` makes the problem from a phase and puts the trained parameters back.
"""
