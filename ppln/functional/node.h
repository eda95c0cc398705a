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

// What compilers do not make of plain vector code by themselves. (Masked: GCC 12 warns of the others.)
#if defined(__x86_64__) && BYTES == 64
#define SIMD(name, ...) _mm512_maskz_##name(0xffff, __VA_ARGS__)
#define RECIPROCAL(x) _mm512_maskz_rcp14_ps(0xffff, x)
#define STREAM _mm512_stream_ps
#elif defined(__x86_64__) && BYTES == 32
#define SIMD(name, ...) _mm256_##name(__VA_ARGS__)
#define RECIPROCAL _mm256_rcp_ps
#define STREAM _mm256_stream_ps
#elif defined(__x86_64__)
#define SIMD(name, ...) _mm_##name(__VA_ARGS__)
#define RECIPROCAL _mm_rcp_ps
#define STREAM _mm_stream_ps
#endif

#ifdef SIMD
INLINE Float larger(Float a, Float b) { return SIMD(max_ps, a, b); }  // b where one is NaN
INLINE Float smaller(Float a, Float b) { return SIMD(min_ps, a, b); }
INLINE Float rough_reciprocal(Float x) { return RECIPROCAL(x); }
INLINE void stream(float* to, Float x) { STREAM(to, x); }  // past the caches
#undef SIMD
#undef RECIPROCAL
#undef STREAM
#else
INLINE Float larger(Float a, Float b) { return a > b ? a : b; }
INLINE Float smaller(Float a, Float b) { return a < b ? a : b; }
INLINE Float rough_reciprocal(Float x) { return 1.0f / x; }
INLINE void stream(float* to, Float x) { std::memcpy(to, &x, sizeof x); }
#endif
INLINE Double larger(Double a, Double b) { return a > b ? a : b; }
INLINE Double smaller(Double a, Double b) { return a < b ? a : b; }

constexpr float LEAST = -87;  // as in reference.py

struct Exponential {
  Float power, rest;  // exp(x) = power * (1 + rest)
};

INLINE Exponential split_exponential(Float x) {  // -87 <= x <= 87
  // exp(x) = 2^k exp(r) with |r| <= log(2) / 2: the power by its bits, the rest by a polynomial. 1 ulp or so.
  const float magic = 12583039.0f;  // 1.5 * 2^23 + 127: adding it rounds to an integer, in the lowest bits
  const Float shifted = x * 1.44269504f + magic;
  const Float r = x - (shifted - magic) * 0.693147181f;
  Float p = r * 1.37796e-3f + 8.36894e-3f;
  p = p * r + 4.166903e-2f;
  p = p * r + 1.6666518e-1f;
  p = p * r + 4.9999991e-1f;
  return {(Float)((Int)shifted << 23), p * (r * r) + r};
}

INLINE Float exponential_of_negative(Float x) {  // x <= 0; 0 below LEAST
  const Exponential e = split_exponential(x < LEAST ? Float{} - 88.0f : x);  // of -88, the power is 0
  return e.power * e.rest + e.power;
}

INLINE Float reciprocal(Float x) {  // 1 <= x: a guess, then Newton's step; 1 ulp or so
  const Float y = rough_reciprocal(x);
  return y + y * (1.0f - x * y);
}

INLINE Float hyperbolic_tangent(Float x) {
  // With e = exp(-2|x|) - 1, which does not cancel near 0: tanh|x| = -e / (e + 2).
  const Float a = (Float)((Int)x & 0x7fffffff), lowest = Float{} - 40.0f;
  const Exponential split = split_exponential(larger(lowest, -2.0f * a));
  const Float e = split.power * split.rest + (split.power - 1.0f);
  return (Float)((Int)(e * reciprocal(e + 2.0f)) ^ ~((Int)x | 0x7fffffff));
}

template <double function(double)>
INLINE Double each(Double x) {
  double part[Lanes<double>::count];
  std::memcpy(part, &x, sizeof x);
  for (double& y : part) y = function(y);
  std::memcpy(&x, part, sizeof x);
  return x;
}
INLINE Double exponential_of_negative(Double x) { return x < LEAST ? Double{} : each<std::exp>(x); }
INLINE Double reciprocal(Double x) { return 1.0 / x; }
INLINE Double hyperbolic_tangent(Double x) { return each<std::tanh>(x); }

INLINE Float negative(Float x) { return (Float)((Int)x | int32_t(0x80000000u)); }  // -|x|
INLINE Double negative(Double x) { return x > 0 ? -x : x; }

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

// `count` elements that lie `step` apart; a full vector of neighbours is the common, fast case, see DENSE below.
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

// A vector of gradients. They are read next when all of them are there: many would only empty the caches.
template <bool DENSE, typename stored, typename V>
INLINE void store_gradient(const Node& node, void* base, int64_t offset, int64_t step, int count, V x) {
  if constexpr (DENSE && std::is_same_v<stored, float>) {
    float* to = static_cast<float*>(base) + offset;
    if (node.outgrows_caches && reinterpret_cast<uintptr_t>(to) % BYTES == 0) return stream(to, x);
  }
  store<stored>(base, offset, DENSE ? 1 : step, count, x);
}

// Vectors are taken in blocks, and one stage is done for all of a block before the next: the operations of
// a stage depend on each other in long chains, and those of different vectors overlap.
constexpr int BLOCK = 8;

// An entry for each segment of one vector's potentials; those of a block's vectors lie side by side.
template <typename V>
struct Column {
  V* first;
  INLINE V& operator[](int k) const { return first[k * BLOCK]; }
};

// What is known of one vector's potentials. d_s holds the gradients of the knots, then those of the widths.
template <typename V>
struct Potentials {
  Column<V> m, b, s, knot, d_m, d_b, d_s;

  INLINE Potentials(V* memory, int n, int u)
      : m{memory + u},
        b{m.first + n * BLOCK},
        s{b.first + n * BLOCK},
        knot{s.first + n * BLOCK},
        d_m{knot.first + n * BLOCK},
        d_b{d_m.first + n * BLOCK},
        d_s{d_b.first + n * BLOCK} {}

  INLINE V middle(int k) const { return k > 0 ? (knot[k] + knot[k - 1]) / 2 : knot[k] / 2; }
};

// x where it has a weight, else 0: 0 times inf is not 0.
template <typename V>
INLINE V used(V weight, V x) {
  return weight != 0 ? x : V{};
}

// Slopes, intercepts and raw widths from the coefficients.
template <bool DENSE, typename stored, typename V>
INLINE void read(const Node& node, int n, int64_t offset, int count, const Potentials<V>& at) {
  const int64_t step = DENSE ? 1 : node.coefficients.element, ahead = 2 * BLOCK * BYTES / int(sizeof(stored)) * step;
  for (int k = 0; k < n; ++k) {
    const int64_t here = offset + k * node.coefficients.segment;
    // 3n streams are more than the processor foresees by itself. Past the end, a prefetch does nothing.
    for (const void* stream : {node.slope, node.intercept, node.width})
      __builtin_prefetch(static_cast<const stored*>(stream) + here + ahead);
    at.m[k] = hyperbolic_tangent(load<stored>(node.slope, here, step, count));
    at.b[k] = load<stored>(node.intercept, here, step, count);
    at.s[k] = load<stored>(node.width, here, step, count);
  }
}

// Widths and knots from the raw widths.
template <typename V>
INLINE void divide(int n, const Potentials<V>& at) {
  V top = at.s[0], sum{}, end{};
  for (int k = 1; k < n; ++k) top = larger(at.s[k], top);
  for (int k = 0; k < n; ++k) {
    at.s[k] = exponential_of_negative(at.s[k] - top);
    sum += at.s[k];
  }
  const V scale = reciprocal(sum);
  for (int k = 0; k < n; ++k) {
    at.s[k] *= scale;
    end += at.s[k];
    end = smaller(V{} + 1, end);
    at.knot[k] = k == n - 1 ? V{} + 1 : end;
  }
}

// How far t is past the knot at the end of segment k: 0 before it, 1 after it, and near a smoothed knot between
// the two. The potential at t is a mean of the lines, line k with the weight past(k - 1) - past(k).
template <typename V>
struct Passage {
  V past;
  V weight;  // of line k
  V rate;    // d past / d t
};

template <typename real, typename V>
INLINE Passage<V> passage(const Node& node, int n, int k, real t, const Potentials<V>& at, V before) {
  if (k == n - 1) return {V{}, before, V{}};
  const V zero{}, one = zero + 1, now = zero + t;
  const auto ended = now >= at.knot[k];
  if (!(node.temperature > 0)) return {ended ? one : zero, ended ? zero : before, zero};
  const real temperature = real(node.temperature);
  V e = exponential_of_negative(negative((now - at.knot[k]) * temperature));
  // A knot is felt in the segments that meet there, and not beyond.
  if (k > 0) e = now >= at.knot[k - 1] ? e : zero;
  if (k < n - 2) e = now >= at.knot[k + 1] ? zero : e;
  const V scale = reciprocal(1 + e), across = e * scale;
  // After the knot, past(k - 1) is 1, and 1 - past(k) would round a small weight away.
  return {ended ? scale : across, ended ? across : before - across, temperature * (across * scale)};
}

template <bool DENSE, typename stored, typename result, typename real, typename V>
INLINE void forward_step(const Node& node, int n, int64_t batch, int64_t row, int64_t start, int count,
                         const Potentials<V>& at) {
  const Strides& mean = node.mean_at;
  V shift{};
  if (node.normalize) {
    shift = load<result>(node.mean, mean.at(batch, row, start), DENSE ? 1 : mean.element, count);
    for (int k = 0; k < n; ++k) shift -= at.s[k] * used(at.s[k], at.m[k] * at.middle(k) + at.b[k]);
  }
  for (int64_t i = batch * node.times; i < (batch + 1) * node.times; ++i) {
    const real t = static_cast<const real*>(node.t)[i];
    V value = shift, before = V{} + 1;
    for (int k = 0; k < n; ++k) {
      const Passage<V> knot = passage(node, n, k, t, at, before);
      value += knot.weight * used(knot.weight, at.m[k] * t + at.b[k]);
      before = knot.past;
    }
    store<result>(node.out, (i * node.rows + row) * node.length + start, 1, count, value);
  }
}

template <bool DENSE, bool ONCE, typename stored, typename result, typename real, typename V>
INLINE void backward_step(const Node& node, int n, int64_t batch, int64_t row, int64_t start, int count,
                          const Potentials<V>& at, double* d_t) {
  const Strides &into = node.gradients, &mean = node.mean_at;
  if (!ONCE)
    for (int k = 0; k < n; ++k) at.d_m[k] = at.d_b[k] = at.d_s[k] = V{};

  V total{};
  for (int64_t i = batch * node.times; i < (ONCE ? batch + 1 : (batch + 1) * node.times); ++i) {
    const real t = static_cast<const real*>(node.t)[i];
    const V grad = load<result>(node.out, (i * node.rows + row) * node.length + start, 1, count);
    V before = V{} + 1, speed{}, line = at.m[0] * t + at.b[0];
    for (int k = 0; k < n; ++k) {
      const Passage<V> knot = passage(node, n, k, t, at, before);
      V push{};  // what the knot passes on
      if (k < n - 1) {
        const V next = at.m[k + 1] * t + at.b[k + 1];
        push = grad * knot.rate * used(knot.rate, next - line);
        line = next;
      }
      const V share = grad * knot.weight;
      before = knot.past;
      at.d_b[k] = ONCE ? share : at.d_b[k] + share;
      at.d_m[k] = ONCE ? share * t : at.d_m[k] + share * t;
      at.d_s[k] = ONCE ? -push : at.d_s[k] - push;
      if (d_t) speed += share * used(knot.weight, at.m[k]) + push;
    }
    total = ONCE ? grad : total + grad;
    if (d_t) {
      real part[Lanes<real>::count];
      std::memcpy(part, &speed, sizeof speed);
      for (int j = 0; j < count; ++j) d_t[i] += double(part[j]);
    }
  }

  if (node.normalize && node.d_mean)
    store_gradient<DENSE, result>(node, node.d_mean, mean.at(batch, row, start), mean.element, count, total);
  // From knots to widths (a sum over the knots that come after), then through the softmax and the tanh.
  V after{}, rise{}, common{};
  for (int k = n - 1; k >= 0; --k) {
    after += at.d_s[k];
    at.d_s[k] = after;
    if (node.normalize) {
      const V share = total * at.s[k];
      at.d_b[k] -= share;
      at.d_m[k] -= share * at.middle(k);
      // A wider segment adds its line's end to the integral, and moves the segments after it up their lines.
      const V end = used(at.s[k], at.m[k] * at.knot[k] + at.b[k]);
      at.d_s[k] -= total * (end + rise);
      rise += at.s[k] * used(at.s[k], at.m[k]);
    }
    common += at.s[k] * at.d_s[k];
  }
  const bool moves = node.temperature > 0 || node.normalize;  // else the gradient has nothing of knots, not even NaN
  for (int k = 0; k < n; ++k) {
    const int64_t here = into.at(batch, row, start) + k * into.segment;
    const auto put = [&](void* base, V x) {
      store_gradient<DENSE, stored>(node, base, here, into.element, count, x);
    };
    put(node.d_slope, at.d_m[k] * (1 - at.m[k] * at.m[k]));
    put(node.d_intercept, at.d_b[k]);
    put(node.d_width, moves ? at.s[k] * used(at.s[k], at.d_s[k] - common) : V{});
  }
}

// How many blocks there are in a row.
inline int64_t blocks_of(const Node& node) {
  const int64_t size = BLOCK * BYTES / (node.stored == DOUBLE ? 8 : 4);
  return (node.length + size - 1) / size;
}

// One block: `left` elements of a row from `start` on. DENSE: the block is full and its elements are neighbours,
// so that no load or store has to ask.
template <bool DENSE, typename stored, typename result, typename real, typename V>
INLINE void run_block(const Node& node, int n, int64_t batch, int64_t row, int64_t start, int64_t left, V* at,
                      double* d_t) {
  constexpr int lanes = Lanes<real>::count;
  const int vectors = DENSE || left >= BLOCK * lanes ? BLOCK : int((left + lanes - 1) / lanes);
  const auto count = [&](int u) { return DENSE || left - u * lanes >= lanes ? lanes : int(left - u * lanes); };
  for (int u = 0; u < vectors; ++u) {
    const int64_t offset = node.coefficients.at(batch, row, start + u * lanes);
    read<DENSE, stored>(node, n, offset, count(u), Potentials<V>(at, n, u));
  }
  for (int u = 0; u < vectors; ++u) divide(n, Potentials<V>(at, n, u));
  for (int u = 0; u < vectors; ++u) {
    const Potentials<V> known(at, n, u);
    const int64_t here = start + u * lanes;
    if (node.backward && node.times == 1)
      backward_step<DENSE, true, stored, result, real>(node, n, batch, row, here, count(u), known, d_t);
    else if (node.backward)
      backward_step<DENSE, false, stored, result, real>(node, n, batch, row, here, count(u), known, d_t);
    else
      forward_step<DENSE, stored, result, real>(node, n, batch, row, here, count(u), known);
  }
}

inline bool neighbours(const Node& node) {
  return node.coefficients.element == 1 && (!node.backward || node.gradients.element == 1) &&
         (!(node.mean || node.d_mean) || node.mean_at.element == 1);
}

// The blocks from `first` to `last` in one thread. SEGMENTS: their number where the compiler may know it, else 0.
template <int SEGMENTS, typename stored, typename result, typename real>
void run(const Node& node, int64_t first, int64_t last, void* memory, double* d_t) {
  using V = typename Lanes<real>::value;
  constexpr int size = BLOCK * Lanes<real>::count;
  const int n = SEGMENTS ? SEGMENTS : int(node.segments);
  const int64_t blocks = blocks_of(node);
  const bool dense = neighbours(node);
  V* at = static_cast<V*>(memory);
  for (int64_t block = first; block < last; ++block) {
    const int64_t line = block / blocks, start = block % blocks * size, left = node.length - start;
    const int64_t batch = line / node.rows, row = line % node.rows;
    if (dense && left >= size)
      run_block<true, stored, result, real>(node, n, batch, row, start, left, at, d_t);
    else
      run_block<false, stored, result, real>(node, n, batch, row, start, left, at, d_t);
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
