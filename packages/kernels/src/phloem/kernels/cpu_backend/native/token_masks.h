// Which tokens may be chosen, as bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "simd.h"

namespace phloem {

constexpr int WORD = 32;

// Bit t % 32 of word t / 32 of a row is token t's. No bits: every token is allowed.
struct TokenMasks {
  const uint32_t* bits = nullptr;
  int words = 0;  // of a row
};

// Forbids those of n (1 to 32) logits whose bit is not set.
inline void forbid(float* x, int n, uint32_t bits) {
  constexpr uint32_t ALL = 0xffffffffu;
  if (bits == ALL) return;
  if (n < WORD) {
    for (int i = 0; i < n; ++i)
      if (!(bits >> i & 1)) x[i] = -INFINITY;
    return;
  }
  const i32x16 bit = splat(1) << lane_numbers();
  for (int half = 0; half < WORD; half += LANES) {
    const i32x16 set = splat(static_cast<int32_t>(bits >> half)) & bit;
    store(x + half, select(set != 0, load(x + half), splat(-INFINITY)));
  }
}

// The same for n logits, the first of which has the first bit.
inline void forbid_all(float* x, int n, const uint32_t* bits) {
  for (int i = 0; i < n; i += WORD) forbid(x + i, std::min(WORD, n - i), bits[i / WORD]);
}

}  // namespace phloem
