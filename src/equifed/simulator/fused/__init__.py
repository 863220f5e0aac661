"""The fused path: the whole local training of a lane in one compiled loop, on the CPU or on a GPU.

`problem` defines the computation, `cpu` (compiled by numba, stored on disk by `native`) and `cuda` (Triton) carry it
out, `training` makes the problem from a phase and returns the trained parameters.
"""
