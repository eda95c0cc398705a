// The node for one instruction set: included by node.cpp once for each, inside a namespace of its own,
// with BYTES the size of a vector register.
//
// One step computes as many neighbouring outputs as a vector holds, for all segments and time stamps.
// The backward pass recomputes what it needs from the coefficients: nothing is saved between the two.
//
// Names follow docs/maths.md: m slopes, b intercepts, s widths, knot[k] the end of segment k.

#ifndef INLINE
#define INLINE inline __attribute__((always_inline))
#endif

template <typename real>
struct Lanes {
  static constexpr int count = BYTES / int(sizeof(real));
  typedef real value __attribute__((vector_size(BYTES)));
};
using Float = Lanes<float>::value;
using Double = Lanes<double>::value;
typedef int32_t Int __attribute__((vector_size(BYTES)));
typedef uint32_t Bits __attribute__((vector_size(BYTES)));
typedef uint16_t Halves __attribute__((vector_size(BYTES / 2)));

struct Exponential {
  Float power, rest;  // exp(x) = power * (1 + rest)
};

INLINE Exponential split_exponential(Float x) {  // x in [-87, 88]
  // exp(x) = 2^k exp(r) with |r| <= log(2) / 2: the power by its bits, the rest by a polynomial. 1 ulp.
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Float shifted = x * 1.44269504f + magic;
  const Float k = shifted - magic;
  const Float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  Float p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {(Float)(((Int)shifted << 23) + 0x3f800000), p * (r * r) + r};
}

template <typename V, typename real>
INLINE V clamp(V x, real low, real high) {  // NaN stays NaN
  x = x < low ? V{} + low : x;
  return x > high ? V{} + high : x;
}

INLINE Float exponential(Float x) {
  const Exponential e = split_exponential(clamp(x, -87.0f, 80.0f));
  return e.power * e.rest + e.power;
}

INLINE Float reciprocal(Float x) {  // of a normal x > 0: a guess from its bits, then Newton; 1 ulp or so
  Float y = (Float)(0x7ef311c3 - (Int)x);
  y *= 2.0f - x * y;
  y *= 2.0f - x * y;
  return y + y * (1.0f - x * y);
}

INLINE Float hyperbolic_tangent(Float x) {
  // With e = exp(2x) - 1, which does not cancel near 0: tanh(x) = e / (e + 2).
  const Exponential e = split_exponential(clamp(2.0f * x, -40.0f, 40.0f));
  const Float less_one = e.power * e.rest + (e.power - 1.0f);
  return less_one * reciprocal(less_one + 2.0f);
}

template <double function(double)>
INLINE Double each(Double x) {
  double part[Lanes<double>::count];
  std::memcpy(part, &x, sizeof x);
  for (double& y : part) y = function(y);
  std::memcpy(&x, part, sizeof x);
  return x;
}
INLINE Double exponential(Double x) { return each<std::exp>(x); }
INLINE Double reciprocal(Double x) { return 1.0 / x; }
INLINE Double hyperbolic_tangent(Double x) { return each<std::tanh>(x); }

INLINE Float widen(Float x) { return x; }
INLINE Double widen(Double x) { return x; }
INLINE Float widen(Halves x) { return (Float)(__builtin_convertvector(x, Bits) << 16); }

INLINE void narrow(Float x, Float& to) { to = x; }
INLINE void narrow(Double x, Double& to) { to = x; }
INLINE void narrow(Float x, Halves& to) {  // to bfloat16, to nearest, ties to even; NaN stays NaN
  const Bits u = (Bits)x;
  const Bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  to = __builtin_convertvector((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded, Halves);
}

// How a type lies in memory, as the vector of as many elements as a step computes.
template <typename stored> struct Memory { using vector = typename Lanes<stored>::value; };
template <> struct Memory<uint16_t> { using vector = Halves; };

// `count` elements that lie `step` apart; a full vector of neighbours is the common, fast case.
template <typename stored>
INLINE auto load(const void* base, int64_t offset, int64_t step, int count) {
  typename Memory<stored>::vector v;
  constexpr int full = sizeof(v) / sizeof(stored);
  const stored* from = static_cast<const stored*>(base) + offset;
  if (count == full && step == 1) {
    std::memcpy(&v, from, sizeof v);
  } else {
    stored part[full] = {};
    for (int j = 0; j < count; ++j) part[j] = from[j * step];
    std::memcpy(&v, part, sizeof v);
  }
  return widen(v);
}

template <typename stored, typename V>
INLINE void store(void* base, int64_t offset, int64_t step, int count, V x) {
  typename Memory<stored>::vector v;
  constexpr int full = sizeof(v) / sizeof(stored);
  stored* to = static_cast<stored*>(base) + offset;
  narrow(x, v);
  if (count == full && step == 1) {
    std::memcpy(to, &v, sizeof v);
  } else {
    stored part[full];
    std::memcpy(part, &v, sizeof v);
    for (int j = 0; j < count; ++j) to[j * step] = part[j];
  }
}

// A vector of potentials: n entries in each array. d_knot also holds what the knots' gradients become.
template <typename V>
struct Potentials {
  V *m, *b, *s, *knot, *d_m, *d_b, *d_knot;
};

// Slopes, intercepts, widths and knots from the raw coefficients.
template <typename stored, typename V>
INLINE void predict(const Node& node, int n, int64_t offset, int count, const Potentials<V>& at) {
  const int64_t step = node.coefficients.element;
  V top{}, sum{}, end{};
  for (int k = 0; k < n; ++k) {
    const int64_t here = offset + k * node.coefficients.segment;
    at.m[k] = hyperbolic_tangent(load<stored>(node.slope, here, step, count));
    at.b[k] = load<stored>(node.intercept, here, step, count);
    at.s[k] = load<stored>(node.width, here, step, count);
    top = k == 0 ? at.s[0] : (at.s[k] > top ? at.s[k] : top);
  }
  for (int k = 0; k < n; ++k) {
    at.s[k] = exponential(at.s[k] - top);
    sum += at.s[k];
  }
  const V scale = reciprocal(sum);
  for (int k = 0; k < n; ++k) {
    at.s[k] *= scale;
    end += at.s[k];
    end = end > 1 ? V{} + 1 : end;
    at.knot[k] = k == n - 1 ? V{} + 1 : end;
  }
}

// Where t lies as seen from segment k and from the knot at its end. Near a knot, the line of the segment
// t is in is blended with the one across the knot: `blend` times (next line - this line).
template <typename V>
struct Place {
  V active;  // 1 where t is in segment k, else 0
  V next;    // next line - this line, at t
  V blend;   // of its own weight, 1 / (1 + exp(temperature |t - knot|)): + left of the knot, - right of it
  V rate;    // d (blend * next) / d t with `next` held: temperature * weight * (1 - weight) * next
};

template <typename real, typename V>
INLINE Place<V> locate(const Node& node, int n, int k, real t, const Potentials<V>& at) {
  const V zero{}, one = zero + 1, now = zero + t;
  const auto begun = k > 0 ? now >= at.knot[k - 1] : now >= now;
  const auto ended = k < n - 1 ? now >= at.knot[k] : now < now;
  Place<V> place{begun & ~ended ? one : zero, zero, zero, zero};
  if (node.temperature > 0 && k < n - 1) {
    const real temperature = real(node.temperature);
    const auto over = k < n - 2 ? now >= at.knot[k + 1] : now < now;
    const V signed_distance = at.knot[k] - now;
    const V distance = ended ? -signed_distance : signed_distance;
    const V weight = reciprocal(1 + exponential(temperature * distance));
    const V near = begun & ~over ? weight : zero;
    place.next = (at.m[k + 1] - at.m[k]) * t + (at.b[k + 1] - at.b[k]);
    place.blend = ended ? -near : near;
    place.rate = temperature * near * (1 - near) * place.next;
  }
  return place;
}

template <typename stored, typename result, typename real, typename V>
INLINE void forward_step(const Node& node, int n, int64_t batch, int64_t row, int64_t start, int count,
                         const Potentials<V>& at) {
  const Strides &in = node.coefficients, &mean = node.mean_at;
  predict<stored>(node, n, batch * in.batch + row * in.row + start * in.element, count, at);
  V shift{};
  if (node.normalize) {
    shift = load<result>(node.mean, batch * mean.batch + row * mean.row + start * mean.element, mean.element, count);
    for (int k = 0; k < n; ++k) {
      const V middle = k > 0 ? (at.knot[k] + at.knot[k - 1]) * real(0.5) : at.knot[0] * real(0.5);
      shift -= at.s[k] * (at.m[k] * middle + at.b[k]);
    }
  }
  for (int64_t i = batch * node.times; i < (batch + 1) * node.times; ++i) {
    const real t = static_cast<const real*>(node.t)[i];
    V value = shift;
    for (int k = 0; k < n; ++k) {
      const Place<V> place = locate(node, n, k, t, at);
      value += place.active * (at.m[k] * t + at.b[k]) + place.blend * place.next;
    }
    store<result>(node.out, (i * node.rows + row) * node.length + start, 1, count, value);
  }
}

template <typename stored, typename result, typename real, typename V>
INLINE void backward_step(const Node& node, int n, int64_t batch, int64_t row, int64_t start, int count,
                          const Potentials<V>& at, double* d_t) {
  const Strides &in = node.coefficients, &into = node.gradients, &mean = node.mean_at;
  predict<stored>(node, n, batch * in.batch + row * in.row + start * in.element, count, at);
  for (int k = 0; k < n; ++k) at.d_m[k] = at.d_b[k] = at.d_knot[k] = V{};

  V total{};
  for (int64_t i = batch * node.times; i < (batch + 1) * node.times; ++i) {
    const real t = static_cast<const real*>(node.t)[i];
    const V grad = load<result>(node.out, (i * node.rows + row) * node.length + start, 1, count);
    V before{}, speed{};
    for (int k = 0; k < n; ++k) {
      const Place<V> place = locate(node, n, k, t, at);
      const V weight = place.active + before - place.blend;
      before = place.blend;
      at.d_b[k] += grad * weight;
      at.d_m[k] += grad * weight * t;
      at.d_knot[k] -= grad * place.rate;
      speed += weight * at.m[k] + place.rate;
    }
    total += grad;
    if (d_t) {
      real part[Lanes<real>::count];
      speed *= grad;
      std::memcpy(part, &speed, sizeof speed);
      for (int j = 0; j < count; ++j) d_t[i] += double(part[j]);
    }
  }

  if (node.normalize) {
    for (int k = 0; k < n; ++k) {
      const V middle = k > 0 ? (at.knot[k] + at.knot[k - 1]) * real(0.5) : at.knot[0] * real(0.5);
      at.d_b[k] -= total * at.s[k];
      at.d_m[k] -= total * at.s[k] * middle;
      if (k < n - 1)  // moving the knot to the right swaps the next line for this one there
        at.d_knot[k] += total * ((at.m[k + 1] - at.m[k]) * at.knot[k] + (at.b[k + 1] - at.b[k]));
    }
    if (node.d_mean)
      store<result>(node.d_mean, batch * mean.batch + row * mean.row + start * mean.element, mean.element, count, total);
  }
  // From knots to widths (a sum over the knots that come after), then through the softmax and the tanh.
  V after{}, common{};
  for (int k = n - 1; k >= 0; --k) {
    after += at.d_knot[k];
    at.d_knot[k] = after;
    common += at.s[k] * after;
  }
  const int64_t first = batch * into.batch + row * into.row + start * into.element;
  for (int k = 0; k < n; ++k) {
    const int64_t here = first + k * into.segment;
    store<stored>(node.d_slope, here, into.element, count, at.d_m[k] * (1 - at.m[k] * at.m[k]));
    store<stored>(node.d_intercept, here, into.element, count, at.d_b[k]);
    store<stored>(node.d_width, here, into.element, count, at.s[k] * (at.d_knot[k] - common));
  }
}

// The steps from `first` to `last` in one thread. SEGMENTS: their number where the compiler may know it, else 0.
template <int SEGMENTS, typename stored, typename result, typename real>
void run(const Node& node, int64_t first, int64_t last, void* memory, double* d_t) {
  using V = typename Lanes<real>::value;
  constexpr int lanes = Lanes<real>::count;
  const int n = SEGMENTS ? SEGMENTS : int(node.segments);
  V known[SEGMENTS ? 7 * SEGMENTS : 1];
  V* a = SEGMENTS ? known : static_cast<V*>(memory);
  const Potentials<V> at{a, a + n, a + 2 * n, a + 3 * n, a + 4 * n, a + 5 * n, a + 6 * n};
  const int64_t steps = (node.length + lanes - 1) / lanes;
  for (int64_t step = first; step < last; ++step) {
    const int64_t line = step / steps, start = step % steps * lanes;
    const int count = int(node.length - start < lanes ? node.length - start : lanes);
    const int64_t batch = line / node.rows, row = line % node.rows;
    if (node.backward)
      backward_step<stored, result, real>(node, n, batch, row, start, count, at, d_t);
    else
      forward_step<stored, result, real>(node, n, batch, row, start, count, at);
  }
}

template <typename stored, typename result, typename real>
void run_any(const Node& node, int64_t first, int64_t last, void* memory, double* d_t) {
  if (node.segments == 3)
    run<3, stored, result, real>(node, first, last, memory, d_t);
  else
    run<0, stored, result, real>(node, first, last, memory, d_t);
}

inline void dispatch(const Node& node, int64_t first, int64_t last, void* memory, double* d_t) {
  if (node.stored == DOUBLE) run_any<double, double, double>(node, first, last, memory, d_t);
  else if (node.stored == FLOAT) run_any<float, float, float>(node, first, last, memory, d_t);
  else if (node.result == FLOAT) run_any<uint16_t, float, float>(node, first, last, memory, d_t);
  else run_any<uint16_t, uint16_t, float>(node, first, last, memory, d_t);
}

// How many steps a row of the node takes.
inline int64_t steps_of(const Node& node) {
  const int64_t lanes = BYTES / (node.stored == DOUBLE ? 8 : 4);
  return (node.length + lanes - 1) / lanes;
}
