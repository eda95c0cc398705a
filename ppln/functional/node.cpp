// The fused node on the CPU, behind a plain C interface: no torch, no Python, no OpenMP to link against.
//
// node.h is written with the vector types of GCC and Clang. It is compiled three times, for AVX-512, for
// AVX2 and for any processor, and the best one that this processor has is chosen at run time. Threads: a
// caller that has a pool passes the way to run it (libgomp's GOMP_parallel, which torch has loaded);
// otherwise threads live as long as the call.

#include <pthread.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct Strides {  // in elements
  int64_t batch, segment, row, element;
  int64_t at(int64_t b, int64_t r, int64_t e) const { return b * batch + r * row + e * element; }
};

struct Node {  // field for field as in cpu.py
  const void *slope, *intercept, *width, *t, *mean;
  void* out;  // forward: the result; backward: its gradient, read. Dense [batch, times, rows, length]
  void *d_slope, *d_intercept, *d_width, *d_mean;
  double* d_t;  // [parts, batch, times], zeros, or null
  int64_t batches, segments, times, rows, length;
  Strides coefficients, gradients, mean_at;  // of the coefficients, their gradients, the mean or its gradient
  double temperature;           // 0: hard segments
  int32_t stored, result;       // Type of the coefficients; of out and mean
  int32_t backward, normalize, threads, parts, outgrows_caches;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, or null
};

enum Type : int32_t { FLOAT, DOUBLE, BFLOAT16 };

#define BYTES 16
namespace plain {
#include "node.h"
}
#undef BYTES

#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define BYTES 32
namespace avx2 {
#include "node.h"
}
#undef BYTES
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#define BYTES 64
namespace avx512 {
#include "node.h"
}
#undef BYTES
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

namespace {

struct Kernel {
  void (*run)(const Node&, int64_t first, int64_t last, void* memory, double* d_t);
  int64_t (*blocks)(const Node&);  // in a row
};

Kernel kernel_for(int level) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (level >= 2) return {avx512::dispatch, avx512::blocks_of};
  if (level >= 1) return {avx2::dispatch, avx2::blocks_of};
#endif
  return {plain::dispatch, plain::blocks_of};
}

int best_level() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return 2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
  return 0;
}

struct Job {
  const Node* node;
  Kernel kernel;
  int64_t blocks;
  char* memory;  // scratch of every thread
  size_t scratch;
  int32_t workers, next;  // how many have come, and which part is to be taken next
};

void work(void* argument) {
  Job& job = *static_cast<Job*>(argument);
  const Node& node = *job.node;
  char* memory = job.memory + __atomic_fetch_add(&job.workers, 1, __ATOMIC_RELAXED) * job.scratch;
  // Parts are taken, not assigned: all get done however many threads there come to be, and however fast.
  for (;;) {
    const int64_t part = __atomic_fetch_add(&job.next, 1, __ATOMIC_RELAXED);
    if (part >= node.parts) break;
    const int64_t first = job.blocks * part / node.parts, last = job.blocks * (part + 1) / node.parts;
    double* d_t = node.d_t ? node.d_t + part * node.batches * node.times : nullptr;
    job.kernel.run(node, first, last, memory, d_t);
  }
#if defined(__x86_64__)
  _mm_sfence();  // what was streamed past the caches is there for all threads
#endif
}

void* thread(void* argument) {
  work(argument);
  return nullptr;
}

}  // namespace

extern "C" {

int32_t ppln_node_level() { return best_level(); }

// level: -1 the best for this processor, 0 plain, 1 AVX2, 2 AVX-512. Returns 0, or 1 when out of memory.
int32_t ppln_node_run(const Node* node, int32_t level) {
  const int best = best_level();
  const Kernel kernel = kernel_for(level < 0 || level > best ? best : level);
  const size_t scratch = size_t(7 * node->segments * plain::BLOCK) * 64;
  char* memory = static_cast<char*>(std::aligned_alloc(64, scratch * size_t(node->threads)));
  if (!memory) return 1;
  Job job{node, kernel, node->batches * node->rows * kernel.blocks(*node), memory, scratch, 0, 0};
  if (node->threads == 1) {
    work(&job);
  } else if (node->parallel) {
    node->parallel(work, &job, unsigned(node->threads), 0);
  } else {
    pthread_t* helpers = static_cast<pthread_t*>(std::malloc(sizeof(pthread_t) * size_t(node->threads)));
    int started = 0;
    if (helpers)
      while (started < node->threads - 1 && !pthread_create(&helpers[started], nullptr, thread, &job)) ++started;
    work(&job);
    for (int i = 0; i < started; ++i) pthread_join(helpers[i], nullptr);
    std::free(helpers);
  }
  std::free(memory);
  return 0;
}
}
