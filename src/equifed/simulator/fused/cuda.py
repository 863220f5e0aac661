"""Local training on a GPU: all steps of all lanes in one launch of a Triton kernel, one program for each model."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from equifed.simulator.fused.problem import LOSSES, Network, Problem

PRODUCTS, OUTPUTS = 20_000, 256
"""Multiplications of a row's forward pass, and number of outputs, up to which the kernels are faster than torch's
batched products."""
SMALL = 32
"""Largest width of a network with weights in registers; wider ones are processed in chunks."""
TILE = 64
"""Largest number of rows processed at once."""
FLAT = 16
"""Largest number of outputs of a one-layer network that are computed one by one, without matrix products."""
FEATURES = 8192
"""Largest number of features that such a network processes at once."""
PROGRAMS = 528
"""Largest number of programs at a time if each needs scratch memory: four per multiprocessor of an H100 or H200."""
BLOCK = 256
"""Number of positions for which a program looks up rows at once."""
ORDER_BLOCK = 256
"""Number of positions of an order computed by one program."""


@functools.cache
def has_triton() -> bool:
    """Return True if Triton is installed, which comes with most CUDA builds of torch."""
    return importlib.util.find_spec("triton") is not None


def obstacle(network: Network) -> str:
    """Return why these kernels cannot train a network: "triton" if that is not installed, "wide" if torch's products
    are faster, or empty."""
    if not has_triton():
        return "triton"
    return "wide" if network.products > PRODUCTS or network.widths[-1] > OUTPUTS else ""


def features(x: Tensor) -> Tensor:
    """Return rows [rows, inputs] contiguous, as the kernels read them."""
    return x.contiguous()


def train(problem: Problem, theta: Tensor, state: Tensor, taken: Tensor, epochs: range) -> None:
    """Train all lanes for these epochs; update parameters [L, U, size], optimiser state [L, U, moments, size] and the
    number of steps of each lane [L] in place."""
    assert theta.is_contiguous()
    assert state.is_contiguous()
    assert epochs.step == 1
    lanes, models, _ = theta.shape
    if not lanes or not epochs:
        return
    from equifed.simulator.fused import cuda_kernels as kernels

    network, local = problem.network, problem.local
    plan = plan_of(network, problem.batch_size)
    adam = local.optimizer == "adam"
    # b1^t and b2^t before the first step: Adam divides by one minus them, which needs more than float32's precision
    powers = torch.stack([beta ** taken.double() for beta in (0.9, 0.999)], 1) if adam else None
    weighed, chosen = (0 if values is None else values.shape[-1] for values in (problem.weights, problem.chosen))
    shift, factor = problem.scaling or (None, None)
    programs = lanes * models if plan.small else min(lanes * models, PROGRAMS)
    kind = torch.int32 if plan.small else torch.float32
    scratch = torch.empty(programs * plan.scratch, dtype=kind, device=theta.device)
    kernel = kernels.train_small if plan.small else kernels.train_wide
    with torch.cuda.device_of(theta):
        kernel[(programs,)](
            theta, state, problem.x, problem.y, problem.index, problem.start, problem.n, problem.keys, shift, factor,
            problem.weights, problem.mu, problem.centre, problem.linear, problem.chosen, powers, scratch,
            models=models, weights_row=weighed, chosen_row=chosen, first=epochs.start, last=epochs.stop,
            batch=problem.batch_size, rate=problem.rate, decay=local.weight_decay, momentum=local.momentum,
            RULE=2 if adam else int(local.momentum > 0), num_warps=plan.warps, num_stages=1, enable_fp_fusion=True,
            **plan.constants, **({} if plan.small else {"every": lanes * models}),
        )  # fmt: skip
    steps = -(-problem.n // problem.batch_size) if problem.batch_size else (problem.n > 0)
    taken += len(epochs) * steps


def orders(keys: Tensor, epoch: int, n: Tensor, longest: int) -> Tensor:
    """Return the order of each lane's n rows in this epoch [L, longest], int32, as in `equifed.shuffle`; 0 beyond the
    rows. Keys are int64 with the bits of a uint64."""
    from equifed.simulator.fused import cuda_kernels as kernels

    result = torch.empty(len(keys), longest, dtype=torch.int32, device=keys.device)
    if result.numel():
        with torch.cuda.device_of(keys):
            grid = (len(keys), -(-longest // ORDER_BLOCK))
            kernels.orders[grid](keys, epoch, n, result, longest, BLOCK=ORDER_BLOCK, enable_fp_fusion=True)
    return result


@dataclass(frozen=True)
class Plan:
    """The way a network is trained, for which its kernel is compiled."""

    small: bool
    """True if the weights stay in registers."""
    warps: int
    """Number of warps (groups of 32 threads) per model."""
    constants: dict[str, object]
    """The kernel's constants."""
    scratch: int = 0
    """Length of a program's scratch memory."""


@functools.cache
def plan_of(network: Network, batch_size: int) -> Plan:
    """Return the plan for batches of this size; 0: all rows."""
    widths, layers = network.widths, len(network.widths) - 1
    pads = [max(16, _next_power(width)) for width in widths]
    rows = _next_power(batch_size or TILE)
    if layers == 1 and widths[1] <= FLAT and pads[0] * widths[1] <= 2 * FEATURES:
        rows = min(rows, max(1, FEATURES // pads[0]))
        many = pads[0] * widths[1] > FEATURES
        warps = 1 if rows * pads[0] <= 512 else 2 if rows * pads[0] <= 1024 else 8 if many else 4
        parts: dict[str, object] = {"PARTS": widths[1], "BIASED": network.biases * widths[1], "PADS": tuple(pads)}
        return _plan_registers(network, batch_size, rows, warps, parts)
    rows = max(16, min(rows, TILE))  # products of matrices need at least 16
    if max(pads) <= SMALL:
        pads[-1] = 1 if widths[-1] == 1 else pads[-1]
        warps = 1 if rows * max(pads) <= 512 else 2
        parts = {"PARTS": layers, "BIASED": network.biases, "PADS": tuple(pads)}
        return _plan_registers(network, batch_size, rows, warps, parts)
    pitches = tuple(-(-width // 4) * 4 for width in widths)  # aligned, so that loads are wide
    sizes = [network.size, *(rows * pitch for pitch in pitches[:-1]), *(rows * pitch for pitch in pitches[1:]),
             *(inputs * pitch for inputs, pitch in zip(widths, pitches[1:], strict=False))]  # fmt: skip
    places = tuple(itertools.accumulate(-(-size // 4) * 4 for size in sizes))
    constants = {
        "BIASES": network.biases,
        "TILE": rows,
        "SPANS": tuple(min(64, _next_power(width)) for width in widths),
        "PITCHES": pitches,
        "INPUTS": places[:layers],
        "SLOPES": places[layers : 2 * layers],
        "TURNED": places[2 * layers : 3 * layers],
        "SCRATCH": places[-1],
        "LAST": _next_power(widths[-1]),
        "UNROLL": 8,
    }
    return Plan(False, rows // 16, {**_constants(network), **constants}, places[-1])


def _plan_registers(network: Network, batch_size: int, rows: int, warps: int, parts: dict[str, object]) -> Plan:
    """Return the plan for weights in registers."""
    block = BLOCK if 0 < batch_size <= rows else 0
    held = rows * _next_power(network.widths[0]) // (32 * warps)  # features in each thread's registers
    ahead = block > 0 and held <= (8 if len(network.widths) > 2 else 32)
    return Plan(True, warps, {**_constants(network), **parts, "TILE": rows, "BLOCK": block, "AHEAD": ahead}, 3 * block)


def _constants(network: Network) -> dict[str, object]:
    """Return the constants of both kernels."""
    layers = zip(network.widths, network.widths[1:], network.biases, strict=False)
    starts = itertools.accumulate(((inputs + bias) * outputs for inputs, outputs, bias in layers), initial=0)
    return {
        "WIDTHS": network.widths,
        "OFFSETS": tuple(starts)[:-1],
        "ACTS": network.activations,
        "LAYERS": len(network.widths) - 1,
        "SIZE": network.size,
        "LOSS": LOSSES[network.loss],
    }


def _next_power(number: int) -> int:
    """Return the next power of two."""
    return 1 << max(number - 1, 0).bit_length()
