// Packing weights into panels, from floats or from the blocks of a GGUF file, and single rows back.

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "linear.h"
#include "packed.h"
#include "simd.h"
#include "team.h"

namespace phloem {
namespace {

enum BlockFormat { BLOCK_Q4_0 = 0, BLOCK_Q4_1 = 1, BLOCK_Q8_0 = 2 };

constexpr int HALF = GROUP / 2;
constexpr uint16_t F16_NAN = 0x7e00;

// To the nearest float16, ties to even; what is too large becomes infinite.
uint16_t to_f16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | F16_NAN);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Adding a half moves the last bit of a denormal float16 to the last bit of the float.
    float shifted;
    std::memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    std::memcpy(&bits, &shifted, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112 << 10)));
}

float from_f16(uint16_t h) {
  uint16_t lanes[LANES]{h};
  return load_f16(lanes)[0];
}

// One output's part of a step: q as the packed bytes have it, of 32 inputs in their order.
struct Block {
  uint16_t d = 0, m = 0;
  uint8_t q[GROUP];
};

Block zeros(int kind) {
  Block block;
  std::fill(block.q, block.q + GROUP, kind == PHLOEM_Q8 ? 128 : 0);
  return block;
}

inline void keep(Block& block, f32x16 first, f32x16 second) {
  const i32x16 a = to_int(first), b = to_int(second);
  for (int i = 0; i < LANES; ++i) block.q[i] = static_cast<uint8_t>(a[i]);
  for (int i = 0; i < LANES; ++i) block.q[LANES + i] = static_cast<uint8_t>(b[i]);
}

float reciprocal(float d) { return d == 0.0f ? 0.0f : 1.0f / d; }

// m = min x, d = (max x - m) / 15, q = floor((x - m) / d + 0.5), as llama.cpp makes Q4_1.
Block quantize_q4(f32x16 a, f32x16 b) {
  const float m = -max_lane(max(-a, -b));
  const float d = (max_lane(max(a, b)) - m) / 15.0f;
  const float factor = reciprocal(d);
  const auto level = [=](f32x16 x) {
    return min(max((x - m) * factor + 0.5f, splat(0.0f)), splat(15.0f));
  };
  Block block;
  block.d = to_f16(d);
  block.m = to_f16(m);
  keep(block, level(a), level(b));
  return block;
}

// A group of `count` inputs. Repeating the last one changes neither the largest nor the smallest.
Block quantize(const float* values, int count) {
  float x[GROUP];
  std::copy(values, values + count, x);
  std::fill(x + count, x + GROUP, values[count - 1]);
  const f32x16 a = load(x), b = load(x + LANES);
  // Nothing but a difference of numbers that are not finite is not zero.
  if (!(sum((a - a) + (b - b)) == 0.0f)) {
    Block block = zeros(PHLOEM_Q4);
    block.d = block.m = F16_NAN;
    return block;
  }
  return quantize_q4(a, b);
}

Block read(const uint8_t* bytes, int format) {
  Block block;
  std::memcpy(&block.d, bytes, 2);
  bytes += 2;
  if (format == BLOCK_Q8_0) {
    for (int i = 0; i < GROUP; ++i) block.q[i] = bytes[i] ^ 0x80;
    return block;
  }
  if (format == BLOCK_Q4_1) {
    std::memcpy(&block.m, bytes, 2);
    bytes += 2;
  } else {
    block.m = to_f16(-8.0f * from_f16(block.d));
  }
  for (int i = 0; i < HALF; ++i) {
    block.q[i] = bytes[i] & 15;
    block.q[HALF + i] = bytes[i] >> 4;
  }
  return block;
}

void write(uint8_t* step, int kind, int lane, const Block& block) {
  const int vectors = kind == PHLOEM_Q8 ? Q8_VECTORS : Q4_VECTORS;
  uint8_t* q = step + 4 * lane;
  for (int v = 0; v < vectors; ++v)
    for (int b = 0; b < 4; ++b) {
      const int i = 4 * v + b;
      const int high = kind == PHLOEM_Q8 ? 0 : block.q[(HALF + i) % GROUP] << 4;
      q[v * VECTOR_BYTES + b] = static_cast<uint8_t>(block.q[i] | high);
    }
  uint8_t* scales = step + vectors * VECTOR_BYTES + lane * sizeof(uint16_t);
  std::memcpy(scales, &block.d, sizeof block.d);
  if (kind == PHLOEM_Q4) std::memcpy(scales + PANEL * sizeof(uint16_t), &block.m, sizeof block.m);
}

// Writes the bytes of an output, 4 to a vector, and returns d. Of inputs that are not finite d is
// NaN.
float pack_i8_output(uint8_t* to, const float* weight, int k) {
  f32x16 largest{};
  float finite = 0;
  for (int i = 0; i < k; i += LANES) {
    const f32x16 x = load_some(weight + i, std::min(LANES, k - i));
    largest = max(abs(x), largest);
    finite += sum(x - x);
  }
  if (!(finite == 0.0f)) return NAN;
  const float d = max_lane(largest) / 127.0f;
  if (!(d <= FLT_MAX)) return NAN;
  if (d < FLT_MIN) return 0;
  for (int i = 0; i < k; i += LANES) {
    const int count = std::min(LANES, k - i);
    const i32x16 q = round_to_int(load_some(weight + i, count) * (1.0f / d));
    for (int j = 0; j < count; ++j)
      to[(i + j) / 4 * VECTOR_BYTES + j % 4] = static_cast<uint8_t>(q[j] + 128);
  }
  return d;
}

// A panel of PHLOEM_I8, whose outputs are rounded as quantize_row rounds a row with one scale.
void pack_i8(uint8_t* panel, const float* weight, int first, int n, int k) {
  uint8_t* tail = panel + steps_of(PHLOEM_I8, k) * I8_STEP;
  std::fill(panel, tail, 128);
  for (int lane = 0; lane < PANEL; ++lane) {
    float d = 0;
    if (const int output = first + lane; output < n)
      d = pack_i8_output(panel + 4 * lane, weight + static_cast<size_t>(output) * k, k);
    std::memcpy(tail + lane * sizeof d, &d, sizeof d);
  }
}

// Packs in quantized steps what `block_of(output, group)` gives.
template <class BlockOf>
void pack_panel(uint8_t* panel, int kind, int first, int n, int groups, BlockOf block_of) {
  const size_t bytes = step_bytes(kind);
  for (int lane = 0; lane < PANEL; ++lane) {
    const int output = first + lane;
    for (int g = 0; g < groups; ++g)
      write(panel + g * bytes, kind, lane, output < n ? block_of(output, g) : zeros(kind));
  }
}

void pack_f32(uint8_t* panel, const float* weight, int first, int n, int k) {
  auto* to = reinterpret_cast<float*>(panel);
  for (int lane = 0; lane < PANEL; ++lane) {
    const int output = first + lane;
    for (int i = 0; i < k; ++i)
      to[i * PANEL + lane] = output < n ? weight[static_cast<size_t>(output) * k + i] : 0;
  }
}

// Calls task(first output, panel) for each panel of a weight.
template <class Task>
void each_panel(Team& team, void* packed, int kind, int n, int k, Task task) {
  const size_t bytes = panel_bytes(kind, k);
  team.run([&](Worker& worker) {
    worker.each(panels_of(n), [&](size_t p) {
      task(static_cast<int>(p) * PANEL, static_cast<uint8_t*>(packed) + p * bytes);
    });
  });
}

}  // namespace

void unpack_row(const phloem_weight& weight, int64_t row, float* out) {
  const int kind = weight.kind, lane = static_cast<int>(row % PANEL);
  const uint8_t* step = static_cast<const uint8_t*>(weight.packed) +
                        row / PANEL * panel_bytes(kind, weight.k);
  if (kind == PHLOEM_F32) {
    for (int i = 0; i < weight.k; ++i)
      out[i] = reinterpret_cast<const float*>(step)[i * PANEL + lane];
    return;
  }
  if (kind == PHLOEM_I8) {
    float d;
    std::memcpy(&d, step + steps_of(kind, weight.k) * I8_STEP + lane * sizeof d, sizeof d);
    for (int i = 0; i < weight.k; ++i)
      out[i] = d * static_cast<float>(step[i / 4 * VECTOR_BYTES + 4 * lane + i % 4] - 128);
    return;
  }
  const int vectors = kind == PHLOEM_Q8 ? Q8_VECTORS : Q4_VECTORS;
  for (int start = 0; start < weight.k; start += GROUP, step += step_bytes(kind)) {
    uint16_t scales[2]{};
    const uint8_t* at = step + vectors * VECTOR_BYTES + lane * sizeof(uint16_t);
    std::memcpy(&scales[0], at, sizeof scales[0]);
    if (kind == PHLOEM_Q4) std::memcpy(&scales[1], at + PANEL * sizeof(uint16_t), sizeof scales[1]);
    const float d = from_f16(scales[0]), m = from_f16(scales[1]);
    for (int i = 0; i < std::min(GROUP, weight.k - start); ++i) {
      const int of_half = kind == PHLOEM_Q8 ? i : i % HALF;
      const int byte = step[of_half / 4 * VECTOR_BYTES + 4 * lane + of_half % 4];
      const int q = kind == PHLOEM_Q8 ? byte - 128 : i < HALF ? byte & 15 : byte >> 4;
      out[start + i] = d * static_cast<float>(q) + m;
    }
  }
}

}  // namespace phloem

using namespace phloem;

extern "C" {

size_t phloem_packed_bytes(int kind, int n, int k) { return panels_of(n) * panel_bytes(kind, k); }

// Packs a weight of floats, [n, k], as any kind but PHLOEM_Q8.
void phloem_pack_floats(Team* team, const float* weight, int kind, int n, int k, void* packed) {
  each_panel(*team, packed, kind, n, k, [=](int first, uint8_t* panel) {
    if (kind == PHLOEM_F32) return pack_f32(panel, weight, first, n, k);
    if (kind == PHLOEM_I8) return pack_i8(panel, weight, first, n, k);
    pack_panel(panel, kind, first, n, groups_of(k), [=](int output, int g) {
      const int count = std::min(GROUP, k - g * GROUP);
      return quantize(weight + static_cast<size_t>(output) * k + g * GROUP, count);
    });
  });
}

// Packs rows of a GGUF tensor as PHLOEM_Q8 (from Q8_0) or PHLOEM_Q4: output o is row order[o], or
// row o if there is no order. `format` is a `BlockFormat`.
void phloem_pack_blocks(Team* team, const uint8_t* blocks, int format, const int64_t* order, int n,
                        int k, void* packed) {
  const int kind = format == BLOCK_Q8_0 ? PHLOEM_Q8 : PHLOEM_Q4, groups = k / GROUP;
  const size_t bytes = format == BLOCK_Q8_0 ? 34 : format == BLOCK_Q4_1 ? 20 : 18;
  each_panel(*team, packed, kind, n, k, [=](int first, uint8_t* panel) {
    pack_panel(panel, kind, first, n, groups, [=](int output, int g) {
      const size_t row = order == nullptr ? output : order[output];
      return read(blocks + (row * groups + g) * bytes, format);
    });
  });
}

// out [count, k]: the rows `ids` of a packed weight, as floats.
void phloem_embed(Team* team, const phloem_weight* weight, const int64_t* ids, int count,
                  float* out) {
  team->run([=](Worker& worker) {
    worker.each(count, [=](size_t i) {
      unpack_row(*weight, ids[i], out + i * weight->k);
    });
  });
}
}
