"""Triton kernels of CAM++: the convolutional head, the densely connected TDNN, and the pooling.

Activations are [batch, time, channels], those of the head [batch, time, bins, channels]. `meta` is
int32 [batch]: the frames of each clip. What lies behind a clip's end counts as the zeros that a
convolution is padded with, and in no mean. Behind the head there is a row for two frames, and a
tile of rows never reaches over the end of a segment, so that one gate serves a whole tile.
"""

# What a kernel defines under one constexpr flag, it uses under the same.
# pyright: reportPossiblyUnboundVariable=false

from duologue.engines.cudagraph.kernels import _begin, tl, triton


@triton.jit
def _relu(x):
    return tl.maximum(x, 0.0)


@triton.jit(do_not_specialize=["frames", "bins"])
def first_conv_kernel(
    fbank, w, bias, out, meta, frames, bins, C: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """ReLU of a 3x3 convolution of fbank float32 [batch, frames, bins], w float32 [9, C]."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    batch = tl.program_id(1)
    c = tl.arange(0, C)
    count = tl.load(meta + batch)
    t = rows // bins
    f = rows % bins
    source = fbank + batch.to(tl.int64) * frames * bins
    acc = tl.zeros((BM, C), tl.float32) + tl.load(bias + c)[None, :]
    _begin(PDL)
    for tap in tl.static_range(9):
        u = t + tap // 3 - 1
        g = f + tap % 3 - 1
        here = (u >= 0) & (u < count) & (g >= 0) & (g < bins)
        x = tl.load(source + u * bins + g, mask=here, other=0.0)
        acc += x[:, None] * tl.load(w + tap * C + c)[None, :]
    at = (batch.to(tl.int64) * frames * bins + rows)[:, None] * C + c[None, :]
    tl.store(out + at, _relu(acc), mask=(t < count)[:, None])


@triton.jit(do_not_specialize=["frames", "bins_in", "bins_out", "skip_bins"])
def conv_kernel(
    x, w, bias, skip, skip_w, out, meta, frames, bins_in, bins_out, skip_bins,
    STRIDE: tl.constexpr, SKIP: tl.constexpr, SKIP_STRIDE: tl.constexpr, PROJECT: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ReLU of a 3x3 convolution of x [batch, frames, bins_in, C], w [9, C, C].

    STRIDE is that of the bins. SKIP: every SKIP_STRIDE-th bin of `skip` is added before the ReLU,
    PROJECT: times skip_w [C, C].
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    batch = tl.program_id(1)
    c = tl.arange(0, C)
    square = c[:, None] * C + c[None, :]
    count = tl.load(meta + batch)
    t = rows // bins_out
    f = rows % bins_out
    first = batch.to(tl.int64) * frames
    ok = (t < count)[:, None]
    acc = tl.zeros((BM, C), tl.float32) + tl.load(bias + c)[None, :]
    _begin(PDL)
    for tap in range(9):
        u = t + tap // 3 - 1
        g = f * STRIDE + tap % 3 - 1
        here = (u >= 0) & (u < count) & (g >= 0) & (g < bins_in)
        at = x + first * bins_in * C + (u * bins_in + g)[:, None] * C + c[None, :]
        tile = tl.load(at, mask=here[:, None], other=0.0)
        acc = tl.dot(tile, tl.load(w + tap * C * C + square), acc, input_precision=PRECISION)
    if SKIP:
        at = skip + first * skip_bins * C
        at += (t * skip_bins + f * SKIP_STRIDE)[:, None] * C + c[None, :]
        tile = tl.load(at, mask=ok, other=0.0)
        if PROJECT:
            acc = tl.dot(tile, tl.load(skip_w + square), acc, input_precision=PRECISION)
        else:
            acc += tile
    at = first * bins_out * C + rows[:, None] * C + c[None, :]
    tl.store(out + at, _relu(acc), mask=ok)


@triton.jit(do_not_specialize=["frames", "rows"])
def tdnn_kernel(
    x, w, bias, out, meta, frames, rows, width, out_width,
    TAPS: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """ReLU of a convolution with stride 2 of x [batch, frames, width], w [TAPS * width, N].

    To the first N columns of out [batch, rows, out_width].
    """
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    t = tl.program_id(1) * BM + tl.arange(0, BM)
    batch = tl.program_id(2)
    k = tl.arange(0, BK)
    count = tl.load(meta + batch)
    acc = tl.zeros((BM, BN), tl.float32) + tl.load(bias + cols)[None, :]
    source = x + batch.to(tl.int64) * frames * width
    _begin(PDL)
    # The rows of a kernel's reach lie side by side.
    for begin in range(0, TAPS * width, BK):
        place = ((2 * t - TAPS // 2) * width)[:, None] + (begin + k)[None, :]
        tile = tl.load(source + place, mask=(place >= 0) & (place < count * width), other=0.0)
        weights = tl.load(w + (begin + k)[:, None] * N + cols[None, :])
        acc = tl.dot(tile, weights, acc, input_precision=PRECISION)
    at = (batch.to(tl.int64) * rows + t)[:, None] * out_width + cols[None, :]
    tl.store(out + at, _relu(acc), mask=(t < (count + 1) // 2)[:, None])


@triton.jit
def _context(
    sums, tiles, segment, count,
    WIDTH: tl.constexpr, SEGMENT: tl.constexpr, PARTS: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Mean over the clip plus mean over a segment, [WIDTH], of sums [tiles, WIDTH]."""
    n = tl.arange(0, WIDTH)
    inside = tl.maximum(tl.minimum(count - segment * SEGMENT, SEGMENT), 1)
    total = tl.zeros((WIDTH,), tl.float32)
    for begin in range(0, tiles, BP):
        tile = begin + tl.arange(0, BP)
        share = tl.where(tile // PARTS == segment, 1.0 / inside, 0.0) + 1.0 / count
        at = sums + tile[:, None] * WIDTH + n[None, :]
        part = tl.load(at, mask=(tile < tiles)[:, None], other=0.0)
        total += tl.sum(part * share[:, None], 0)
    return total


@triton.jit(do_not_specialize=["rows", "tiles", "dilation"])
def layer_kernel(
    dense, w, bias, scale, shift, out, sums,
    hidden, hidden_sums, local_w, squeeze_w, squeeze_b, gate_w, gate_b,
    meta, rows, tiles, width, known, out_width, N, dilation,
    GATED: tl.constexpr, RELU: tl.constexpr, SUMS: tl.constexpr,
    WIDTH: tl.constexpr, SQUEEZED: tl.constexpr, GROWTH: tl.constexpr,
    SEGMENT: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The second half of one dense layer, if any, and the first half of the next one.

    GATED: of `hidden` [batch, rows, WIDTH] and its sums comes a convolution of three taps times a
    gate, which becomes the columns [known, known + GROWTH) of dense [batch, rows, width].
    Then `out = [relu] (relu(dense * scale + shift) @ w + bias)`, w [known (+ GROWTH), N]; SUMS: and
    its sums over each tile's rows, float32 [batch, tiles, N].
    """
    column = tl.program_id(0)
    cols = column * BN + tl.arange(0, BN)
    col_ok = (cols < N)[None, :]
    tile = tl.program_id(1)
    batch = tl.program_id(2)
    segment = tile // PARTS
    inside = tile % PARTS * BM + tl.arange(0, BM)
    t = segment * SEGMENT + inside
    count = (tl.load(meta + batch) + 1) // 2
    ok = ((inside < SEGMENT) & (t < count))[:, None]
    row = (batch.to(tl.int64) * rows + t)[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    acc += tl.load(bias + cols, mask=cols < N, other=0.0)[None, :]
    if GATED:
        g = tl.arange(0, GROWTH)
        n = tl.arange(0, WIDTH)
        s = tl.arange(0, SQUEEZED)
        squeeze = tl.load(squeeze_w + s[:, None] * WIDTH + n[None, :]).to(tl.float32)
        widen = tl.load(gate_w + g[:, None] * SQUEEZED + s[None, :]).to(tl.float32)
        squeeze_bias = tl.load(squeeze_b + s)
        gate_bias = tl.load(gate_b + g)
        new_scale = tl.load(scale + known + g)
        new_shift = tl.load(shift + known + g)
        new_w = tl.load(w + (known + g)[:, None] * N + cols[None, :], mask=col_ok, other=0.0)
    _begin(PDL)
    if GATED:
        local = tl.zeros((BM, GROWTH), tl.float32)
        for tap in tl.static_range(3):
            u = t + (tap - 1) * dilation
            near = hidden + (batch.to(tl.int64) * rows + u)[:, None] * WIDTH + n[None, :]
            near = tl.load(near, mask=((u >= 0) & (u < count))[:, None], other=0.0)
            tap_w = tl.load(local_w + tap * WIDTH * GROWTH + n[:, None] * GROWTH + g[None, :])
            local = tl.dot(near, tap_w, local, input_precision=PRECISION)
        hidden_sums += batch * tiles * WIDTH
        context = _context(hidden_sums, tiles, segment, count, WIDTH, SEGMENT, PARTS, BP)
        squeezed = _relu(tl.sum(squeeze * context[None, :], 1) + squeeze_bias)
        gate = tl.sum(widen * squeezed[None, :], 1) + gate_bias
        new = local * (1.0 / (1.0 + tl.exp(tl.minimum(-gate, 80.0))))[None, :]
        tl.store(dense + row * width + known + g[None, :], new, mask=ok & (column == 0))
        new = _relu(new * new_scale[None, :] + new_shift[None, :]).to(new_w.dtype)
        acc = tl.dot(new, new_w, acc, input_precision=PRECISION)
    for begin in range(0, known, BK):
        k = begin + tl.arange(0, BK)
        k_ok = k < known
        x = tl.load(dense + row * width + k[None, :], mask=ok & k_ok[None, :], other=0.0)
        mul = tl.load(scale + k, mask=k_ok, other=0.0)[None, :]
        add = tl.load(shift + k, mask=k_ok, other=0.0)[None, :]
        at = w + k[:, None] * N + cols[None, :]
        weights = tl.load(at, mask=k_ok[:, None] & col_ok, other=0.0)
        x = _relu(x.to(tl.float32) * mul + add).to(weights.dtype)
        acc = tl.dot(x, weights, acc, input_precision=PRECISION)
    if RELU:
        acc = _relu(acc)
    tl.store(out + row * out_width + cols[None, :], acc, mask=ok & col_ok)
    if SUMS:
        total = tl.sum(tl.where(ok, acc, 0.0), 0)
        tl.store(sums + (batch * tiles + tile) * N + cols, total, mask=cols < N)


@triton.jit(do_not_specialize=["rows"])
def moments_kernel(
    x, out, meta, rows, C, BT: tl.constexpr, BC: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Mean and deviation (unbiased) over time of x [batch, rows, C], out float32 [batch, 2 C]."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    batch = tl.program_id(1)
    count = (tl.load(meta + batch) + 1) // 2
    source = x + batch.to(tl.int64) * rows * C + c[None, :]
    _begin(PDL)
    total = tl.zeros((BC,), tl.float32)
    for begin in range(0, count, BT):
        t = (begin + tl.arange(0, BT))[:, None]
        total += tl.sum(tl.load(source + t * C, mask=t < count, other=0.0).to(tl.float32), 0)
    mean = total / count
    total = tl.zeros((BC,), tl.float32)
    for begin in range(0, count, BT):
        t = (begin + tl.arange(0, BT))[:, None]
        apart = tl.load(source + t * C, mask=t < count, other=0.0).to(tl.float32) - mean[None, :]
        total += tl.sum(tl.where(t < count, apart * apart, 0.0), 0)
    tl.store(out + batch * 2 * C + c, mean)
    tl.store(out + batch * 2 * C + C + c, tl.sqrt(total / (count - 1)))


@triton.jit
def embedding_kernel(
    x, w, bias, out, K, N, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """`x @ w.T + bias` in float32, x [batch, K], w [N, K], with BK >= K."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    batch = tl.program_id(1)
    k = tl.arange(0, BK)
    inside = (n < N)[:, None] & (k < K)[None, :]
    weights = tl.load(w + n[:, None] * K + k[None, :], mask=inside, other=0.0)
    add = tl.load(bias + n, mask=n < N, other=0.0)
    _begin(PDL)
    row = tl.load(x + batch * K + k, mask=k < K, other=0.0)
    tl.store(out + batch * N + n, tl.sum(weights * row[None, :], 1) + add, mask=n < N)
