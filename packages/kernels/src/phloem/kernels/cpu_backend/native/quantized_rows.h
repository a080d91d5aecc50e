// Activations as the quantized linears take them: int8 with a scale for every 32 elements, or, for
// PHLOEM_I8, with one for the whole row.
//
//   scale = max |x_i| / 127,   q_i = x_i / scale rounded to nearest, ties to even
//
// where a row's one scale is multiplied with as its reciprocal, 1 / scale in float32. Where 8 bits
// for 32 elements are still too coarse they are int16, with 32767 in the place of 127.
//
// One scale for a whole token costs SmolLM2-135M 2.7 % of its perplexity, one for 32 elements
// nothing that could be told from noise: a few channels are much larger than the rest. One scale is
// for models that were rotated until no channel is (phloem.model_runner.models.rotated).
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace phloem {

constexpr int GROUP = 32;

inline int groups_of(int k) { return (k + GROUP - 1) / GROUP; }

// `rows` rows of k elements, each padded to whole groups with zeros; views of memory that is not
// theirs. Row r of `q` or `wide` starts at r * groups * GROUP, of the others at r * scales_per_row.
struct QuantizedRows {
  int rows = 0;
  int groups = 0;
  int scales_per_row = 0;  // as many as groups, or 1
  int8_t* q = nullptr;
  int16_t* wide = nullptr;  // instead of q: of each four the first, third, second and fourth
  float* scales = nullptr;
  int32_t* offsets = nullptr;  // -128 * sum of q: what weights that are kept as q + 128 add
  float* scaled_sums = nullptr;  // scale * sum of q

  // How much memory `rows` rows take, and the view of it; `memory` is aligned to 64 bytes.
  static size_t bytes(int rows, int k, int bits) {
    return static_cast<size_t>(rows) * groups_of(k) * (GROUP * bits / 8 + 3 * sizeof(float));
  }
  static QuantizedRows at(void* memory, int rows, int k, int bits, bool one_scale) {
    QuantizedRows x;
    x.rows = rows;
    const size_t groups = static_cast<size_t>(rows) * groups_of(k);
    x.groups = groups_of(k);
    x.scales_per_row = one_scale ? 1 : x.groups;
    if (bits == 16)
      x.wide = static_cast<int16_t*>(memory);
    else
      x.q = static_cast<int8_t*>(memory);
    x.scales = reinterpret_cast<float*>(static_cast<char*>(memory) + groups * GROUP * bits / 8);
    x.offsets = reinterpret_cast<int32_t*>(x.scales + groups);
    x.scaled_sums = reinterpret_cast<float*>(x.offsets + groups);
    return x;
  }
};

// Quantizes row r from `values`, k floats. What shares a scale becomes zeros where all of it is
// zero, or too small for a scale; where it is not finite the scale is not, so that it stays visible.
void quantize_row(const QuantizedRows& x, int r, const float* values, int k);

}  // namespace phloem
