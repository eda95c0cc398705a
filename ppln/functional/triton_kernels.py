"""The kernels of the fused node on CUDA, in Triton; triton.py launches them.

One program computes BLOCK neighbouring outputs of one sample, for all segments and time stamps; what belongs
to a segment is held in a tuple of n vectors, in registers. The backward pass recomputes what it needs from
the coefficients: nothing is saved between the two.

A convolution's bias may come here instead of going to the convolution, which would read and write all maps
once more to add it and read them once more for its gradient.

Names follow docs/maths.md: m slopes, b intercepts, s widths, knot[k] the end of segment k.
"""

import triton
import triton.language as tl

from ppln.functional import reference

INTERPRETED = triton.knobs.runtime.interpret  # TRITON_INTERPRET=1: the kernels run on CPU tensors, slowly


_PORTABLE = tl.constexpr(INTERPRETED)
_LEAST = tl.constexpr(reference.LEAST)


@triton.jit
def _exp2(x):
    # The plain instruction: tl.exp2 adds more to get denormal results right, which nothing here needs.
    if _PORTABLE or x.dtype == tl.float64:
        return tl.exp(x * 0.6931471805599453)
    else:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _exponential_of_negative(x):
    return tl.where(x < _LEAST, 0.0, _exp2(x * 1.4426950408889634))  # NaN stays NaN


@triton.jit
def _reciprocal(x):
    if _PORTABLE or x.dtype == tl.float64:
        return 1 / x
    else:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _tanh(x, STORED: tl.constexpr):
    a = tl.abs(x)
    magnitude = 2 * _reciprocal(1 + _exp2(a * -2.8853900817779268)) - 1
    if STORED == tl.float32:
        # Near 0 the difference above cancels: there, an odd polynomial. Shorter types do not notice.
        q = a * a
        p = ((-5.70498872745e-3 * q + 2.06390887954e-2) * q - 5.37397155531e-2) * q + 1.33314422036e-1
        magnitude = tl.where(a < 0.625, a + a * q * (p * q - 3.33332819422e-1), magnitude)
    return tl.where(x < 0, -magnitude, magnitude)


@triton.jit
def _predict(
    slope,
    intercept,
    width,
    bias,
    row,
    at,
    segment,
    inside,
    R,
    N: tl.constexpr,
    BIAS: tl.constexpr,
    REAL: tl.constexpr,
):
    """Slopes, intercepts, widths and knots from the raw coefficients at offset `at`: a tuple of N each."""
    m, b, s, knot = (), (), (), ()
    for k in tl.static_range(N):
        s = s + (tl.load(width + at + k * segment, mask=inside, other=0.0).to(REAL),)
        m = m + (tl.load(slope + at + k * segment, mask=inside, other=0.0).to(REAL),)
        b = b + (tl.load(intercept + at + k * segment, mask=inside, other=0.0).to(REAL),)
    if BIAS:
        with_m, with_b, with_s = (), (), ()
        for k in tl.static_range(N):
            with_m = with_m + (m[k] + tl.load(bias + k * R + row).to(REAL),)
            with_b = with_b + (b[k] + tl.load(bias + (N + k) * R + row).to(REAL),)
            with_s = with_s + (s[k] + tl.load(bias + (2 * N + k) * R + row).to(REAL),)
        m, b, s = with_m, with_b, with_s
    top = s[0]
    for k in tl.static_range(1, N):
        top = tl.maximum(top, s[k])
    powers, slopes = (), ()
    total = tl.zeros_like(top)
    for k in tl.static_range(N):
        powers = powers + (_exponential_of_negative(s[k] - top),)
        slopes = slopes + (_tanh(m[k], slope.dtype.element_ty),)
        total += powers[k]
    scale = _reciprocal(total)
    widths = ()
    end = tl.zeros_like(top)
    for k in tl.static_range(N):
        widths = widths + (powers[k] * scale,)
        end += widths[k]
        end = tl.where(end > 1, 1.0, end)  # NaN stays NaN
        if k == N - 1:
            end = tl.full(end.shape, 1.0, REAL)
        knot = knot + (end,)
    return slopes, b, widths, knot


@triton.jit
def _middle(knot, k: tl.constexpr):
    """The middle of segment k."""
    if k == 0:
        return knot[0] * 0.5
    else:
        return (knot[k - 1] + knot[k]) * 0.5


@triton.jit
def _used(weight, x):
    """x where it has a weight, else 0: 0 times inf is not 0."""
    return tl.where(weight != 0, x, 0.0)


@triton.jit
def _passage(knot, t, before, temperature, k: tl.constexpr, N: tl.constexpr, SMOOTH: tl.constexpr):
    """How far t is past the knot at the end of segment k, the weight of line k, and d past / d t.

    `past` is 0 before the knot, 1 after it, and near a smoothed knot between the two. The potential at t is
    a mean of the lines, line k with the weight past(k - 1) - past(k); `before` is past(k - 1).
    """
    zero = tl.zeros_like(t)
    if k == N - 1:
        return zero, before, zero
    else:
        ended = t >= knot[k]
        if SMOOTH:
            e = _exponential_of_negative(tl.abs(t - knot[k]) * -temperature)
            # A knot is felt in the segments that meet there, and not beyond.
            if k > 0:
                e = tl.where(t >= knot[k - 1], e, zero)
            if k < N - 2:
                e = tl.where(t >= knot[k + 1], zero, e)
            scale = _reciprocal(1 + e)
            across = e * scale
            # After the knot, past(k - 1) is 1, and 1 - past(k) would round a small weight away.
            weight = tl.where(ended, across, before - across)
            return tl.where(ended, scale, across), weight, temperature * (across * scale)
        else:
            return tl.where(ended, zero + 1, zero), tl.where(ended, zero, before), zero


@triton.jit
def _place(R, L, BIAS: tl.constexpr, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """The outputs of this program: their sample, row and place in it, dense index, and whether they exist.

    LENGTH is L where it is short, so that the division is by a constant, else 0. With a bias, a program
    stays within a row, which is then a channel.
    """
    if BIAS:
        blocks = tl.cdiv(L, BLOCK)
        line = tl.program_id(0) // blocks
        element = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
        return line // R, line % R, element, (line % R) * L + element, element < L
    else:
        blocks = tl.cdiv(R * L, BLOCK)
        batch = tl.program_id(0) // blocks
        dense = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
        if R == 1:
            return batch, tl.zeros_like(dense), dense, dense, dense < R * L
        elif LENGTH > 0:
            return batch, dense // LENGTH, dense % LENGTH, dense, dense < R * L
        else:
            return batch, dense // L, dense % L, dense, dense < R * L


@triton.jit
def forward_kernel(
    slope,
    intercept,
    width,
    bias,
    t,
    mean,
    out,
    slope_start,
    intercept_start,
    width_start,
    mean_start,
    T,
    R,
    L,
    in_batch,
    in_segment,
    in_row,
    in_element,
    mean_batch,
    mean_row,
    mean_element,
    temperature,
    N: tl.constexpr,
    SMOOTH: tl.constexpr,
    NORMALIZE: tl.constexpr,
    BIAS: tl.constexpr,
    REAL: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch, row, element, dense, inside = _place(R, L, BIAS, LENGTH, BLOCK)
    at = row * in_row + element * in_element
    far = batch.to(tl.int64)  # within a sample 32 bits are enough for an offset, between samples not
    m, b, s, knot = _predict(
        slope + slope_start + far * in_batch,
        intercept + intercept_start + far * in_batch,
        width + width_start + far * in_batch,
        bias,
        row,
        at,
        in_segment,
        inside,
        R,
        N,
        BIAS,
        REAL,
    )
    shift = tl.zeros([BLOCK], REAL)
    if NORMALIZE:
        at_mean = row * mean_row + element * mean_element
        shift += tl.load(mean + mean_start + far * mean_batch + at_mean, mask=inside, other=0.0).to(REAL)
        if BIAS:
            shift += tl.load(bias + 3 * N * R + row).to(REAL)
        for k in tl.static_range(N):
            shift -= s[k] * _used(s[k], m[k] * _middle(knot, k) + b[k])
    for i in range(T):
        now = tl.load(t + batch * T + i) + tl.zeros([BLOCK], REAL)
        value, before = shift, tl.full([BLOCK], 1.0, REAL)
        for k in tl.static_range(N):
            before, weight, rate = _passage(knot, now, before, temperature, k, N, SMOOTH)
            value += weight * _used(weight, m[k] * now + b[k])
        tl.store(out + (far * T + i) * (R * L) + dense, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(
    slope,
    intercept,
    width,
    bias,
    t,
    grad,
    d_slope,
    d_intercept,
    d_width,
    d_mean,
    d_t,  # [B, T, blocks]: one sum for each program
    d_bias,  # [maps, R, B, blocks of a row], likewise
    slope_start,
    intercept_start,
    width_start,
    d_slope_start,
    d_intercept_start,
    d_width_start,
    d_mean_start,
    T,
    R,
    L,
    in_batch,
    in_segment,
    in_row,
    in_element,
    out_batch,
    out_segment,
    out_row,
    out_element,
    mean_batch,
    mean_row,
    mean_element,
    temperature,
    N: tl.constexpr,
    SMOOTH: tl.constexpr,
    NORMALIZE: tl.constexpr,
    NEEDS_MEAN: tl.constexpr,
    NEEDS_T: tl.constexpr,
    BIAS: tl.constexpr,
    REAL: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    batch, row, element, dense, inside = _place(R, L, BIAS, LENGTH, BLOCK)
    at = row * in_row + element * in_element
    far = batch.to(tl.int64)
    m, b, s, knot = _predict(
        slope + slope_start + far * in_batch,
        intercept + intercept_start + far * in_batch,
        width + width_start + far * in_batch,
        bias,
        row,
        at,
        in_segment,
        inside,
        R,
        N,
        BIAS,
        REAL,
    )
    zero = tl.zeros([BLOCK], REAL)
    d_m, d_b, d_knot = (), (), ()
    for _ in tl.static_range(N):
        d_m, d_b, d_knot = d_m + (zero,), d_b + (zero,), d_knot + (zero,)
    total = zero
    for i in range(T):
        now = tl.load(t + batch * T + i) + zero
        g = tl.load(grad + (far * T + i) * (R * L) + dense, mask=inside, other=0.0).to(REAL)
        more_m, more_b, more_knot = (), (), ()
        before, speed = zero + 1, zero
        line = m[0] * now + b[0]
        for k in tl.static_range(N):
            before, weight, rate = _passage(knot, now, before, temperature, k, N, SMOOTH)
            push = zero  # what the knot passes on
            if k < N - 1:
                next_line = m[k + 1] * now + b[k + 1]
                push = g * rate * _used(rate, next_line - line)
                line = next_line
            more_b = more_b + (d_b[k] + g * weight,)
            more_m = more_m + (d_m[k] + g * weight * now,)
            more_knot = more_knot + (d_knot[k] - push,)
            speed += g * weight * _used(weight, m[k]) + push
        d_m, d_b, d_knot = more_m, more_b, more_knot
        total += g
        if NEEDS_T:
            programs = R * tl.cdiv(L, BLOCK) if BIAS else tl.cdiv(R * L, BLOCK)  # of a sample
            place = (far * T + i) * programs + tl.program_id(0) % programs
            tl.store(d_t + place, tl.sum(tl.where(inside, speed, zero)))

    to = row * out_row + element * out_element
    if NEEDS_MEAN:
        at_mean = row * mean_row + element * mean_element
        tl.store(
            d_mean + d_mean_start + far * mean_batch + at_mean, total.to(d_mean.dtype.element_ty), mask=inside
        )
    # From knots to widths (a sum over the knots that come after), then through the softmax and the tanh.
    after, rise, common = zero, zero, zero
    d_s = ()
    for k in tl.static_range(N - 1, -1, -1):
        after += d_knot[k]
        more = after
        if NORMALIZE:
            # A wider segment adds its line's end to the integral, and moves those after it up their lines.
            more -= total * (_used(s[k], m[k] * knot[k] + b[k]) + rise)
            rise += s[k] * _used(s[k], m[k])
        d_s = (more,) + d_s
        common += s[k] * more
    kind = d_slope.dtype.element_ty
    if BIAS:
        blocks = tl.cdiv(L, BLOCK)
        sums = tl.num_programs(0) // R  # for each channel and map
        d_bias += row * sums + far * blocks + tl.program_id(0) % blocks
    for k in tl.static_range(N):
        grad_b, grad_m = d_b[k], d_m[k]
        if NORMALIZE:
            grad_b -= total * s[k]
            grad_m -= total * s[k] * _middle(knot, k)
        grad_m *= 1 - m[k] * m[k]
        grad_s = zero
        if SMOOTH or NORMALIZE:  # else knots have no part in the gradient, not even NaN
            grad_s = s[k] * _used(s[k], d_s[k] - common)
        here = far * out_batch + k * out_segment + to
        tl.store(d_intercept + d_intercept_start + here, grad_b.to(kind), mask=inside)
        tl.store(d_slope + d_slope_start + here, grad_m.to(kind), mask=inside)
        tl.store(d_width + d_width_start + here, grad_s.to(kind), mask=inside)
        if BIAS:  # outside, the gradient was read as 0, and so these are 0
            tl.store(d_bias + k * R * sums, tl.sum(grad_m))
            tl.store(d_bias + (N + k) * R * sums, tl.sum(grad_b))
            tl.store(d_bias + (2 * N + k) * R * sums, tl.sum(grad_s))
    if BIAS and NORMALIZE:
        tl.store(d_bias + 3 * N * R * sums, tl.sum(total))
