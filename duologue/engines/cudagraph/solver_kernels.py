"""Triton kernels of the flow's solver: noise to start from, and the step between two velocities."""

import triton
import triton.language as tl

from duologue.engines.cudagraph.kernels import NOISE, SEED_HIGH, SEED_LOW, _begin


@triton.jit
def philox_normals(block, frame, stream, key0, key1):
    """Four standard normals; the recipe is that of `duologue.token2wav.noise`."""
    c0 = block.to(tl.uint32)
    c1 = frame.to(tl.uint32)
    c2 = c0 * 0
    c3 = c2 + stream.to(tl.uint32)
    k0 = key0.to(tl.uint32)
    k1 = key1.to(tl.uint32)
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, tl.full((), 0xD2511F53, tl.uint32))
        high2 = tl.umulhi(c2, tl.full((), 0xCD9E8D57, tl.uint32))
        low0 = c0 * tl.full((), 0xD2511F53, tl.uint32)
        low2 = c2 * tl.full((), 0xCD9E8D57, tl.uint32)
        c0 = high2 ^ c1 ^ k0
        c1 = low2
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 += tl.full((), 0x9E3779B9, tl.uint32)
        k1 += tl.full((), 0xBB67AE85, tl.uint32)
    r0 = tl.sqrt(-2.0 * tl.log(_uniform(c0)))
    r1 = tl.sqrt(-2.0 * tl.log(_uniform(c2)))
    a0 = 6.2831854820251465 * _uniform(c1)
    a1 = 6.2831854820251465 * _uniform(c3)
    return r0 * tl.cos(a0), r0 * tl.sin(a0), r1 * tl.cos(a1), r1 * tl.sin(a1)


@triton.jit
def _uniform(word):
    return ((word >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08


@triton.jit(do_not_specialize=["L", "meta_stride"])
def noise_kernel(
    out, meta, meta_stride, L, FLOW: tl.constexpr, PROMPT: tl.constexpr, N: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    """Noise of one frame, out float32 [B, L, N]; the streams FLOW and PROMPT as in `noise`.

    The prompt's is the same for every session: seed 0, by index from the prompt's first frame.
    """
    frame = tl.program_id(0)
    session = tl.program_id(1)
    line = meta + session * meta_stride
    index = tl.load(line + NOISE) + frame
    spoken = index >= 0
    block = tl.arange(0, BLOCKS)
    z0, z1, z2, z3 = philox_normals(
        block,
        tl.where(spoken, index, frame) + block * 0,
        tl.where(spoken, FLOW, PROMPT),
        tl.where(spoken, tl.load(line + SEED_LOW), 0),
        tl.where(spoken, tl.load(line + SEED_HIGH), 0),
    )
    at = out + (session * L + frame) * N + block * 4
    left = N - block * 4
    tl.store(at, z0, mask=left > 0)
    tl.store(at + 1, z1, mask=left > 1)
    tl.store(at + 2, z2, mask=left > 2)
    tl.store(at + 3, z3, mask=left > 3)


@triton.jit(do_not_specialize=["BL"])
def euler_kernel(
    a, w_out, b_out, x, x_next, w_in, b_in, condition, hidden, BL, dt, guidance,
    K: tl.constexpr, MEL: tl.constexpr, PAD: tl.constexpr,
    VELOCITY: tl.constexpr, PROJECT: tl.constexpr, SPAN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """From the DiT's last layer of one Euler step to its first layer of the next.

    VELOCITY: velocity of both rows of the normalised a [2 BL, K] with classifier-free guidance,
    and `x_next = x + dt v`, else x itself. PROJECT: the next `hidden` [2 BL, K] from it, with
    `condition` [BL, K] for conditional rows and `b_in` for the others. Program (m, i) projects
    SPAN blocks of BN columns. w_out [K, PAD], w_in [PAD, K]; MEL of PAD columns count.
    """
    _begin(PDL)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = rows < BL
    mel = tl.arange(0, PAD)
    inside = ok[:, None] & (mel < MEL)[None, :]
    at = rows[:, None] * MEL + mel[None, :]
    state = tl.load(x + at, mask=inside, other=0.0)
    if VELOCITY:
        given = tl.zeros((BM, PAD), tl.float32)
        free = tl.zeros((BM, PAD), tl.float32)
        for begin in range(0, K, BN):
            k = begin + tl.arange(0, BN)
            weights = tl.load(w_out + k[:, None] * PAD + mel[None, :])
            from_a = a + rows[:, None] * K + k[None, :]
            given = tl.dot(tl.load(from_a, mask=ok[:, None], other=0.0), weights, given)
            free = tl.dot(tl.load(from_a + BL * K, mask=ok[:, None], other=0.0), weights, free)
        velocity = (1.0 + guidance) * given - guidance * free + tl.load(b_out + mel)[None, :]
        state += dt * velocity
        tl.store(x_next + at, state, mask=inside & (tl.program_id(1) == 0))
    if PROJECT:
        narrow = state.to(w_in.dtype.element_ty)
        for i in tl.static_range(SPAN):
            cols = (tl.program_id(1) * SPAN + i) * BN + tl.arange(0, BN)
            y = tl.dot(narrow, tl.load(w_in + mel[:, None] * K + cols[None, :]))
            to = rows[:, None] * K + cols[None, :]
            given = y + tl.load(condition + to, mask=ok[:, None], other=0.0)
            tl.store(hidden + to, given, mask=ok[:, None])
            tl.store(hidden + BL * K + to, y + tl.load(b_in + cols)[None, :], mask=ok[:, None])
