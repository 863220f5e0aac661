# mypy: ignore-errors
# ruff: noqa: RUF005, SIM108 (what runs on the GPU is Triton's part of Python, without unpacking)
"""Triton kernels that carry out the whole local training of a lane's model in one program.

Two kernels compute the same function. `train_small` keeps the weights in registers from the first step to the last, as
tiles padded to powers of two; tuples of tiles represent the layers and are unrolled by the compiler. `train_wide`
leaves them in memory (in practice in the multiprocessor's cache) and multiplies chunks of them.

All products are of IEEE float32 numbers. Sums have a fixed order, so results repeat to the last bit. NaN and infinity
reach the parameters: comparisons are written so that a NaN passes them.
"""

import triton
import triton.language as tl

GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
TANH, RELU, SIGMOID = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # as in problem.ACTIVATIONS
LOGISTIC, SOFTMAX, SQUARED = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # as in problem.LOSSES
SGD, MOMENTUM, ADAM = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # also the state numbers per parameter
BETA1, BETA2, EPSILON = tl.constexpr(0.9), tl.constexpr(0.999), tl.constexpr(1e-8)  # as in equifed.training

COUNTS = ["models", "weights_row", "chosen_row", "first", "last", "batch"]
"""Arguments on whose values the compiler must not specialise a kernel."""


# batch orders, as in equifed.shuffle


@triton.jit
def mixed(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def folded(key, part):
    return mixed((key ^ tl.cast(part, tl.uint64)) + GOLDEN)


@triton.jit
def layout(n):
    """Return the sides of the grid for n > 0 rows, and the number of moves of a cell."""
    m = n - 1
    root = tl.sqrt(m.to(tl.float32)).to(tl.int32)  # right to within 1
    root = tl.where(root.to(tl.int64) * root > m, root - 1, root)
    root = tl.where((root + 1).to(tl.int64) * (root + 1) <= m, root + 1, root)
    bits = 1
    while (n >> bits) > 1:
        bits += 1
    a = root + 1
    return a, (n + a - 1) // a, tl.maximum(2 * ((17 + bits) // bits), 6)


@triton.jit
def hashed(value, key, below):
    h = value ^ key
    h = (h ^ (h >> 16)) * 0x7FEB352D
    h = (h ^ (h >> 15)) * 0x846CA68B
    return tl.umulhi(h, below)


@triton.jit
def moved(cell, key, a, b, turns):
    l = cell // b
    r = cell - l * b
    for i in range(0, turns, 2):
        turn = tl.cast(i + 1, tl.uint64) * GOLDEN + key
        l += hashed(r, mixed(turn).to(tl.uint32), a)
        l = tl.where(l >= a, l - a, l)
        r += hashed(l, mixed(turn + GOLDEN).to(tl.uint32), b)
        r = tl.where(r >= b, r - b, r)
    return l * b + r


@triton.jit
def ordered(position, key, n, a, b, turns):
    """Return the rows at these positions, which are less than n."""
    a, b, n = a.to(tl.uint32), b.to(tl.uint32), n.to(tl.uint32)
    cell = moved(position.to(tl.uint32), key, a, b, turns)
    while tl.max((cell >= n).to(tl.int32), 0) > 0:
        cell = tl.where(cell >= n, moved(cell, key, a, b, turns), cell)
    return cell.to(tl.int32)


@triton.jit(do_not_specialize=["epoch", "longest"])
def orders(keys, epoch, counts, out, longest, BLOCK: tl.constexpr):
    """Write the order of each lane's rows in an epoch [lanes, longest]; 0 beyond them."""
    lane = tl.program_id(0).to(tl.int64)
    position = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(counts + lane).to(tl.int32)
    row = tl.zeros([BLOCK], tl.int32)
    if tl.program_id(1) * BLOCK < n:
        a, b, turns = layout(n)
        key = folded(tl.load(keys + lane).to(tl.uint64, bitcast=True), epoch)
        row = ordered(tl.where(position < n, position, 0), key, n, a, b, turns)
    tl.store(out + lane * longest + position, tl.where(position < n, row, 0), mask=position < longest)


# pieces of a step


@triton.jit
def activated(a, KIND: tl.constexpr):
    if KIND == TANH:
        e = tl.exp(-2 * tl.abs(a))
        size = (1 - e) / (1 + e)
        result = tl.where(a >= 0, size, -size)
    elif KIND == RELU:
        result = tl.where(a < 0, 0.0, a)
    else:
        result = 1 / (1 + tl.exp(-a))
    return result


@triton.jit
def slope(act, KIND: tl.constexpr):
    """Return the activation's derivative from its value."""
    if KIND == TANH:
        result = 1 - act * act
    elif KIND == RELU:
        result = tl.where(act <= 0, 0.0, 1.0)
    else:
        result = act * (1 - act)
    return result


@triton.jit
def residual(z, y, LOSS: tl.constexpr):
    """Return the derivative of the loss by a model's single output [rows]."""
    if LOSS == LOGISTIC:
        result = 1 / (1 + tl.exp(-z)) - y
    else:
        result = 2 * (z - y)
    return result


@triton.jit
def residuals(z, y, OUTPUTS: tl.constexpr):
    """Return the derivative of the cross entropy by the logits [rows, classes]; 0 beyond the classes."""
    column = tl.arange(0, z.shape[1])[None, :]
    z = tl.where(column < OUTPUTS, z, float("-inf"))
    e = tl.exp(z - tl.max(z, 1)[:, None])
    return e / tl.sum(e, 1)[:, None] - tl.where(column == y.to(tl.int32)[:, None], 1.0, 0.0)


@triton.jit
def product(a, b):
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def stepped(w, g, s1, s2, place, mask, centre, linear, mu, rate, decay, momentum, c1, c2, RULE: tl.constexpr):
    """Return a parameter tile after an optimiser's step along the risk's gradient g, and the optimiser's state."""
    if centre is not None:
        g += mu * (w - tl.load(centre + place, mask=mask, other=0.0))
    if linear is not None:
        g += tl.load(linear + place, mask=mask, other=0.0)
    g += decay * w
    if RULE == ADAM:
        s1 = BETA1 * s1 + (1 - BETA1) * g
        s2 = BETA2 * s2 + (1 - BETA2) * g * g
        w -= rate * (s1 / c1) / (tl.sqrt(s2 / c2) + EPSILON)
    elif RULE == MOMENTUM:
        s1 = momentum * s1 + g
        w -= rate * s1
    else:
        w -= rate * g
    return w, s1, s2


@triton.jit
def rows_at(begin, end, order, index, chosen, weights, y, TILE: tl.constexpr):
    """Return a tile of a batch's rows: their positions in the table, the mask of present rows, labels and weights.

    Rows from `begin` to `end` of the epoch's order are present. order: arguments of `ordered` after the positions, and
    a flag for ordered rows; the pointers are those of the lane and of the model.
    """
    position = begin + tl.arange(0, TILE)
    there = position < end
    row = tl.where(there, position, 0)
    if order[5]:
        row = ordered(row, order[0], order[1], order[2], order[3], order[4])
    if chosen is not None:
        row = tl.load(chosen + row, mask=there, other=0)
    taken = tl.load(index + row, mask=there, other=0).to(tl.int64)
    labels = tl.load(y + taken, mask=there, other=0.0)
    share = tl.where(there, 1.0, 0.0)
    if weights is not None:
        share = tl.load(weights + row, mask=there, other=0.0)
    return taken, there, labels, share


# weights in registers


@triton.jit
def spots(PART: tl.constexpr, WIDTHS: tl.constexpr, PADS: tl.constexpr, OFFSETS: tl.constexpr, LAYERS: tl.constexpr):
    """Return the positions of a part's weights and biases in the vector of parameters, and the mask of the padded tile.

    A network of one layer has a part per output, with a weight [inputs]. Otherwise a part is a layer, with a weight
    [inputs, outputs], or [inputs] for a single output at the end.
    """
    if LAYERS == 1:
        ins = tl.arange(0, PADS[0])
        weight, weight_mask = PART * WIDTHS[0] + ins, ins < WIDTHS[0]
        bias, bias_mask = WIDTHS[0] * WIDTHS[1] + PART + tl.arange(0, 1), tl.arange(0, 1) < 1
    elif PADS[PART + 1] == 1:
        ins = tl.arange(0, PADS[PART])
        weight, weight_mask = OFFSETS[PART] + ins, ins < WIDTHS[PART]
        bias, bias_mask = OFFSETS[PART] + WIDTHS[PART] + tl.arange(0, 1), tl.arange(0, 1) < 1
    else:
        ins, outs = tl.arange(0, PADS[PART]), tl.arange(0, PADS[PART + 1])
        weight = OFFSETS[PART] + outs[None, :] * WIDTHS[PART] + ins[:, None]
        weight_mask = (ins < WIDTHS[PART])[:, None] & (outs < WIDTHS[PART + 1])[None, :]
        bias, bias_mask = OFFSETS[PART] + WIDTHS[PART] * WIDTHS[PART + 1] + outs, outs < WIDTHS[PART + 1]
    return weight, weight_mask, bias, bias_mask


@triton.jit
def loaded(
    source, WIDTHS: tl.constexpr, PADS: tl.constexpr, OFFSETS: tl.constexpr, LAYERS: tl.constexpr,
    BIASED: tl.constexpr, PARTS: tl.constexpr, THERE: tl.constexpr,
):  # fmt: skip
    """Load a vector of parameters as tiles: weights and biases by part, padded with zeros."""
    ws, bs = (), ()
    for i in tl.static_range(PARTS):
        weight, weight_mask, bias, bias_mask = spots(i, WIDTHS, PADS, OFFSETS, LAYERS)
        if THERE:
            ws = ws + (tl.load(source + weight, mask=weight_mask, other=0.0),)
        else:
            ws = ws + (tl.zeros([1], tl.float32),)
        if THERE and BIASED[i]:
            bs = bs + (tl.load(source + bias, mask=bias_mask, other=0.0),)
        else:
            bs = bs + (tl.zeros([1], tl.float32),)
    return ws, bs


@triton.jit
def stored(
    target, ws, bs, WIDTHS: tl.constexpr, PADS: tl.constexpr, OFFSETS: tl.constexpr, LAYERS: tl.constexpr,
    BIASED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    for i in tl.static_range(PARTS):
        weight, weight_mask, bias, bias_mask = spots(i, WIDTHS, PADS, OFFSETS, LAYERS)
        tl.store(target + weight, ws[i], mask=weight_mask)
        if BIASED[i]:
            tl.store(target + bias, bs[i], mask=bias_mask)


@triton.jit
def bias_gradient(delta, THERE: tl.constexpr):
    if THERE:
        result = tl.sum(delta, 0)
    else:
        result = tl.zeros([1], tl.float32)
    return result


@triton.jit
def flat_gradient(ws, bs, x, y, share, BIASED: tl.constexpr, PARTS: tl.constexpr, LOSS: tl.constexpr):
    """Compute `risk_gradient` for a network of one layer, by output, without matrix products."""
    zs = ()
    for i in tl.static_range(PARTS):
        z = tl.sum(x * ws[i][None, :], 1)
        if BIASED[i]:
            z += bs[i]
        zs = zs + (z,)
    if LOSS == SOFTMAX:
        top = zs[0]
        for i in tl.static_range(1, PARTS):
            top = tl.maximum(top, zs[i])
        total = tl.exp(zs[0] - top)
        for i in tl.static_range(1, PARTS):
            total += tl.exp(zs[i] - top)
    gws, gbs = (), ()
    for i in tl.static_range(PARTS):
        if LOSS == SOFTMAX:
            delta = tl.exp(zs[i] - top) / total - tl.where(y == i, 1.0, 0.0)
        else:
            delta = residual(zs[i], y, LOSS)
        delta = (delta * share)[:, None]
        gws = gws + (tl.sum(x * delta, 0),)
        gbs = gbs + (bias_gradient(delta, BIASED[i]),)
    return gws, gbs


@triton.jit
def gradient(
    ws, bs, x, y, share, WIDTHS: tl.constexpr, PADS: tl.constexpr, ACTS: tl.constexpr, BIASES: tl.constexpr,
    LAYERS: tl.constexpr, LOSS: tl.constexpr,
):  # fmt: skip
    """Compute `risk_gradient` for a network of several layers."""
    acts = (x,)
    for i in tl.static_range(LAYERS - 1):
        a = product(acts[i], ws[i])
        if BIASES[i]:
            a += bs[i][None, :]
        act = activated(a, ACTS[i])
        if ACTS[i] == SIGMOID:  # sigmoid(0) = 1/2: units that pad the tile must not learn
            act = tl.where((tl.arange(0, PADS[i + 1]) < WIDTHS[i + 1])[None, :], act, 0.0)
        acts = acts + (act,)
    if PADS[LAYERS] == 1:
        z = tl.sum(acts[LAYERS - 1] * ws[LAYERS - 1][None, :], 1)
        if BIASES[LAYERS - 1]:
            z += bs[LAYERS - 1]
        delta = (residual(z, y, LOSS) * share)[:, None]
        gws = (tl.sum(acts[LAYERS - 1] * delta, 0),)
        gbs = (bias_gradient(delta, BIASES[LAYERS - 1]),)
        delta = delta * ws[LAYERS - 1][None, :]
    else:
        z = product(acts[LAYERS - 1], ws[LAYERS - 1])
        if BIASES[LAYERS - 1]:
            z += bs[LAYERS - 1][None, :]
        delta = residuals(z, y, WIDTHS[LAYERS]) * share[:, None]
        gws = (product(tl.trans(acts[LAYERS - 1]), delta),)
        gbs = (bias_gradient(delta, BIASES[LAYERS - 1]),)
        delta = product(delta, tl.trans(ws[LAYERS - 1]))
    for back in tl.static_range(LAYERS - 1):
        delta = delta * slope(acts[LAYERS - 1 - back], ACTS[LAYERS - 2 - back])
        gws = (product(tl.trans(acts[LAYERS - 2 - back]), delta),) + gws
        gbs = (bias_gradient(delta, BIASES[LAYERS - 2 - back]),) + gbs
        if back < LAYERS - 2:
            delta = product(delta, tl.trans(ws[LAYERS - 2 - back]))
    return gws, gbs


@triton.jit
def risk_gradient(
    ws, bs, x, y, share, WIDTHS: tl.constexpr, PADS: tl.constexpr, ACTS: tl.constexpr, BIASED: tl.constexpr,
    LAYERS: tl.constexpr, PARTS: tl.constexpr, LOSS: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the sum over a tile's rows of share times loss: weights and biases by part."""
    if LAYERS == 1:
        gws, gbs = flat_gradient(ws, bs, x, y, share, BIASED, PARTS, LOSS)
    else:
        gws, gbs = gradient(ws, bs, x, y, share, WIDTHS, PADS, ACTS, BIASED, LAYERS, LOSS)
    return gws, gbs


@triton.jit
def features_of(rows, there, x, low, scale, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Load the features of a tile of the table's rows, standardised if there is a scaling."""
    column = tl.arange(0, PAD)[None, :]
    data = tl.load(x + rows[:, None] * WIDTH + column, mask=there[:, None] & (column < WIDTH), other=0.0)
    if low is not None:
        data = (data - low) * scale
    return data


@triton.jit
def look_up(begin, end, order, index, chosen, weights, y, table, BLOCK: tl.constexpr):
    """Store rows, labels and weights for positions from `begin` to `end`."""
    rows, _, labels, share = rows_at(begin, end, order, index, chosen, weights, y, BLOCK)
    place = table + tl.arange(0, BLOCK)
    tl.store(place, rows.to(tl.int32))
    tl.store(place + BLOCK, labels.to(tl.int32, bitcast=True))
    tl.store(place + 2 * BLOCK, share.to(tl.int32, bitcast=True))


@triton.jit
def batch_at(
    place, count, table, x, low, scale, WIDTH: tl.constexpr, PAD: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr
):
    """Load a batch of the rows that `look_up` stored: features, labels and weights."""
    line = tl.arange(0, TILE)
    there = line < count
    rows = tl.load(table + place + line, mask=there, other=0).to(tl.int64)
    labels = tl.load(table + BLOCK + place + line, mask=there, other=0).to(tl.float32, bitcast=True)
    share = tl.load(table + 2 * BLOCK + place + line, mask=there, other=0).to(tl.float32, bitcast=True)
    return features_of(rows, there, x, low, scale, WIDTH, PAD), labels, share


@triton.jit(do_not_specialize=COUNTS)
def train_small(
    theta, state, x, y, index, starts, counts, keys, shift, factor, weights, mu, centre, linear, chosen, powers,
    scratch, models, weights_row, chosen_row, first, last, batch, rate, decay, momentum,
    WIDTHS: tl.constexpr, PADS: tl.constexpr, OFFSETS: tl.constexpr, ACTS: tl.constexpr, BIASED: tl.constexpr,
    LAYERS: tl.constexpr, PARTS: tl.constexpr, SIZE: tl.constexpr, LOSS: tl.constexpr, RULE: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Train one model of one lane for epochs `first` to `last`. BIASED: the PARTS with a bias.

    BLOCK: number of positions for which rows are looked up at once, for several batches of one tile each, because a
    single step would wait for them; 0: a batch is a sum over tiles. AHEAD: load the next batch's rows before this
    batch's step.
    """
    model = tl.program_id(0).to(tl.int64)
    lane = model // models
    n = tl.load(counts + lane).to(tl.int32)
    if n > 0:
        a, b, turns = layout(n)
        key = tl.load(keys + lane).to(tl.uint64, bitcast=True)
        index += tl.load(starts + lane)
        if chosen is not None:
            chosen += lane * chosen_row
        if weights is not None:
            weights += model * weights_row
        theta += model * SIZE
        state += model * SIZE * RULE
        ws, bs = loaded(theta, WIDTHS, PADS, OFFSETS, LAYERS, BIASED, PARTS, True)
        ws1, bs1 = loaded(state, WIDTHS, PADS, OFFSETS, LAYERS, BIASED, PARTS, RULE >= MOMENTUM)
        ws2, bs2 = loaded(state + SIZE, WIDTHS, PADS, OFFSETS, LAYERS, BIASED, PARTS, RULE == ADAM)
        power1, power2 = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
        if RULE == ADAM:
            power1, power2 = tl.load(powers + 2 * lane), tl.load(powers + 2 * lane + 1)
        weight_mu = 0.0
        if centre is not None:
            centre += model * SIZE
            weight_mu = tl.load(mu + model)
        if linear is not None:
            linear += model * SIZE
        low, scale = None, None
        if shift is not None:
            column = tl.arange(0, PADS[0])
            low = tl.load(shift + lane * WIDTHS[0] + column, mask=column < WIDTHS[0], other=0.0)[None, :]
            scale = tl.load(factor + lane * WIDTHS[0] + column, mask=column < WIDTHS[0], other=0.0)[None, :]
        width = tl.where(batch > 0, batch, n)
        span, table = width, scratch
        if BLOCK > 0:
            span, table = BLOCK // width * width, scratch + model * (3 * BLOCK)
        for epoch in range(first, last):
            order = (folded(key, epoch), n, a, b, turns, batch > 0)
            for block in range(0, n, span):
                stop = tl.minimum(block + span, n)
                if BLOCK > 0:
                    tl.debug_barrier()
                    look_up(block, stop, order, index, chosen, weights, y, table, BLOCK)
                    tl.debug_barrier()
                    if AHEAD:
                        data, labels, share = batch_at(
                            0, tl.minimum(width, stop - block), table, x, low, scale, WIDTHS[0], PADS[0], TILE, BLOCK
                        )
                for begin in range(block, stop, width):
                    end = tl.minimum(begin + width, stop)
                    part = 1 / (end - begin).to(tl.float32)
                    if BLOCK > 0:
                        if AHEAD:
                            next_data, next_labels, next_share = batch_at(
                                begin + width - block, tl.minimum(width, stop - begin - width), table, x, low, scale,
                                WIDTHS[0], PADS[0], TILE, BLOCK,
                            )  # fmt: skip
                        else:
                            data, labels, share = batch_at(
                                begin - block, end - begin, table, x, low, scale, WIDTHS[0], PADS[0], TILE, BLOCK
                            )
                        gws, gbs = risk_gradient(
                            ws, bs, data, labels, share * part, WIDTHS, PADS, ACTS, BIASED, LAYERS, PARTS, LOSS
                        )
                        if AHEAD:
                            data, labels, share = next_data, next_labels, next_share
                    else:
                        gws, gbs = (), ()
                        for i in tl.static_range(PARTS):
                            gws, gbs = gws + (tl.zeros_like(ws[i]),), gbs + (tl.zeros_like(bs[i]),)
                        for tile in range(begin, end, TILE):
                            rows, there, labels, share = rows_at(tile, end, order, index, chosen, weights, y, TILE)
                            data = features_of(rows, there, x, low, scale, WIDTHS[0], PADS[0])
                            more_ws, more_bs = risk_gradient(
                                ws, bs, data, labels, share * part, WIDTHS, PADS, ACTS, BIASED, LAYERS, PARTS, LOSS
                            )
                            sum_ws, sum_bs = (), ()
                            for i in tl.static_range(PARTS):
                                sum_ws, sum_bs = sum_ws + (gws[i] + more_ws[i],), sum_bs + (gbs[i] + more_bs[i],)
                            gws, gbs = sum_ws, sum_bs
                    power1 *= BETA1
                    power2 *= BETA2
                    c1, c2 = (1 - power1).to(tl.float32), (1 - power2).to(tl.float32)
                    new_ws, new_ws1, new_ws2, new_bs, new_bs1, new_bs2 = (), (), (), (), (), ()
                    for i in tl.static_range(PARTS):
                        weight, weight_mask, bias, bias_mask = spots(i, WIDTHS, PADS, OFFSETS, LAYERS)
                        w, s1, s2 = stepped(
                            ws[i], gws[i], ws1[i], ws2[i], weight, weight_mask, centre, linear, weight_mu, rate, decay,
                            momentum, c1, c2, RULE,
                        )  # fmt: skip
                        new_ws, new_ws1, new_ws2 = new_ws + (w,), new_ws1 + (s1,), new_ws2 + (s2,)
                        if BIASED[i]:
                            w, s1, s2 = stepped(
                                bs[i], gbs[i], bs1[i], bs2[i], bias, bias_mask, centre, linear, weight_mu, rate, decay,
                                momentum, c1, c2, RULE,
                            )  # fmt: skip
                            new_bs, new_bs1, new_bs2 = new_bs + (w,), new_bs1 + (s1,), new_bs2 + (s2,)
                        else:
                            new_bs, new_bs1, new_bs2 = new_bs + (bs[i],), new_bs1 + (bs1[i],), new_bs2 + (bs2[i],)
                    ws, ws1, ws2, bs, bs1, bs2 = new_ws, new_ws1, new_ws2, new_bs, new_bs1, new_bs2
        stored(theta, ws, bs, WIDTHS, PADS, OFFSETS, LAYERS, BIASED, PARTS)
        if RULE >= MOMENTUM:
            stored(state, ws1, bs1, WIDTHS, PADS, OFFSETS, LAYERS, BIASED, PARTS)
        if RULE == ADAM:
            stored(state + SIZE, ws2, bs2, WIDTHS, PADS, OFFSETS, LAYERS, BIASED, PARTS)


# weights in memory


@triton.jit
def multiplied(
    result, left, LEFT_ROW: tl.constexpr, LEFT_INNER: tl.constexpr, row, there_row,
    right, RIGHT_INNER: tl.constexpr, column, there_column, INNER: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Add the product [rows, columns] of two matrices in memory, as a sum of outer products of vectors that every
    thread reads from the cache. Arguments give the strides; entries in a row of the right matrix are neighbours.
    Threads hold the result in the arrangement of the load it comes from: several neighbours each."""
    for begin in range(0, INNER - INNER % UNROLL, UNROLL):
        for more in tl.static_range(UNROLL):
            a = tl.load(left + row * LEFT_ROW + (begin + more) * LEFT_INNER, mask=there_row, other=0.0)
            b = tl.load(right + (begin + more) * RIGHT_INNER + column, mask=there_column, other=0.0)
            result += a[:, None] * b[None, :]
    for more in tl.static_range(INNER % UNROLL):
        a = tl.load(left + row * LEFT_ROW + (INNER - 1 - more) * LEFT_INNER, mask=there_row, other=0.0)
        b = tl.load(right + (INNER - 1 - more) * RIGHT_INNER + column, mask=there_column, other=0.0)
        result += a[:, None] * b[None, :]
    return result


@triton.jit
def turn(weight, target, IN: tl.constexpr, OUT: tl.constexpr, PITCH: tl.constexpr, SPAN: tl.constexpr):
    """Transpose a weight [OUT, IN], as the products of `forward` need it."""
    for begin in range(0, IN, 64):
        column = begin + tl.arange(0, 64)
        for first in range(0, OUT, SPAN):
            out = first + tl.arange(0, SPAN)
            mask = (out < OUT)[:, None] & (column < IN)[None, :]
            w = tl.load(weight + out[:, None] * IN + column[None, :], mask=mask, other=0.0)
            tl.store(target + column[None, :] * PITCH + out[:, None], w, mask=mask)


@triton.jit
def forward(
    weight, bias, inputs, target, never, IN: tl.constexpr, OUT: tl.constexpr, PITCH_IN: tl.constexpr,
    PITCH: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, SPAN: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Compute a layer's outputs for a tile of rows; KIND 0: without an activation."""
    line = tl.arange(0, TILE)
    for first in range(0, OUT, SPAN):
        out = first + tl.arange(0, SPAN)
        there = out < OUT
        place = target + line[:, None] * PITCH + out[None, :]
        z = tl.load(place, mask=there[None, :] & never, other=0.0)
        z = multiplied(z, inputs, PITCH_IN, 1, line, line >= 0, weight, PITCH, out, there, IN, UNROLL)
        if BIAS:
            z += tl.load(bias + out, mask=there, other=0.0)[None, :]
        if KIND > 0:
            z = activated(z, KIND)
        tl.store(place, z, mask=there[None, :])


@triton.jit
def backward(
    weight, total, fresh, inputs, slopes, target, never, IN: tl.constexpr, OUT: tl.constexpr, PITCH_IN: tl.constexpr,
    PITCH: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, SPAN_IN: tl.constexpr,
    SPAN: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Add a layer's gradient from a tile of rows to the total, which begins here if `fresh`. If the inputs were
    activated (KIND), write the loss's derivatives before the activation to the target."""
    line = tl.arange(0, TILE)
    for begin in range(0, IN, SPAN_IN):
        column = begin + tl.arange(0, SPAN_IN)
        inside = column < IN
        for first in range(0, OUT, SPAN):
            out = first + tl.arange(0, SPAN)
            place = total + out[:, None] * IN + column[None, :]
            mask = (out < OUT)[:, None] & inside[None, :]
            g = tl.load(place, mask=mask & (fresh == 0), other=0.0)
            g = multiplied(g, slopes, 1, PITCH, out, out < OUT, inputs, PITCH_IN, column, inside, TILE, UNROLL)
            tl.store(place, g, mask=mask)
        if KIND > 0:
            place = line[:, None] * PITCH_IN + column[None, :]
            d = tl.load(target + place, mask=inside[None, :] & never, other=0.0)
            d = multiplied(d, slopes, PITCH, 1, line, line >= 0, weight, IN, column, inside, OUT, UNROLL)
            d *= slope(tl.load(inputs + place, mask=inside[None, :], other=0.0), KIND)
            tl.store(target + place, d, mask=inside[None, :])
    if BIAS:
        for first in range(0, OUT, SPAN):
            out = first + tl.arange(0, SPAN)
            place = total + IN * OUT + out
            g = tl.sum(tl.load(slopes + line[:, None] * PITCH + out[None, :], mask=(out < OUT)[None, :], other=0.0), 0)
            tl.store(place, g + tl.load(place, mask=(out < OUT) & (fresh == 0), other=0.0), mask=out < OUT)


@triton.jit(do_not_specialize=[*COUNTS, "every"])
def train_wide(
    theta, state, x, y, index, starts, counts, keys, shift, factor, weights, mu, centre, linear, chosen, powers,
    scratch, models, weights_row, chosen_row, first, last, batch, rate, decay, momentum, every,
    WIDTHS: tl.constexpr, OFFSETS: tl.constexpr, ACTS: tl.constexpr, BIASES: tl.constexpr, LAYERS: tl.constexpr,
    SIZE: tl.constexpr, LOSS: tl.constexpr, RULE: tl.constexpr, TILE: tl.constexpr, SPANS: tl.constexpr,
    PITCHES: tl.constexpr, INPUTS: tl.constexpr, SLOPES: tl.constexpr, TURNED: tl.constexpr, SCRATCH: tl.constexpr,
    LAST: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Train all `every` models for epochs `first` to `last`, one after another in each program.

    A program's scratch memory holds the total gradient and, by layer, a tile of INPUTS [TILE, inputs], the loss's
    SLOPES by the outputs [TILE, outputs] and the TURNED weight [inputs, outputs]. PITCHES: stride of their rows, by
    width; SPANS: units processed at once, by width; LAST: the model's padded outputs.
    """
    total = scratch + tl.program_id(0).to(tl.int64) * SCRATCH
    line = tl.arange(0, TILE)
    for number in range(tl.program_id(0), every, tl.num_programs(0)):
        model = tl.cast(number, tl.int64)
        lane = model // models
        n = tl.load(counts + lane).to(tl.int32)
        if n > 0:
            never = tl.full([1, 1], 0, tl.int1) | (n < 0)  # such loads only arrange a tile: mask them out
            a, b, turns = layout(n)
            key = tl.load(keys + lane).to(tl.uint64, bitcast=True)
            picked, own_chosen, own_weights = index + tl.load(starts + lane), None, None
            if chosen is not None:
                own_chosen = chosen + lane * chosen_row
            if weights is not None:
                own_weights = weights + model * weights_row
            own, memory = theta + model * SIZE, state + model * SIZE * RULE
            power1, power2 = tl.full((), 1.0, tl.float64), tl.full((), 1.0, tl.float64)
            if RULE == ADAM:
                power1, power2 = tl.load(powers + 2 * lane), tl.load(powers + 2 * lane + 1)
            weight_mu = 0.0
            if centre is not None:
                weight_mu = tl.load(mu + model)
            width = tl.where(batch > 0, batch, n)
            for epoch in range(first, last):
                order = (folded(key, epoch), n, a, b, turns, batch > 0)
                for begin in range(0, n, width):
                    end = tl.minimum(begin + width, n)
                    for i in tl.static_range(LAYERS):
                        turn(
                            own + OFFSETS[i], total + TURNED[i], WIDTHS[i], WIDTHS[i + 1], PITCHES[i + 1], SPANS[i + 1]
                        )
                    for tile in range(begin, end, TILE):
                        rows, there, labels, share = rows_at(tile, end, order, picked, own_chosen, own_weights, y, TILE)
                        share /= (end - begin).to(tl.float32)
                        for column in range(0, WIDTHS[0], SPANS[0]):
                            columns = column + tl.arange(0, SPANS[0])
                            inside = columns < WIDTHS[0]
                            mask = there[:, None] & inside[None, :]
                            data = tl.load(x + rows[:, None] * WIDTHS[0] + columns[None, :], mask=mask, other=0.0)
                            if shift is not None:
                                moves = lane * WIDTHS[0] + columns
                                data -= tl.load(shift + moves, mask=inside, other=0.0)[None, :]
                                data *= tl.load(factor + moves, mask=inside, other=0.0)[None, :]
                            place = total + INPUTS[0] + line[:, None] * PITCHES[0] + columns[None, :]
                            tl.store(place, data, mask=inside[None, :])
                        tl.debug_barrier()
                        for i in tl.static_range(LAYERS - 1):
                            forward(
                                total + TURNED[i], own + OFFSETS[i] + WIDTHS[i] * WIDTHS[i + 1], total + INPUTS[i],
                                total + INPUTS[i + 1], never, WIDTHS[i], WIDTHS[i + 1], PITCHES[i], PITCHES[i + 1],
                                BIASES[i], ACTS[i], TILE, SPANS[i + 1], UNROLL,
                            )  # fmt: skip
                            tl.debug_barrier()
                        forward(
                            total + TURNED[LAYERS - 1],
                            own + OFFSETS[LAYERS - 1] + WIDTHS[LAYERS - 1] * WIDTHS[LAYERS],
                            total + INPUTS[LAYERS - 1], total + SLOPES[LAYERS - 1], never, WIDTHS[LAYERS - 1],
                            WIDTHS[LAYERS], PITCHES[LAYERS - 1], PITCHES[LAYERS], BIASES[LAYERS - 1], 0, TILE,
                            SPANS[LAYERS], UNROLL,
                        )  # fmt: skip
                        tl.debug_barrier()
                        columns = tl.arange(0, LAST)
                        inside = (columns < WIDTHS[LAYERS])[None, :]
                        place = total + SLOPES[LAYERS - 1] + line[:, None] * PITCHES[LAYERS] + columns[None, :]
                        z = tl.load(place, mask=inside, other=0.0)
                        if LAST == 1:
                            delta = residual(z, labels[:, None], LOSS)
                        else:
                            delta = residuals(z, labels, WIDTHS[LAYERS])
                        tl.store(place, delta * share[:, None], mask=inside)
                        tl.debug_barrier()
                        for back in tl.static_range(LAYERS - 1):
                            backward(
                                own + OFFSETS[LAYERS - 1 - back], total + OFFSETS[LAYERS - 1 - back], tile == begin,
                                total + INPUTS[LAYERS - 1 - back], total + SLOPES[LAYERS - 1 - back],
                                total + SLOPES[LAYERS - 2 - back], never, WIDTHS[LAYERS - 1 - back],
                                WIDTHS[LAYERS - back], PITCHES[LAYERS - 1 - back], PITCHES[LAYERS - back],
                                BIASES[LAYERS - 1 - back], ACTS[LAYERS - 2 - back], TILE, SPANS[LAYERS - 1 - back],
                                SPANS[LAYERS - back], UNROLL,
                            )  # fmt: skip
                            tl.debug_barrier()
                        backward(
                            own, total, tile == begin, total + INPUTS[0], total + SLOPES[0], None, never, WIDTHS[0],
                            WIDTHS[1], PITCHES[0], PITCHES[1], BIASES[0], 0, TILE, SPANS[0], SPANS[1], UNROLL,
                        )  # fmt: skip
                        tl.debug_barrier()
                    power1 *= BETA1
                    power2 *= BETA2
                    c1, c2 = (1 - power1).to(tl.float32), (1 - power2).to(tl.float32)
                    for block in range(0, SIZE, 1024):
                        place = block + tl.arange(0, 1024)
                        mask = place < SIZE
                        w = tl.load(own + place, mask=mask, other=0.0)
                        g = tl.load(total + place, mask=mask, other=0.0)
                        s1, s2 = tl.zeros([1024], tl.float32), tl.zeros([1024], tl.float32)
                        if RULE >= MOMENTUM:
                            s1 = tl.load(memory + place, mask=mask, other=0.0)
                        if RULE == ADAM:
                            s2 = tl.load(memory + SIZE + place, mask=mask, other=0.0)
                        w, s1, s2 = stepped(
                            w, g, s1, s2, model * SIZE + place, mask, centre, linear, weight_mu, rate, decay,
                            momentum, c1, c2, RULE,
                        )  # fmt: skip
                        tl.store(own + place, w, mask=mask)
                        if RULE >= MOMENTUM:
                            tl.store(memory + place, s1, mask=mask)
                        if RULE == ADAM:
                            tl.store(memory + SIZE + place, s2, mask=mask)
                    tl.debug_barrier()
