"""Triton kernels of the transformer layers: products, norms, attention, and their caches.

Activations lie as rows of channels, one row a frame; row m of a batch is frame `m % L` of batch
row `m // L`. Batch row r belongs to session `r % B`; the flow's rows r >= B are unconditional. What
a session needs of the host is one row of `meta`, int32, whose columns are named below.

With PDL (programmatic dependent launch, compute capability 9.0) a kernel is launched while the one
before it runs, and waits for it before it touches anything but weights and meta.
"""

# What a kernel defines under one constexpr flag, it uses under the same.
# pyright: reportOperatorIssue=false, reportPossiblyUnboundVariable=false

from duologue.errors import EngineError

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError as error:
    raise EngineError(
        "the CUDA engine needs triton, which comes with torch's builds for NVIDIA GPUs: "
        "install one of those"
    ) from error

SLOT = tl.constexpr(0)  # of the session's caches; -1 for neither reading nor writing any
VALID = tl.constexpr(1)  # frames of this chunk that are real
START = tl.constexpr(2)  # frames of the session before this chunk
VOICE = tl.constexpr(3)  # slot of the voice's prompt
PROMPT = tl.constexpr(4)  # frames of the prompt
SIDE = tl.constexpr(5)  # which of the two sides of the convolution caches is read
SEED_LOW = tl.constexpr(6)
SEED_HIGH = tl.constexpr(7)
NOISE = tl.constexpr(8)  # index of the chunk's first frame; negative ones are the prompt's
TOKENS = 9
"""Column of the first token; -1 stands for none."""


@triton.jit
def _begin(PDL: tl.constexpr):
    """Wait for the kernel before; only then may the next one come, as two ahead take its room."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def _fetch(at):
    """Bring what lies at these addresses into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def _mish(x):
    e = tl.exp(tl.minimum(x, 20.0))
    n = e * (e + 2.0)
    return x * n / (n + 2.0)


@triton.jit
def _activate(x, ACT: tl.constexpr):
    if ACT == "gelu":
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    if ACT == "silu":
        x = x / (1.0 + tl.exp(-x))
    if ACT == "leaky":
        x = tl.where(x > 0, x, 0.01 * x)
    return x


@triton.jit
def _head_norm(x, gain, shift, D: tl.constexpr):
    """LayerNorm over the columns of a tile."""
    x -= (tl.sum(x, 1) / D)[:, None]
    return x / tl.sqrt(tl.sum(x * x, 1) / D + 1e-5)[:, None] * gain + shift


@triton.jit(do_not_specialize=["M"])
def matmul_kernel(
    a, w, bias, out, gain, shift, M, N, K, normed,
    ACT: tl.constexpr, NORM: tl.constexpr, TURNS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`out = act(a @ w + bias)`, a [M, K], w [K, N], in parts that are still to be summed.

    Part i [M, N] of out goes over the i-th `TURNS * BK` of K; there is one part if there is ACT or
    NORM. NORM: the first `normed` columns get a LayerNorm by BN columns, `* gain + shift`.
    """
    rows = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    begin = part * (TURNS * BK)
    if PDL:
        for turn in tl.static_range(TURNS):
            line = begin + turn * BK + tl.arange(0, BK)
            _fetch(w + line * N + tl.program_id(0) * BN)
    ok = (rows < M)[:, None]
    k = begin + tl.arange(0, BK)
    at_a = a + rows[:, None] * K + k[None, :]
    at_w = w + k[:, None] * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    acc += tl.load(bias + cols, mask=(cols >= 0) & (part == 0), other=0.0)[None, :]
    if NORM:
        mul = tl.load(gain + cols)[None, :]
        add = tl.load(shift + cols)[None, :]
    _begin(PDL)
    for _ in range(TURNS):
        acc = tl.dot(tl.load(at_a, mask=ok, other=0.0), tl.load(at_w), acc)
        at_a += BK
        at_w += BK * N
    if NORM:
        acc = tl.where(tl.program_id(0) * BN < normed, _head_norm(acc, mul, add, BN), acc)
    acc = _activate(acc, ACT)
    tl.store(out + (part * M + rows)[:, None] * N + cols[None, :], acc, mask=ok)


@triton.jit
def head_norm_kernel(x, gain, shift, stride, HEADS: tl.constexpr, D: tl.constexpr):
    """LayerNorm of the first HEADS * D columns of each row, head by head, in place."""
    at = tl.arange(0, HEADS)[:, None] * D + tl.arange(0, D)[None, :]
    row = x + tl.program_id(0) * stride + at
    y = _head_norm(tl.load(row).to(tl.float32), tl.load(gain + at), tl.load(shift + at), D)
    tl.store(row, y)


@triton.jit(do_not_specialize=["M", "L", "B", "meta_stride"])
def norm_kernel(
    h, parts, gate, mul, add, out, cache, meta, M, L, B, meta_stride, cache_slot, cache_row, eps,
    N: tl.constexpr, PARTS: tl.constexpr, RESIDUAL: tl.constexpr, GATE: tl.constexpr,
    MISH: tl.constexpr, PAST: tl.constexpr, CACHE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`h += gate * (sum of parts)`, then `out = [mish] LayerNorm(h) * mul + add`, row by row.

    parts [PARTS, M, N]; without RESIDUAL the parts stand for h. PAST > 0: out [M, PAST + 1, N] is
    the input of a causal convolution, each row with those before it; what lies before the chunk
    comes from `cache` [slot, row, side, PAST, N], and the chunk's last go to its other side.
    """
    row = tl.program_id(0)
    n = tl.arange(0, N)
    scale = tl.load(mul + n)
    shift = tl.load(add + n)
    if GATE:
        gain = tl.load(gate + n)
    _begin(PDL)
    x = tl.zeros((N,), tl.float32)
    for i in tl.static_range(PARTS):
        x += tl.load(parts + (i * M + row) * N + n)
    if GATE:
        x *= gain
    if RESIDUAL:
        x += tl.load(h + row * N + n)
        if PARTS > 0:
            tl.store(h + row * N + n, x)
    x -= tl.sum(x, 0) / N
    x = x / tl.sqrt(tl.sum(x * x, 0) / N + eps) * scale + shift
    if MISH:
        x = _mish(x)
    to = out + row * (PAST + 1) * N + n
    tl.store(to + PAST * N, x)
    if PAST > 0:
        frame = row % L
        for i in tl.static_range(1, PAST + 1):
            tl.store(to + (i * (PAST + 1) + PAST - i) * N, x, mask=(n >= 0) & (frame + i < L))
        line = meta + (row // L % B) * meta_stride
        at = cache
        if CACHE:
            at += tl.load(line + SLOT).to(tl.int64) * cache_slot + row // L // B * cache_row
        _remember_context(to, x, at, frame, line, N, PAST, CACHE)


@triton.jit
def _remember_context(
    to, x, cache, frame, line, N: tl.constexpr, PAST: tl.constexpr, CACHE: tl.constexpr
):  # fmt: skip
    """Put what was before the chunk before its first frames, and keep x if it is of its last."""
    n = tl.arange(0, N)
    old = tl.zeros((N,), to.dtype.element_ty)
    if CACHE:
        known = tl.load(line + SLOT) >= 0
        side = tl.load(line + SIDE)
        place = frame - tl.load(line + VALID) + PAST
        keep = (n >= 0) & known & (place >= 0) & (place < PAST)
        tl.store(cache + ((1 - side) * PAST + place) * N + n, x, mask=keep)
    for i in tl.static_range(PAST):
        before = (n >= 0) & (frame + i < PAST)
        if CACHE:
            at = cache + (side * PAST + frame + i) * N + n
            old = tl.load(at, mask=before & known, other=0.0)
        tl.store(to + i * N, old, mask=before)


@triton.jit(do_not_specialize=["L", "B", "meta_stride", "bias_row", "prompt_size"])
def attention_kernel(
    qkv, out, prompt, ring, bias, meta,
    L, B, qkv_stride, meta_stride, prompt_slot, prompt_row, prompt_head,
    ring_slot, ring_row, ring_head, bias_row, prompt_size,
    H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, RATE: tl.constexpr,
    PAST: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Attention over the voice's prompt, the session's ring and the chunk itself.

    qkv [M, stride]: q | k | v of H heads of D; q is scaled by log2(e) / sqrt(D). prompt and ring:
    [slot, row, head, frame, k | v]. RATE: mel frames for one frame here. BIAS: scaled scores
    [M, H, prompt_size + W + L] are added, in the order prompt, ring, chunk.
    """
    frame = tl.program_id(0) * BM + tl.arange(0, BM)
    row = tl.program_id(1) // H
    head = tl.program_id(1) % H
    line = meta + (row % B) * meta_stride
    d = tl.arange(0, D)
    rows = row * L + frame
    inside = (frame < L)[:, None]
    known = 0
    past = 0
    if PAST:
        known = tl.load(line + PROMPT) // RATE
        past = known + tl.minimum(tl.load(line + START) // RATE, W)
        at_prompt = prompt + tl.load(line + VOICE).to(tl.int64) * prompt_slot
        at_prompt += (row // B) * prompt_row + head * prompt_head
        at_ring = ring + tl.load(line + SLOT).to(tl.int64) * ring_slot
        at_ring += (row // B) * ring_row + head * ring_head
    count = past + tl.load(line + VALID) // RATE
    _begin(PDL)
    q = tl.load(qkv + rows[:, None] * qkv_stride + head * D + d[None, :], mask=inside, other=0.0)
    at_new = qkv + (row * L).to(tl.int64) * qkv_stride + (H + head) * D
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    for begin in range(0, count, BN):
        j = begin + tl.arange(0, BN)
        ok = j < count
        keys = at_new + (j - past) * qkv_stride
        values = keys + H * D
        if PAST:
            old = tl.where(j < known, at_prompt + j * (2 * D), at_ring + (j - known) * (2 * D))
            keys = tl.where(j < past, old, keys)
            values = tl.where(j < past, old + D, values)
        scores = tl.dot(q, tl.load(keys[None, :] + d[:, None], mask=ok[None, :], other=0.0))
        if BIAS:
            place = j
            if PAST:
                place = tl.where(j < past, prompt_size + j - known, prompt_size + W + j - past)
                place = tl.where(j < known, j, place)
            at = bias + (rows.to(tl.int64) * H + head)[:, None] * bias_row + place[None, :]
            scores += tl.load(at, mask=inside & ok[None, :], other=0.0)
        scores = tl.where(ok[None, :], scores, float("-inf"))
        peak = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - peak[:, None])
        fade = tl.exp2(top - peak)
        total = total * fade + tl.sum(weights, 1)
        v = tl.load(values[:, None] + d[None, :], mask=ok[:, None], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None])
        top = peak
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + rows[:, None] * (H * D) + head * D + d[None, :], acc, mask=inside)


@triton.jit(do_not_specialize=["L", "B", "meta_stride"])
def remember_kernel(
    qkv, ring, meta, L, B, qkv_stride, qkv_layer, meta_stride,
    ring_slot, ring_layer, ring_row, ring_head,
    H: tl.constexpr, D: tl.constexpr, W: tl.constexpr, RATE: tl.constexpr, BM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Put the newest W keys and values of a chunk into the ring, of all layers at once."""
    _begin(PDL)
    frame = tl.program_id(0) * BM + tl.arange(0, BM)
    row = tl.program_id(1) // H
    head = tl.program_id(1) % H
    layer = tl.program_id(2).to(tl.int64)
    line = meta + (row % B) * meta_stride
    count = tl.load(line + VALID) // RATE
    slot = tl.load(line + SLOT)
    ok = ((frame < count) & (frame >= count - W) & (slot >= 0))[:, None]
    place = (tl.load(line + START) // RATE + frame) % W
    d = tl.arange(0, D)[None, :]
    source = qkv + layer * qkv_layer + (row * L + frame).to(tl.int64)[:, None] * qkv_stride + d
    target = ring + slot.to(tl.int64) * ring_slot + layer * ring_layer + (row // B) * ring_row
    target += head * ring_head + place[:, None] * (2 * D) + d
    tl.store(target, tl.load(source + (H + head) * D, mask=ok), mask=ok)
    tl.store(target + D, tl.load(source + (2 * H + head) * D, mask=ok), mask=ok)


@triton.jit(do_not_specialize=["L", "meta_stride", "prompt_size"])
def positions_kernel(
    out, frequency, meta, meta_stride, prompt_size, L,
    F: tl.constexpr, W: tl.constexpr, RATE: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Sinusoids of how far each key lies before the chunk, out [B, prompt_size + W + L, 2 F]."""
    j = tl.program_id(0) * BM + tl.arange(0, BM)
    session = tl.program_id(1)
    line = meta + session * meta_stride
    start = tl.load(line + START) // RATE
    prompt = tl.load(line + PROMPT) // RATE
    size = prompt_size + W + L
    place = j - prompt_size
    distance = W - place
    if W > 0:
        distance = tl.where(place < W, (start - 1 - place + W) % W + 1, distance)
        distance = tl.where(j < prompt_size, prompt + start - j, distance)
    f = tl.arange(0, F)
    angle = distance.to(tl.float32)[:, None] * tl.load(frequency + f)[None, :]
    at = out + (session * size + j).to(tl.int64)[:, None] * (2 * F) + f[None, :]
    ok = (j < size)[:, None]
    tl.store(at, tl.sin(angle), mask=ok)
    tl.store(at + F, tl.cos(angle), mask=ok)


@triton.jit(do_not_specialize=["M", "L"])
def turn_kernel(
    u, out, sines, cosines, M, L, u_stride,
    H: tl.constexpr, F: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Turn each pair (u sin, u cos) by its query's place in the chunk; u [M, H, 2 F] strided.

    sines and cosines [L, F]: of each frequency at each place.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1)
    f = tl.arange(0, F)[None, :]
    ok = (rows < M)[:, None]
    at = u + rows[:, None] * u_stride + head * (2 * F) + f
    sin = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    cos = tl.load(at + F, mask=ok, other=0.0).to(tl.float32)
    place = (rows % L)[:, None] * F + f
    s = tl.load(sines + place)
    c = tl.load(cosines + place)
    to = out + (rows[:, None] * H + head) * (2 * F) + f
    tl.store(to, sin * c - cos * s, mask=ok)
    tl.store(to + F, sin * s + cos * c, mask=ok)
