// What the machine can do at most with this library's instructions, for benchmarks to compare with.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "linear.h"
#include "native.h"
#include "team.h"

namespace phloem {
namespace {

// Sums that do not wait for each other: enough to hide what an operation takes, few enough to stay
// in registers.
constexpr int CHAINS = 10;
constexpr size_t READ_TASK = 1 << 17;

// Makes the compiler believe that `value` is used.
template <class T>
inline void keep(const T& value) {
  asm volatile("" : : "m"(value));
}

// Calls next(sum) for each of the chains, `iterations` times. They differ from the start: what is
// the same would be computed once.
template <class V, class T, class Next>
inline void run_chains(int iterations, Next next) {
  V sums[CHAINS];
  for (int c = 0; c < CHAINS; ++c) sums[c] = (V)native::splat(static_cast<T>(c));
  for (int i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < CHAINS; ++c) sums[c] = next(sums[c]);
  }
  keep(sums);
}

void read_all(const uint8_t* from, size_t bytes) {
  constexpr size_t STEP = 4 * sizeof(native::Words);
  native::Words seen[4]{};
  for (size_t at = 0; at + STEP <= bytes; at += STEP) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) seen[i] |= load<native::Words>(from + at + i * sizeof seen[0]);
  }
  keep(seen);
}

}  // namespace
}  // namespace phloem

using namespace phloem;

extern "C" {

// Reads `bytes` of memory once, all threads together.
void phloem_probe_read(Team* team, const uint8_t* from, size_t bytes) {
  team->run([=](Worker& w) {
    w.each((bytes + READ_TASK - 1) / READ_TASK, [=](size_t task) {
      const size_t start = task * READ_TASK;
      read_all(from + start, std::min(READ_TASK, bytes - start));
    });
  });
}

// Multiplies and adds floats, `iterations` times in each task; returns how many operations that
// were, a multiply-add being two.
double phloem_probe_fma(Team* team, int tasks, int iterations) {
  team->run([=](Worker& w) {
    w.each(tasks, [=](size_t) {
      const native::Floats factor = native::splat(0.5f), addend = native::splat(1.0f);
      run_chains<native::Floats, float>(iterations, [=](native::Floats sum) {
        return native::fma(sum, factor, addend);
      });
    });
  });
  return 2.0 * native::WIDTH * CHAINS * tasks * iterations;
}

// The same for products of bytes. `factor` is 0, so that nothing overflows, which the compiler must
// not know.
double phloem_probe_dot(Team* team, int tasks, int iterations, int factor) {
  team->run([=](Worker& w) {
    w.each(tasks, [=](size_t) {
      const native::Bytes factors = (native::Bytes)native::splat(factor);
      run_chains<native::Ints, int32_t>(iterations, [=](native::Ints sum) {
        return native::dot4(sum, (native::Bytes)sum, factors);
      });
    });
  });
  return 2.0 * 4 * native::WIDTH * CHAINS * tasks * iterations;
}

// The linears of a step one after another, and nothing else: each reads `input`, which is taken for
// `rows` rows in whatever form its weight needs, and overwrites `out`, [rows, n].
void phloem_probe_linears(Team* team, const phloem_weight* weights, int count, int rows,
                          void* input, float* out) {
  team->run([=](Worker& w) {
    for (const phloem_weight* weight = weights; weight != weights + count; ++weight) {
      const LinearInput x{rows, static_cast<const float*>(input), input_at(input, *weight, rows)};
      linear(w, *weight, x, out, weight->n, Then::STORE);
    }
  });
}
}
