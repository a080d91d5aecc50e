#include "hadamard.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "simd.h"
#include "team.h"

namespace phloem {
namespace {

inline void meet(float* a, float* b) {
  const f32x16 x = load(a), y = load(b);
  store(a, x + y);
  store(b, x - y);
}

// The lanes of a vector, each with the one `DISTANCE` from it: their sum in the lower of both, the
// lower less the upper in the other.
template <int DISTANCE, int... LANE>
inline f32x16 meet_lanes(f32x16 v, std::integer_sequence<int, LANE...>) {
  const f32x16 signs{(LANE & DISTANCE ? -1.0f : 1.0f)...};
  return fma(v, signs, __builtin_shufflevector(v, v, (LANE ^ DISTANCE)...));
}

// One vector's elements at distances below 16 and below `block`.
inline f32x16 within(f32x16 v, int block) {
  constexpr auto lanes = std::make_integer_sequence<int, LANES>{};
  if (block > 8) v = meet_lanes<8>(v, lanes);
  if (block > 4) v = meet_lanes<4>(v, lanes);
  if (block > 2) v = meet_lanes<2>(v, lanes);
  if (block > 1) v = meet_lanes<1>(v, lanes);
  return v;
}

}  // namespace

void hadamard(float* x, int k, int block) {
  for (int distance = block / 2; distance >= LANES; distance /= 2)
    for (int start = 0; start < k; start += 2 * distance)
      for (int i = start; i < start + distance; i += LANES) meet(x + i, x + i + distance);
  const float factor = 1.0f / std::sqrt(static_cast<float>(block));
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
