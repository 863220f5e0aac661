"""The loop of the fused kernel for the CPU, in the subset of Python that numba compiles.

Python does not call these functions: `cpu` calls machine code made from them, and other numba kernels use parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from equifed.simulator.fused.cpu import ACTIVATION, IN_STRIDE, INPUTS, OUT_STRIDE, OUTPUTS, TILE, VALUES

f32, i32, u32, u64 = np.float32, np.int32, np.uint32, np.uint64
LINE = np.uint64(16)  # numbers in a cache line
ONE, TWO, THREE, FOUR = (np.uint64(number) for number in range(1, 5))
# without "nnan" and "ninf", so that a diverged model has NaN or infinity
OPTIONS: dict[str, Any] = {
    **{"nogil": True, "boundscheck": False, "error_model": "numpy"},
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}
# stored by `native`, because numba's cache does not notice changed constants of other modules
_compiled: Any = njit(**OPTIONS)
_inlined: Any = njit(inline="always", boundscheck=False, error_model="numpy")


# -- numbers -----------------------------------------------------------------------------------------------------------


@_inlined
def _exp(v):  # type: ignore[no-untyped-def]
    """Compute e^v as 2^k times a polynomial, in operations that the compiler vectorises; v is clipped to +-87."""
    scaled = min(max(v * f32(1.44269504), f32(-126.0)), f32(126.0))
    k = np.floor(scaled + f32(0.5))
    # v - k ln 2, with ln 2 in two parts to keep precision
    r = min(max(v, f32(-87.336)), f32(87.336)) - k * f32(0.693359375) + k * f32(2.12194440e-4)
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1)
    return p * i32((i32(k) + i32(127)) << i32(23)).view(np.float32)


@_inlined
def sigmoid(v):  # type: ignore[no-untyped-def]
    return f32(1) / (f32(1) + _exp(-v))


@_inlined
def tanh(v):  # type: ignore[no-untyped-def]
    """Compute tanh by the exponential, or near zero, where that would lose digits, by a polynomial."""
    square = v * v
    p = f32(-5.70498872745e-3)
    p = p * square + f32(2.06390887954e-2)
    p = p * square + f32(-5.37397155531e-2)
    p = p * square + f32(1.33314422036e-1)
    p = p * square + f32(-3.33332819422e-1)
    near = p * square * v + v
    far = f32(1) - f32(2) / (_exp(f32(2) * v) + f32(1))
    return near if square < f32(0.390625) else far


@_inlined
def _mixed(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> u64(27))) * u64(0x94D049BB133111EB)
    return z ^ (z >> u64(31))


@_inlined
def _part(key, turn):  # type: ignore[no-untyped-def]
    return u32(_mixed(key + u64(0x9E3779B97F4A7C15) * u64(turn + 1)) & u64(0xFFFFFFFF))


@_inlined
def _moved(cell, other, key, side):  # type: ignore[no-untyped-def]
    h = u32(other ^ key)
    h = u32(u32(h ^ u32(h >> u32(16))) * u32(0x7FEB352D))
    h = u32(u32(h ^ u32(h >> u32(15))) * u32(0x846CA68B))
    moved = u32(cell + u32((u64(h) * u64(side)) >> u64(32)))
    return min(moved, u32(moved - u32(side)))  # modulo the side: negative values wrap around


@_compiled
def fill_order(key, epoch, n, l, r, out):  # type: ignore[no-untyped-def]
    """Write `shuffle.order` of an epoch to out[:n]; l and r are scratch."""
    if n == 0:
        return
    key = _mixed((key ^ u64(epoch)) + u64(0x9E3779B97F4A7C15))
    a = i32(np.ceil(np.sqrt(np.float64(n))))
    b = (n + a - 1) // a
    bits = 0
    while n >> (bits + 1):
        bits += 1
    turns = max(6, 2 * ((18 + max(bits, 1) - 1) // max(bits, 1)))
    cell = 0
    for i in range(a):
        for j in range(min(b, n - cell)):
            l[cell + j] = u32(i)
            r[cell + j] = u32(j)
        cell += min(b, n - cell)
    for turn in range(0, turns, 2):
        even, odd = _part(key, turn), _part(key, turn + 1)
        for p in range(n):
            l[p] = _moved(l[p], r[p], even, a)
            r[p] = _moved(r[p], l[p], odd, b)
    for p in range(n):
        out[p] = i32(l[p]) * i32(b) + i32(r[p])
    for p in range(n):
        while out[p] >= n:
            left, right = u32(out[p] // b), u32(out[p] % b)
            for turn in range(0, turns, 2):
                left = _moved(left, right, _part(key, turn), a)
                right = _moved(right, left, _part(key, turn + 1), b)
            out[p] = i32(left) * i32(b) + i32(right)


@_compiled
def orders(keys, n, l, r, out, epoch):  # type: ignore[no-untyped-def]
    """Write the orders of many lanes to out[lane, :n[lane]]; l and r are scratch."""
    for lane in range(len(keys)):
        fill_order(keys[lane], epoch, n[lane], l, r, out[lane])


@intrinsic
def _fetch(typing: Any, array: Any, position: Any) -> Any:
    """Prefetch the cache line at this position of an array."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        values = context.make_array(signature.args[0])(context, builder, given[0])
        address = builder.bitcast(builder.gep(values.data, [given[1]]), cgutils.voidptr_t)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, *(ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.uint64), generate


# -- a step ------------------------------------------------------------------------------------------------------------


@_compiled
def _forward(layers, weights, x, lines, values, starts, rows):  # type: ignore[no-untyped-def]
    """Write all activations of a tile of rows to `values`, from the features in x, where each row starts at `lines`."""
    source, rows = u64(0), u64(rows)
    for number in range(len(layers)):
        inputs, outputs, in_stride, out_stride, weight, has_bias, bias, by_output, activation, start = layers[number]
        target = start * u64(TILE)
        came, at = (values, starts) if number else (x, lines)
        if number:
            for row in range(rows):
                starts[row] = source + row * in_stride
        if by_output:
            for o in range(outputs):
                line, added = weight + o * in_stride, weights[bias + o] if has_bias else f32(0)
                for row in range(u64(0), rows - rows % FOUR, FOUR):
                    a, b, c, d = at[row], at[row + ONE], at[row + TWO], at[row + THREE]
                    out, t0, t1, t2, t3 = target + row * out_stride + o, added, added, added, added
                    for i in range(in_stride):
                        w = weights[line + i]
                        t0 += came[a + i] * w
                        t1 += came[b + i] * w
                        t2 += came[c + i] * w
                        t3 += came[d + i] * w
                    values[out], values[out + out_stride] = t0, t1
                    values[out + TWO * out_stride], values[out + THREE * out_stride] = t2, t3
                for row in range(rows - rows % FOUR, rows):
                    a, total = at[row], added
                    for i in range(in_stride):
                        total += came[a + i] * weights[line + i]
                    values[target + row * out_stride + o] = total
        else:
            for row in range(rows):
                first, out = at[row], target + row * out_stride
                for o in range(out_stride):
                    values[out + o] = weights[bias + o] if has_bias else f32(0)
                for i in range(u64(0), inputs - inputs % FOUR, FOUR):
                    v0, v1 = came[first + i], came[first + i + ONE]
                    v2, v3 = came[first + i + TWO], came[first + i + THREE]
                    a = weight + i * out_stride
                    b, c, d = a + out_stride, a + TWO * out_stride, a + THREE * out_stride
                    for o in range(out_stride):
                        near, far = v0 * weights[a + o] + v1 * weights[b + o], v2 * weights[c + o] + v3 * weights[d + o]
                        values[out + o] += near + far
                for i in range(inputs - inputs % FOUR, inputs):
                    value, line = came[first + i], weight + i * out_stride
                    for o in range(out_stride):
                        values[out + o] += value * weights[line + o]
        if activation == 1:
            for q in range(target, target + rows * out_stride):
                values[q] = tanh(values[q])
        elif activation == 2:
            for q in range(target, target + rows * out_stride):
                values[q] = max(values[q], f32(0))
        elif activation == 3:
            for q in range(target, target + rows * out_stride):
                values[q] = sigmoid(values[q])
        if activation and (by_output or activation == 3):
            for row in range(rows):
                for o in range(outputs, out_stride):
                    values[target + row * out_stride + o] = f32(0)
        source = target


@_compiled
def output_slope(loss, outputs, stride, z, at, labels, scale, rows, out):  # type: ignore[no-untyped-def]
    """Write the gradient of each row's weighted loss by the network's outputs to `out`; `scale` holds weights / B."""
    rows = u64(rows)
    if loss == 1:
        for row in range(rows):
            out[row] = scale[row] * (sigmoid(z[at + row]) - labels[row])
    elif loss == 3:
        for row in range(rows):
            out[row] = scale[row] * f32(2) * (z[at + row] - labels[row])
    else:
        for row in range(rows):
            line, total = at + row * stride, f32(0)
            top = z[line]
            for o in range(outputs):
                top = max(top, z[line + o])
            for o in range(outputs):
                out[row * stride + o] = _exp(z[line + o] - top)
            for o in range(outputs):
                total += out[row * stride + o]
            factor = scale[row] / total
            for o in range(outputs):
                out[row * stride + o] *= factor
            for o in range(outputs, stride):
                out[row * stride + o] = f32(0)
            out[row * stride + u64(labels[row])] -= scale[row]


@_compiled
def _backward(layers, weights, x, lines, values, starts, rows, slope, spare, gradient):  # type: ignore[no-untyped-def]
    """Add a tile's gradient by all parameters to `gradient`, from that by the outputs in `slope`."""
    rows = u64(rows)
    for number in range(len(layers) - 1, -1, -1):
        inputs, outputs, in_stride, out_stride, weight, has_bias, bias, by_output, _, _ = layers[number]
        source = layers[number - 1, VALUES] * u64(TILE) if number else u64(0)
        came, at = (values, starts) if number else (x, lines)
        if number:
            for row in range(rows):
                starts[row] = source + row * in_stride
        if by_output:
            for o in range(outputs):
                line = weight + o * in_stride
                for row in range(u64(0), rows - rows % FOUR, FOUR):
                    a, b, c, d = at[row], at[row + ONE], at[row + TWO], at[row + THREE]
                    place = row * out_stride + o
                    s0, s1 = slope[place], slope[place + out_stride]
                    s2, s3 = slope[place + TWO * out_stride], slope[place + THREE * out_stride]
                    for i in range(in_stride):
                        gradient[line + i] += (s0 * came[a + i] + s1 * came[b + i]) + (
                            s2 * came[c + i] + s3 * came[d + i]
                        )
                for row in range(rows - rows % FOUR, rows):
                    a, s0 = at[row], slope[row * out_stride + o]
                    for i in range(in_stride):
                        gradient[line + i] += s0 * came[a + i]
                if has_bias:
                    total = f32(0)
                    for row in range(rows):
                        total += slope[row * out_stride + o]
                    gradient[bias + o] += total
        else:
            for row in range(u64(0), rows - rows % FOUR, FOUR):
                p0, p1, p2, p3 = at[row], at[row + ONE], at[row + TWO], at[row + THREE]
                a = row * out_stride
                b, c, d = a + out_stride, a + TWO * out_stride, a + THREE * out_stride
                for i in range(inputs):
                    v0, v1, v2, v3 = came[p0 + i], came[p1 + i], came[p2 + i], came[p3 + i]
                    line = weight + i * out_stride
                    for o in range(out_stride):
                        gradient[line + o] += (v0 * slope[a + o] + v1 * slope[b + o]) + (
                            v2 * slope[c + o] + v3 * slope[d + o]
                        )
            for row in range(rows - rows % FOUR, rows):
                first, a = at[row], row * out_stride
                for i in range(inputs):
                    value, line = came[first + i], weight + i * out_stride
                    for o in range(out_stride):
                        gradient[line + o] += value * slope[a + o]
            if has_bias:
                for row in range(rows):
                    for o in range(out_stride):
                        gradient[bias + o] += slope[row * out_stride + o]
        if number == 0:
            return
        for q in range(rows * in_stride):
            spare[q] = f32(0)
        if by_output:
            for row in range(rows):
                for o in range(outputs):
                    d, line = slope[row * out_stride + o], weight + o * in_stride
                    for i in range(in_stride):
                        spare[row * in_stride + i] += d * weights[line + i]
        else:
            for row in range(rows):
                for i in range(inputs):
                    line, total = weight + i * out_stride, f32(0)
                    for o in range(out_stride):
                        total += slope[row * out_stride + o] * weights[line + o]
                    spare[row * in_stride + i] = total
        activation = layers[number - 1, ACTIVATION]
        if activation == 1:
            for q in range(rows * in_stride):
                spare[q] *= f32(1) - values[source + q] * values[source + q]
        elif activation == 2:
            for q in range(rows * in_stride):
                spare[q] = spare[q] if values[source + q] > f32(0) else f32(0)
        else:
            for q in range(rows * in_stride):
                spare[q] *= values[source + q] * (f32(1) - values[source + q])
        slope, spare = spare, slope


@_compiled
def move(weights, gradient, state, taken, adam, momentum, decay, rate, mu, centre, linear):  # type: ignore[no-untyped-def]
    """Carry out an optimiser's step, as in `equifed.training.apply_optimizer`, with the loss's terms that do not depend
    on rows. taken: Adam's steps including this one."""
    size = len(weights)
    if len(centre):
        for p in range(size):
            gradient[p] += mu * (weights[p] - centre[p])
    if len(linear):
        for p in range(size):
            gradient[p] += linear[p]
    if decay != f32(0):
        for p in range(size):
            gradient[p] += decay * weights[p]
    if adam:
        c1, c2 = f32(1 - 0.9**taken), f32(1 - 0.999**taken)
        for p in range(size):
            g = gradient[p]
            m = f32(0.9) * state[0, p] + f32(1 - 0.9) * g
            v = f32(0.999) * state[1, p] + f32(1 - 0.999) * g * g
            state[0, p] = m
            state[1, p] = v
            weights[p] -= rate * (m / c1) / (np.sqrt(v / c2) + f32(1e-8))
    elif momentum != f32(0):
        for p in range(size):
            state[0, p] = momentum * state[0, p] + gradient[p]
            weights[p] -= rate * state[0, p]
    else:
        for p in range(size):
            weights[p] -= rate * gradient[p]


# -- lanes -------------------------------------------------------------------------------------------------------------


@_compiled
def lanes(  # type: ignore[no-untyped-def]
    layers, place, loss, adam, momentum, decay, rate, batch, first_epoch, last_epoch,
    x, width, y, index, start, n, keys, shift, factor,
    weights, mu, centre, linear, chosen, theta, state, taken,
    order, left, right, rows, lines, starts, values, labels, scale, slope, spare, w, g, c, h, s,
    begin, end,
):  # fmt: skip
    """Train lanes begin to end; see `Problem` for the arrays; missing ones are empty. `order` to `s`: scratch."""
    models, moments, size = theta.shape[1], state.shape[2], w.shape[1]
    features, in_stride, width = layers[0, INPUTS], layers[0, IN_STRIDE], u64(width)
    outputs, out_stride, final = layers[-1, OUTPUTS], layers[-1, OUT_STRIDE], layers[-1, VALUES] * u64(TILE)
    copied = len(shift) > 0 or width != in_stride
    seen = values if copied else x  # rows that need scaling or padding are copied to the start of values
    for lane in range(begin, end):
        count = n[lane]
        if count == 0:
            continue
        for model in range(models):
            for p in range(len(place)):
                w[model, place[p]] = theta[lane, model, p]
                for k in range(moments):
                    s[model, k, place[p]] = state[lane, model, k, p]
                if len(centre):
                    c[model, place[p]] = centre[lane, model, p]
                if len(linear):
                    h[model, place[p]] = linear[lane, model, p]
        for epoch in range(first_epoch, last_epoch):
            if batch:
                fill_order(keys[lane], epoch, count, left, right, order)
            else:
                for p in range(count):
                    order[p] = p
            step = batch if batch else count
            for first in range(0, count, step):
                whole = min(step, count - first)
                for model in range(models):
                    for p in range(size):
                        g[model, p] = f32(0)
                for begun in range(first, first + whole, TILE):
                    tile = min(TILE, first + whole - begun)
                    for row in range(u64(tile)):
                        own = np.int64(order[u64(begun) + row])
                        if len(chosen):
                            own = np.int64(chosen[lane, own])
                        rows[row] = own
                        source = index[start[lane] + own]
                        labels[row] = y[source]
                        lines[row] = u64(source) * width
                        for d in range(u64(0), width, LINE):
                            _fetch(x, lines[row] + d)  # type: ignore[call-arg]  # the compiler passes the first argument
                    if copied:
                        for row in range(u64(tile)):
                            at = row * in_stride
                            for d in range(features):
                                values[at + d] = x[lines[row] + d]
                            if len(shift):
                                for d in range(features):
                                    values[at + d] = (values[at + d] - shift[lane, d]) * factor[lane, d]
                            lines[row] = at
                    for model in range(models):
                        for row in range(tile):
                            scale[row] = f32(1) / f32(whole)
                        if len(weights):
                            for row in range(tile):
                                scale[row] *= weights[lane, model, rows[row]]
                        _forward(layers, w[model], seen, lines, values, starts, tile)
                        output_slope(loss, outputs, out_stride, values, final, labels, scale, tile, slope)
                        _backward(layers, w[model], seen, lines, values, starts, tile, slope, spare, g[model])
                taken[lane] += 1
                for model in range(models):
                    pull = mu[lane, model] if len(centre) else f32(0)
                    move(
                        w[model], g[model], s[model], taken[lane], adam, momentum, decay, rate, pull, c[model], h[model]
                    )
        for model in range(models):
            for p in range(len(place)):
                theta[lane, model, p] = w[model, place[p]]
                for k in range(moments):
                    state[lane, model, k, p] = s[model, k, place[p]]
