#include "hadamard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "simd.h"
#include "team.h"

namespace phloem {
namespace {

// Vectors that a block's last stages keep in registers.
constexpr int NEAR = 4;

inline void meet(f32x16& a, f32x16& b) {
  const f32x16 sum = a + b;
  b = a - b;
  a = sum;
}

// The lanes of a vector, each with the one `DISTANCE` from it: their sum in the lower of both, the
// lower less the upper in the other.
template <int DISTANCE, int... LANE, class V>
inline V meet_lanes(V v, std::integer_sequence<int, LANE...>) {
  const V signs{(LANE & DISTANCE ? -1.0f : 1.0f)...};
  return fma(v, signs, __builtin_shufflevector(v, v, (LANE ^ DISTANCE)...));
}

template <int DISTANCE, class V>
inline V meet_lanes(V v) {
  return meet_lanes<DISTANCE>(v, std::make_integer_sequence<int, sizeof(V) / sizeof(float)>{});
}

template <int DISTANCE, class H>
inline Twice<H> meet_lanes(Twice<H> v) {
  if constexpr (DISTANCE * sizeof(float) == sizeof(H))
    return {v.low + v.high, v.low - v.high};
  else
    return {meet_lanes<DISTANCE>(v.low), meet_lanes<DISTANCE>(v.high)};
}

// One vector's elements at distances below 16 and below `block`.
inline f32x16 within(f32x16 v, int block) {
  if (block > 8) v = meet_lanes<8>(v);
  if (block > 4) v = meet_lanes<4>(v);
  if (block > 2) v = meet_lanes<2>(v);
  if (block > 1) v = meet_lanes<1>(v);
  return v;
}

// All elements of x at this distance within blocks of twice as many.
void meet_at(float* x, int k, int distance) {
  for (int start = 0; start < k; start += 2 * distance)
    for (int i = start; i < start + distance; i += LANES) {
      f32x16 a = load(x + i), b = load(x + i + distance);
      meet(a, b);
      store(x + i, a);
      store(x + i + distance, b);
    }
}

// All stages of blocks of so many vectors, and the last ones of larger blocks.
template <int VECTORS>
void meet_near(float* x, int k, float factor) {
  for (float* end = x + k; x < end; x += VECTORS * LANES) {
    f32x16 v[VECTORS];
    for (int i = 0; i < VECTORS; ++i) v[i] = load(x + i * LANES);
    for (int distance = VECTORS / 2; distance > 0; distance /= 2)
      for (int i = 0; i < VECTORS; ++i)
        if ((i & distance) == 0) meet(v[i], v[i + distance]);
    for (int i = 0; i < VECTORS; ++i) store(x + i * LANES, within(v[i], LANES) * factor);
  }
}

}  // namespace

void hadamard(float* x, int k, int block) {
  for (int distance = block / 2; distance >= NEAR * LANES; distance /= 2) meet_at(x, k, distance);
  const float factor = 1.0f / std::sqrt(static_cast<float>(block));
  if (block >= NEAR * LANES) return meet_near<NEAR>(x, k, factor);
  if (block > LANES) return meet_near<NEAR / 2>(x, k, factor);
  int i = 0;
  for (; i + LANES <= k; i += LANES) store(x + i, within(load(x + i), block) * factor);
  // Blocks that end within a vector are smaller than one.
  if (i < k) store_some(x + i, within(load_some(x + i, k - i), block) * factor, k - i);
}

}  // namespace phloem

extern "C" {

// Every row of x, [rows, k], in place; k is a multiple of `block`.
void phloem_hadamard(phloem::Team* team, float* x, int rows, int k, int block) {
  team->run([=](phloem::Worker& worker) {
    constexpr int AT_ONCE = 16;
    worker.each((rows + AT_ONCE - 1) / AT_ONCE, [=](size_t task) {
      const int first = static_cast<int>(task) * AT_ONCE;
      for (int r = first; r < std::min(rows, first + AT_ONCE); ++r)
        phloem::hadamard(x + static_cast<size_t>(r) * k, k, block);
    });
  });
}
}
