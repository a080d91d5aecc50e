// From queries and a block to probabilities, and from these to sums of values: in floats, and in
// bytes where the cache is kept in bytes.
//
// Scores are kept in units of log2: the scale of the softmax and log2(e) are in the queries.
#pragma once

#include <cmath>
#include <type_traits>

#include "attention_few.h"
#include "attention_kernel.h"
#include "attention_pack.h"

namespace phloem {

constexpr float LOG2_E = 1.44269504f;

// Cuts memory into arrays; from null, it finds out how much they take.
class Arena {
 public:
  explicit Arena(void* memory) : base_(static_cast<char*>(memory)) {}
  template <class T>
  T* take(size_t count) {
    T* taken = reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return taken;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// What each of a tile's queries gets from a block: the largest score, the sum of the probabilities
// relative to it, and what a unit of the products with the values is worth.
struct BlockResults {
  float* most;
  float* sum;
  float* unit;
};

struct QueryRange {
  int begin, end;
};

// Lanes from the n-th on become `other`.
inline f32x16 first_lanes(f32x16 x, int n, float other) {
  return select(lane_numbers() < splat(n), x, splat(other));
}

// The largest of numbers that are 0 or more, where NaN counts as more than all.
inline float largest(u32x16 bits) {
  uint32_t most;
#if PHLOEM_AVX512
  const __mmask8 all = -1;  // GCC 12 warns of the forms without a mask
  const __m512i x = (__m512i)bits;
  const __m256i half = _mm256_max_epu32(_mm512_maskz_extracti32x8_epi32(all, x, 0),
                                        _mm512_maskz_extracti32x8_epi32(all, x, 1));
  const __m128i quarter =
      _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i pair = _mm_max_epu32(quarter, _mm_unpackhi_epi64(quarter, quarter));
  most = _mm_cvtsi128_si32(_mm_max_epu32(pair, _mm_shuffle_epi32(pair, 1)));
#else
  most = reduce(bits, [](auto a, auto b) { return select(a > b, a, b); });
#endif
  float value;
  std::memcpy(&value, &most, sizeof value);
  return value;
}

inline u32x16 max_bits(u32x16 a, f32x16 b) { return select(a > (u32x16)b, a, (u32x16)b); }

// Calls visit(i, seen, whether that is less than all) for the queries of a range, which see so many
// positions of a block from `start` on.
template <class Visit>
inline void each_query(QueryRange range, const int32_t* positions, int start, int count,
                       Visit visit) {
  for (int i = range.begin; i < range.end; ++i) {
    const int seen = std::min(count, positions[i] - start + 1);
    if (seen < BLOCK)
      visit(i, seen, std::true_type{});
    else
      visit(i, seen, std::false_type{});
  }
}

// The largest of a block's scores. What is behind those that are seen may be left over from another
// block.
template <bool MASKED>
inline float largest_score(const float* scores, int seen) {
  f32x16 most = splat(-INFINITY);
  for (int v = 0; v < BLOCK_VECTORS; ++v) {
    const f32x16 s = load(scores + v * LANES);
    most = max(most, MASKED ? first_lanes(s, seen - v * LANES, -INFINITY) : s);
  }
  return max_lane(most);
}

// Keys and values as floats or bfloat16.
template <class T>
class FloatTile {
 public:
  static int units(int dim) { return dim; }

  FloatTile(Arena& arena, int queries, int dim, int value_vectors)
      : units_(units(dim)),
        value_vectors_(value_vectors),
        queries_(arena.take<float>(static_cast<size_t>(queries) * dim)),
        scores_(arena.take<float>(static_cast<size_t>(queries) * BLOCK)),
        keys_(arena.take<f32x16>(static_cast<size_t>(dim) * BLOCK_VECTORS)),
        values_(arena.take<f32x16>(static_cast<size_t>(value_vectors) * BLOCK)) {}

  void set_query(int i, const float* q, int dim, float scale) {
    const float factor = scale * LOG2_E;
    float* to = queries_ + static_cast<size_t>(i) * units_;
    for (int d = 0; d < dim; ++d) to[d] = q[d] * factor;
  }

  void read(const Slots<T>& keys, const Slots<T>& values, int dim, int value_dim,
            const BlockSlots& block, int /*queries*/) {
    pack_keys(keys_, keys, dim, block);
    pack_values(values_, values, value_dim, block);
  }

  // Probabilities of the first `count` positions from `start` on, for queries at `positions`.
  void weigh(QueryRange range, const int32_t* positions, int start, int count,
             const BlockResults& results) {
    const int vectors = vectors_of(count);
    float* scores = row(range.begin);
    const float* queries = queries_ + static_cast<size_t>(range.begin) * units_;
    product<FloatProduct>({reinterpret_cast<const int32_t*>(queries), units_},
                          {keys_, BLOCK_VECTORS}, units_, range.end - range.begin, vectors,
                          [=](int r, int v, f32x16 x) { store(scores + r * BLOCK + v * LANES, x); });
    // One loop after the other: for a query each is a chain of dependent operations.
    each_query(range, positions, start, count, [&](int i, int seen, auto masked) {
      results.most[i] = largest_score<masked>(row(i), seen);
    });
    each_query(range, positions, start, count,
               [&](int i, int seen, auto masked) { softmax<masked>(i, seen, results); });
  }

  // sums[i] = sums[i] * keep[i] + (probabilities of i x values) * add[i]
  void accumulate(QueryRange range, int count, f32x16* sums, const float* keep, const float* add) {
    const float* weights = row(range.begin);
    product<FloatProduct>({reinterpret_cast<const int32_t*>(weights), BLOCK},
                          {values_, value_vectors_}, count, range.end - range.begin, value_vectors_,
                          [=, this](int r, int v, f32x16 x) {
                            const int i = range.begin + r;
                            f32x16* to = sums + static_cast<size_t>(i) * value_vectors_ + v;
                            *to = fma(x, splat(add[i]), *to * splat(keep[i]));
                          });
  }

 private:
  float* row(int i) { return scores_ + static_cast<size_t>(i) * BLOCK; }

  template <bool MASKED>
  void softmax(int i, int seen, const BlockResults& results) {
    float* scores = row(i);
    const f32x16 m = splat(results.most[i]);
    f32x16 total{};
    for (int v = 0; v < BLOCK_VECTORS; ++v) {
      f32x16 p = exp2_to_1(load(scores + v * LANES) - m);
      if (MASKED) p = first_lanes(p, seen - v * LANES, 0.0f);
      total += p;
      store(scores + v * LANES, p);
    }
    results.sum[i] = sum(total);
    results.unit[i] = 1.0f;
  }

  const int units_, value_vectors_;
  float* const queries_;
  float* const scores_;
  f32x16* const keys_;
  f32x16* const values_;
};

// Keys and values as bytes with a scale for each token and head. Queries are quantized the same
// way, and the probabilities, times the values' scales, to 0 ... 255 by the largest of the block:
// both products are exact integers.
class ByteTile {
 public:
  ByteTile(Arena& arena, int queries, int dim, int value_vectors)
      : quads_((dim + 3) / 4),
        units_(quads_ * UNITS),
        value_vectors_(value_vectors),
        queries_(arena.take<int32_t>(static_cast<size_t>(queries) * quads_)),
        pairs_(arena.take<int32_t>(PAIRS ? static_cast<size_t>(queries) * units_ : 0)),
        scales_(arena.take<float>(queries)),
        offsets_(arena.take<int32_t>(queries)),
        scores_(arena.take<float>(static_cast<size_t>(queries) * BLOCK)),
        weights_(arena.take<uint8_t>(static_cast<size_t>(queries) * BLOCK * UNITS)),
        keys_(arena.take<f32x16>(static_cast<size_t>(units_) * BLOCK_VECTORS)),
        values_(arena.take<f32x16>(static_cast<size_t>(value_vectors) * BLOCK / UNIT_BYTES)),
        key_scales_(arena.take<float>(BLOCK)),
        value_scales_(arena.take<float>(BLOCK)) {}

  void set_query(int i, const float* q, int dim, float scale) {
    u32x16 bits{};
    for (int d = 0; d < dim; d += LANES)
      bits = max_bits(bits, abs(load_some(q + d, std::min(LANES, dim - d))));
    const float step = largest(bits) / 127.0f;
    // Zeros otherwise; a step that is not finite makes the scores NaN.
    const bool usable = step > 0 && step < INFINITY;
    int8_t* to = reinterpret_cast<int8_t*>(queries_ + static_cast<size_t>(i) * quads_);
    i32x16 total{};
    for (int d = 0; d < dim; d += LANES) {
      const int left = std::min(LANES, dim - d);
      i32x16 x{};
      if (usable) x = round_to_int(load_some(q + d, left) / splat(step));
      total += x;
      const i8x16 bytes = low_bytes(x);
      std::memcpy(to + d, &bytes, std::min(LANES, 4 * quads_ - d));
    }
    scales_[i] = step * (scale * LOG2_E);
    offsets_[i] = KEY_FLIP == 0 ? 0 : -128 * sum(total);
    if constexpr (PAIRS) set_pairs(i);
  }

  // `queries`: how many will read the block.
  void read(const Slots<int8_t>& keys, const Slots<int8_t>& values, int dim, int value_dim,
            const BlockSlots& block, int queries) {
    few_ = queries <= FEW_QUERIES && dim % ROW_VECTOR == 0 && value_dim % ROW_VECTOR == 0;
    if (few_) {
      key_rows_.find(keys, dim, block, block.next_keys);
      value_rows_.find(values, value_dim, block, block.next_values);
    } else {
      pack_keys(keys_, keys, dim, block);
      pack_values(values_, values, value_dim, block);
    }
    gather_scales(key_scales_, keys, block);
    gather_scales(value_scales_, values, block);
  }

  // See FloatTile.
  void weigh(QueryRange range, const int32_t* positions, int start, int count,
             const BlockResults& results) {
    float* scores = row(range.begin);
    const int32_t* offsets = offsets_ + range.begin;
    const float* scales = key_scales_;
    const int32_t* quads = queries_ + static_cast<size_t>(range.begin) * quads_;
    const int32_t* units = PAIRS ? pairs_ + static_cast<size_t>(range.begin) * units_ : quads;
    const int size = range.end - range.begin;
    const auto emit = [=](int r, int v, i32x16 x) {
      if constexpr (KEY_FLIP != 0) x += splat(offsets[r]);
      store(scores + r * BLOCK + v * LANES, to_float(x) * load(scales + v * LANES));
    };
    if (few_)
      few_key_products(size, quads, key_rows_, quads_, count, emit);
    else
      product<Packed<KeyProduct>>({units, units_}, {keys_, BLOCK_VECTORS}, units_, size,
                                  vectors_of(count), emit);
    // See FloatTile. A scale may be zero, and nothing seen times zero is no number.
    each_query(range, positions, start, count, [&](int i, int seen, auto masked) {
      results.most[i] = seen > 0 ? largest_score<masked>(row(i), seen) * scales_[i] : -INFINITY;
    });
    each_query(range, positions, start, count,
               [&](int i, int seen, auto masked) { softmax<masked>(i, seen, results); });
    for (int i = range.begin; i < range.end; ++i) quantize(i, results);
  }

  // See FloatTile.
  void accumulate(QueryRange range, int count, f32x16* sums, const float* keep, const float* add) {
    const uint8_t* weights = weights_of(range.begin);
    const int size = range.end - range.begin;
    const auto emit = [=, this](int r, int v, i32x16 x) {
      const int i = range.begin + r;
      f32x16* to = sums + static_cast<size_t>(i) * value_vectors_ + v;
      *to = fma(to_float(x), splat(add[i]), *to * splat(keep[i]));
    };
    if (few_)
      few_value_products(size, weights, value_rows_, value_vectors_, count, emit);
    else
      product<Packed<ValueProduct>>(
          {reinterpret_cast<const int32_t*>(weights), BLOCK / UNIT_BYTES},
          {values_, value_vectors_}, (count + 3) / 4 * UNITS, size, value_vectors_, emit);
  }

 private:
  // Units of four bytes.
  static constexpr int UNITS = 4 / UNIT_BYTES;

  template <class Product>
  using Packed = std::conditional_t<PAIRS, PairProduct, Product>;

  float* row(int i) { return scores_ + static_cast<size_t>(i) * BLOCK; }

  uint8_t* weights_of(int i) const { return weights_ + static_cast<size_t>(i) * BLOCK * UNITS; }

  // A query's quads in the order that put_units gives keys.
  void set_pairs(int i) {
    const int32_t* from = queries_ + static_cast<size_t>(i) * quads_;
    int32_t* to = pairs_ + static_cast<size_t>(i) * units_;
    int q = 0;
    for (; q + LANES <= quads_; q += LANES, to += 2 * LANES) {
      const u8x64 quads = load<u8x64>(from + q);
      store(to, even_bytes(quads));
      store(to + LANES, odd_bytes(quads));
    }
    const int left = quads_ - q;
    for (int k = 0; k < left; ++k) {
      int16_t even[2], odd[2];
      for (int p = 0; p < 2; ++p) {
        even[p] = static_cast<int8_t>(from[q + k] >> 16 * p);
        odd[p] = static_cast<int8_t>(from[q + k] >> (16 * p + 8));
      }
      std::memcpy(to + k, even, sizeof even);
      std::memcpy(to + left + k, odd, sizeof odd);
    }
  }

  // Leaves the probabilities times the scales of the values in the place of the scores.
  template <bool MASKED>
  void softmax(int i, int seen, const BlockResults& results) {
    float* scores = row(i);
    const f32x16 scale = splat(scales_[i]);
    const float m = results.most[i];
    f32x16 total{};
    u32x16 bits{};
    for (int v = 0; v < BLOCK_VECTORS; ++v) {
      f32x16 p = exp2_to_1(fma(load(scores + v * LANES), scale, splat(-m)));
      f32x16 weight = p * load(value_scales_ + v * LANES);
      if (MASKED) {
        p = first_lanes(p, seen - v * LANES, 0.0f);
        weight = first_lanes(weight, seen - v * LANES, 0.0f);
      }
      total += p;
      bits = max_bits(bits, weight);
      store(scores + v * LANES, weight);
    }
    results.sum[i] = sum(total);
    results.unit[i] = largest(bits);
  }

  void quantize(int i, const BlockResults& results) {
    const float* scores = row(i);
    const f32x16 inverse = splat(255.0f / results.unit[i]);
    // Adding 1.5 * 2^23 rounds to the nearest integer, and leaves it in the lowest bits.
    const f32x16 magic = splat(12582912.0f);
    uint8_t* weights = weights_of(i);
    for (int v = 0; v < BLOCK_VECTORS; ++v) {
      const i32x16 rounded = (i32x16)(fma(load(scores + v * LANES), inverse, magic));
      if constexpr (PAIRS)
        store(weights + 2 * v * LANES, low_halves((u32x16)rounded));
      else
        store(weights + v * LANES, low_bytes(rounded));
    }
    results.unit[i] /= 255.0f;
  }

  const int quads_, units_, value_vectors_;
  int32_t* const queries_;  // four bytes each
  int32_t* const pairs_;    // the same as units, where these are not quads
  float* const scales_;
  int32_t* const offsets_;  // what products of keys + 128 have to start from
  float* const scores_;
  uint8_t* const weights_;  // bytes, or 16 bits each, in units
  f32x16* const keys_;
  f32x16* const values_;
  float* const key_scales_;
  float* const value_scales_;
  ByteRows key_rows_, value_rows_;  // for few queries, instead of packed blocks
  bool few_ = false;
};

template <class T>
struct TileOf {
  using Type = FloatTile<T>;
};
template <>
struct TileOf<int8_t> {
  using Type = ByteTile;
};

}  // namespace phloem
