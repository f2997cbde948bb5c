"""Triton kernels of the vocoder: convolutions, the source signal, and both ways through the STFT.

Activations are [batch, time, channels] and hold the windows of several sessions, each of its own
length; what lies behind its end counts as the zeros that a convolution is padded with. `meta` is
int32 [batch, columns], named below.
"""

from duologue.engines.cudagraph.kernels import tl, triton
from duologue.engines.cudagraph.solver_kernels import philox_normals

SLOT = tl.constexpr(0)  # of the session's state; -1 for none
KEPT = tl.constexpr(1)  # frames of mel kept from before
NEW = tl.constexpr(2)  # frames of new mel behind them
LOW = tl.constexpr(3)  # frames that only f0 looks at, before the window
FRAMES = tl.constexpr(4)  # frames of the window
START = tl.constexpr(5)  # index of the window's first frame in the utterance
SKIP = tl.constexpr(6)  # frames of the window that were given out before
DROP = tl.constexpr(7)  # kept frames that the next step will not look at
ADVANCE = tl.constexpr(8)  # frames by which the next window begins later
SEED_LOW = tl.constexpr(9)
SEED_HIGH = tl.constexpr(10)
COLUMNS = 11


@triton.jit(do_not_specialize=["L", "T"])
def window_kernel(kept, new, out, meta, L, T, SIZE: tl.constexpr, N: tl.constexpr,
                  COLS: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """Kept mel [slot, SIZE, N], then new mel [batch, L, N]: out [batch, T, N]."""
    t = tl.program_id(0)
    row = tl.program_id(1)
    line = meta + row * COLS
    before = tl.load(line + KEPT)
    n = tl.arange(0, BN)
    slot = tl.load(line + SLOT).to(tl.int64)
    old = tl.load(kept + (slot * SIZE + t) * N + n, mask=(n < N) & (t < before), other=0.0)
    fresh = (t >= before) & (t < before + tl.load(line + NEW))
    x = tl.load(new + (row * L + t - before) * N + n, mask=(n < N) & fresh, other=0.0)
    tl.store(out + (row * T + t) * N + n, tl.where(fresh, x, old), mask=n < N)


@triton.jit(do_not_specialize=["T"])
def keep_kernel(window, kept, meta, T, SIZE: tl.constexpr, N: tl.constexpr, COLS: tl.constexpr,
                BN: tl.constexpr):  # fmt: skip
    """Keep the frames [batch, T, N] that the next step looks at."""
    i = tl.program_id(0)
    row = tl.program_id(1)
    line = meta + row * COLS
    t = tl.load(line + DROP) + i
    slot = tl.load(line + SLOT).to(tl.int64)
    n = tl.arange(0, BN)
    ok = (n < N) & (t < tl.load(line + KEPT) + tl.load(line + NEW)) & (slot >= 0)
    x = tl.load(window + (row * T + t) * N + n, mask=ok, other=0.0)
    tl.store(kept + (slot * SIZE + i) * N + n, x, mask=ok)


@triton.jit
def _input(at, a_third, here, THIRDS: tl.constexpr, SLOPE: tl.constexpr):
    """What a convolution reads: as it is, or the mean of three, or that through a leaky ReLU."""
    x = tl.load(at, mask=here, other=0.0)
    if THIRDS:
        x = x.to(tl.float32) + tl.load(at + a_third, mask=here, other=0.0)
        x = (x + tl.load(at + 2 * a_third, mask=here, other=0.0)) * (1.0 / 3.0)
    if SLOPE > 0:
        x = tl.where(x > 0, x, x * SLOPE)
    return x


@triton.jit(do_not_specialize=["M", "T_OUT", "taps", "pad", "dilation", "stride", "rate", "plus"])
def conv_kernel(
    a, w, bias, out, residual, residual2, acts, alpha, meta,
    M, T_OUT, a_batch, a_third, out_batch, act_stride, taps, pad, dilation, stride, rate, plus,
    K: tl.constexpr, N: tl.constexpr,
    THIRDS: tl.constexpr, SLOPE: tl.constexpr, ELU: tl.constexpr, SHIFT: tl.constexpr,
    MEL: tl.constexpr, STORE: tl.constexpr, RESIDUALS: tl.constexpr, ACTS: tl.constexpr,
    COLS: tl.constexpr, PRECISION: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A convolution of a [batch, time, K] to out [batch, T_OUT, N], w [taps * K, N].

    Of a row, rate * FRAMES + plus inputs are real (MEL: KEPT + NEW). SHIFT: they begin at LOW.
    THIRDS: the input is the mean of three, a_third apart. SLOPE: then leaky ReLU.
    RESIDUALS are added to the output (as it lies in memory). ACTS: Snakes of it (parameters
    `alpha` [ACTS, N]) go to `acts`, act_stride apart.
    """
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    ok = rows < M
    col_ok = cols < N
    batch = rows // T_OUT
    line = meta + batch * COLS
    if MEL:
        real = tl.load(line + KEPT, mask=ok, other=0) + tl.load(line + NEW, mask=ok, other=0)
    else:
        real = tl.load(line + FRAMES, mask=ok, other=0) * rate + plus
    first = (rows % T_OUT) * stride - pad
    source = a + batch.to(tl.int64) * a_batch
    if SHIFT:
        source += tl.load(line + LOW, mask=ok, other=0) * K
    KB: tl.constexpr = K // BK
    acc = tl.zeros((BM, BN), tl.float32)
    for kk in range(0, taps * KB):
        k = (kk % KB) * BK + tl.arange(0, BK)
        t = first + (kk // KB) * dilation
        here = (ok & (t >= 0) & (t < real))[:, None]
        at = source[:, None] + t[:, None] * K + k[None, :]
        x = _input(at, a_third, here, THIRDS, SLOPE)
        tile = w + (kk * BK + tl.arange(0, BK))[:, None] * N + cols[None, :]
        weights = tl.load(tile, mask=col_ok[None, :], other=0.0)
        acc = tl.dot(x.to(weights.dtype), weights, acc, input_precision=PRECISION)
    acc += tl.load(bias + cols, mask=col_ok, other=0.0)[None, :]
    inside = ok[:, None] & col_ok[None, :]
    at = (batch.to(tl.int64) * out_batch + (rows % T_OUT) * N)[:, None] + cols[None, :]
    if RESIDUALS > 0:
        acc += tl.load(residual + at, mask=inside, other=0.0)
    if RESIDUALS > 1:
        acc += tl.load(residual2 + at, mask=inside, other=0.0)
    if ELU:
        acc = tl.where(acc > 0, acc, tl.exp(tl.minimum(acc, 0.0)) - 1.0)
    if STORE:
        tl.store(out + at, acc, mask=inside)
    for i in tl.static_range(ACTS):
        p = tl.load(alpha + i * N + cols, mask=col_ok, other=1.0)[None, :]
        s = tl.sin(acc * p)
        tl.store(acts + i * act_stride + at, acc + s * s / (p + 1e-9), mask=inside)


@triton.jit(do_not_specialize=["T", "T_F0"])
def phase_kernel(raw, f0, cycles, phase, meta, T, T_F0, rate, samples,
                 N: tl.constexpr, COLS: tl.constexpr, BT: tl.constexpr):  # fmt: skip
    """f0 of the window's frames, raw [batch, T_F0, N] without sign, and the phase at their centres.

    f0 float32 [batch, T] in Hz, 0 behind the end; cycles float32 [batch, T]; phase float64 [slot]:
    that of the frame before the window, brought forward to the next one.
    """
    row = tl.program_id(0)
    line = meta + row * COLS
    slot = tl.load(line + SLOT).to(tl.int64)
    t = tl.arange(0, BT)
    at = raw + (row * T_F0 + tl.load(line + LOW) + t) * N
    hz = tl.abs(tl.load(at, mask=t < tl.load(line + FRAMES), other=0.0))
    step = hz.to(tl.float64) / rate * samples
    begin = tl.load(phase + slot, mask=(slot >= 0) & (tl.load(line + START) > 0), other=0.0)
    centre = begin + tl.cumsum(step, 0)
    tl.store(f0 + row * T + t, hz, mask=t < T)
    tl.store(cycles + row * T + t, centre - tl.floor(centre), mask=t < T)
    moved = tl.sum(tl.where(t < tl.load(line + ADVANCE), step, 0.0), 0) + begin
    tl.store(phase + slot, moved - tl.floor(moved), mask=slot >= 0)


@triton.jit
def _merged(cycles, harmonics, H: tl.constexpr):
    total = cycles * 0.0
    for h in tl.static_range(H):
        turn = cycles * (h + 1)
        turn = turn - tl.floor(turn)
        total += tl.load(harmonics + h) * tl.sin(turn * 6.283185307179586)
    return total


@triton.jit(do_not_specialize=["T"])
def source_kernel(f0, cycles, harmonics, out, meta, T, rate, bias, gain, alpha, sigma, threshold,
                  SAMPLES: tl.constexpr, H: tl.constexpr, STREAM: tl.constexpr,
                  COLS: tl.constexpr, BLOCKS: tl.constexpr):  # fmt: skip
    """The source signal of one frame, as `duologue.token2wav.source`: out [batch, T, SAMPLES]."""
    t = tl.program_id(0)
    row = tl.program_id(1)
    line = meta + row * COLS
    frames = tl.load(line + FRAMES)
    start = tl.load(line + START)
    hz = tl.load(f0 + row * T + t)
    centre = tl.load(cycles + row * T + t)
    behind = tl.load(f0 + row * T + t + 1, mask=t + 1 < frames, other=0.0) / rate
    before = tl.where(start + t > 0, hz / rate, 0.0)
    block = tl.arange(0, BLOCKS)
    z0, z1, z2, z3 = philox_normals(
        block, start + t + block * 0, start * 0 + STREAM,
        tl.load(line + SEED_LOW), tl.load(line + SEED_HIGH),
    )  # fmt: skip
    voiced = hz > threshold
    level = tl.where(voiced, sigma, alpha / 3.0) * gain
    height = tl.where(voiced, alpha, 0.0)
    for i in tl.static_range(4):
        z = z0 if i == 0 else z1 if i == 1 else z2 if i == 2 else z3
        sample = block * 4 + i
        offset = sample - (SAMPLES - 1) / 2
        place = centre + offset * tl.where(offset < 0, before, behind)
        x = _merged(place - tl.floor(place), harmonics, H) * height + z * level + bias
        x = 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
        tl.store(out + (row * T + t) * SAMPLES + sample, x, mask=sample < SAMPLES)


@triton.jit(do_not_specialize=["T", "FRAMES_OUT"])
def stft_kernel(source, basis, out, meta, T, FRAMES_OUT, SAMPLES: tl.constexpr,
                HOP: tl.constexpr, SIZE: tl.constexpr, PAD: tl.constexpr, COLS: tl.constexpr,
                BM: tl.constexpr):  # fmt: skip
    """Centred STFT, mirrored at the ends of each row: out [batch, FRAMES_OUT, PAD]."""
    f = tl.program_id(0) * BM + tl.arange(0, BM)
    row = tl.program_id(1)
    n = tl.load(meta + row * COLS + FRAMES) * SAMPLES
    j = tl.arange(0, SIZE)
    c = tl.arange(0, PAD)
    at = tl.abs(f[:, None] * HOP + j[None, :] - SIZE // 2)
    at = tl.where(at < n, at, 2 * (n - 1) - at)
    ok = (at >= 0) & (at < n)
    x = tl.load(source + row * T * SAMPLES + at, mask=ok, other=0.0)
    y = tl.dot(x, tl.load(basis + j[:, None] * PAD + c[None, :]), input_precision="ieee")
    to = out + (row * FRAMES_OUT + f).to(tl.int64)[:, None] * PAD + c[None, :]
    tl.store(to, y, mask=(f < FRAMES_OUT)[:, None])


@triton.jit(do_not_specialize=["M"])
def spectrum_kernel(x, cosines, sines, out, M, N: tl.constexpr, BINS: tl.constexpr,
                    SIZE: tl.constexpr, BM: tl.constexpr):  # fmt: skip
    """Log magnitude and angle, x [M, 2 BINS <= N], to windowed pieces of sound, out [M, SIZE]."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, SIZE)
    ok = (m < M)[:, None] & (k < BINS)[None, :]
    at = x + m[:, None] * N + k[None, :]
    size = tl.minimum(tl.exp(tl.load(at, mask=ok, other=-100.0)), 100.0)
    angle = tl.sin(tl.load(at + BINS, mask=ok, other=0.0))
    square = k[:, None] * SIZE + k[None, :]
    y = tl.dot(size * tl.cos(angle), tl.load(cosines + square), input_precision="ieee")
    y += tl.dot(size * tl.sin(angle), tl.load(sines + square), input_precision="ieee")
    tl.store(out + m[:, None] * SIZE + k[None, :], y, mask=(m < M)[:, None])


@triton.jit(do_not_specialize=["F", "COUNT"])
def overlap_kernel(pieces, window, out, meta, F, COUNT, limit, SAMPLES: tl.constexpr,
                   HOP: tl.constexpr, SIZE: tl.constexpr, COLS: tl.constexpr,
                   BN: tl.constexpr):  # fmt: skip
    """Overlap and add pieces [batch, F, SIZE]: out [batch, COUNT] from the frame SKIP on."""
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1)
    line = meta + row * COLS
    last = tl.load(line + FRAMES) * (SAMPLES // HOP)
    n = i + tl.load(line + SKIP) * SAMPLES + SIZE // 2
    total = tl.zeros((BN,), tl.float32)
    envelope = tl.zeros((BN,), tl.float32)
    for back in tl.static_range(SIZE // HOP):
        f = n // HOP - back
        j = n - f * HOP
        ok = (f >= 0) & (f <= last)
        total += tl.load(pieces + (row * F + f) * SIZE + j, mask=ok, other=0.0)
        w = tl.load(window + j, mask=ok, other=0.0)
        envelope += w * w
    y = total / tl.maximum(envelope, 1e-8)
    y = tl.minimum(tl.maximum(y, -limit), limit)
    tl.store(out + row * COUNT + i, y, mask=i < COUNT)
