// Products of a few queries with a block of bytes, straight from where its rows lie.
//
// A decode step has one query a head and token: packing a block for it costs more than its
// products. Owns the orders in which lanes are met; the sums are the same exact integers as those
// of packed blocks. For rows of whole vectors of 64 bytes.
#pragma once

#include <type_traits>

#include "attention_kernel.h"
#include "attention_pack.h"

namespace phloem {

// More queries than this are faster over packed blocks, and with narrow registers all are.
constexpr int FEW_QUERIES = native::WIDTH >= 8 ? 4 : 0;

constexpr int ROW_VECTOR = 4 * LANES;  // bytes

// Whether rows of the next block that lie in line are asked for a few at a time, between products:
// all at once they keep the loads of these waiting.
constexpr bool ASKS_IN_PARTS = !PHLOEM_AVX512;

// Rows of a block; those behind its last token are the last one once more.
class ByteRows {
 public:
  const int8_t* at[BLOCK];

  // The rows of the block after it are `to_next` bytes from where its slots are.
  void find(const Slots<int8_t>& slots, int dim, const BlockSlots& block, int64_t to_next) {
    slots.each_row(block, [this](int t, const int8_t* row) { at[t] = row; });
    for (int t = block.count; t % LANES != 0; ++t) at[t] = at[block.count - 1];
    dim_ = dim;
    left_ = 0;
    stride_ = slots.stride(block.next);
    if (ASKS_IN_PARTS && stride_ != 0) {
      next_ = slots.elements(block.next.slots[0]) + to_next;
      left_ = block.next.count;
    } else {
      slots.each_row(block.next, [=](int, const int8_t* row) { prefetch(row + to_next, dim); });
    }
  }

  // Asks memory for `count` rows of the block after it, from the first-th on.
  void ask_for_next(int first, int count) const {
    const int end = std::min(first + count, left_);
    for (int t = first; t < end; ++t) prefetch(next_ + t * stride_, dim_);
  }

 private:
  const int8_t* next_;  // the first row of those that are still to be asked for
  int64_t stride_;
  int left_, dim_;
};

#if PHLOEM_AVX2

// Products of one row with each query; `UNITS` of 32 bits, or if it is 0 as many as `units` says.
template <int QUERIES, int UNITS>
inline void row_products(const int32_t* queries, const int8_t* row, int units,
                         native::Ints (&sums)[QUERIES]) {
  if (UNITS != 0) units = UNITS;
#pragma GCC unroll 4
  for (int q = 0; q < QUERIES; ++q) sums[q] = native::Ints{};
#pragma GCC unroll 2
  for (int u = 0; u < units; u += native::WIDTH) {
    const native::Bytes key = load<native::Bytes>(row + 4 * u);
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q)
      sums[q] = native::signed_dot4(sums[q], key, load<native::Bytes>(queries + q * units + u));
  }
}

// Sums of lanes by halves, as three steps: eight rows' lanes end as one lane each, in order.
inline native::Ints add_pairs(native::Ints a, native::Ints b) {
  return (native::Ints)_mm256_unpacklo_epi32((__m256i)a, (__m256i)b) +
         (native::Ints)_mm256_unpackhi_epi32((__m256i)a, (__m256i)b);
}
inline native::Ints add_quads(native::Ints a, native::Ints b) {
  return (native::Ints)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b) +
         (native::Ints)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
}
inline native::Ints add_halves(native::Ints a, native::Ints b) {
  return (native::Ints)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x20) +
         (native::Ints)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, 0x31);
}

// Products of so many rows, a power of two up to eight, added up as far as these go.
template <int QUERIES, int UNITS, int ROWS>
inline void rows_products(const int32_t* queries, const int8_t* const* rows, int units,
                          native::Ints (&sums)[QUERIES]) {
  if constexpr (ROWS == 1) {
    row_products<QUERIES, UNITS>(queries, rows[0], units, sums);
  } else {
    native::Ints others[QUERIES];
    rows_products<QUERIES, UNITS, ROWS / 2>(queries, rows, units, sums);
    rows_products<QUERIES, UNITS, ROWS / 2>(queries, rows + ROWS / 2, units, others);
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q)
      sums[q] = ROWS == 2   ? add_pairs(sums[q], others[q])
                : ROWS == 4 ? add_quads(sums[q], others[q])
                            : add_halves(sums[q], others[q]);
  }
}

template <int QUERIES, int UNITS, class Emit>
inline void key_products(const int32_t* queries, const ByteRows& keys, int units, int count,
                         Emit emit) {
  int first = 0;
  for (; first < count; first += LANES) {
    native::Ints low[QUERIES], high[QUERIES];
    keys.ask_for_next(first, 8);
    rows_products<QUERIES, UNITS, 8>(queries, keys.at + first, units, low);
    keys.ask_for_next(first + 8, 8);
    rows_products<QUERIES, UNITS, 8>(queries, keys.at + first + 8, units, high);
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q) emit(q, first / LANES, i32x16{low[q], high[q]});
  }
  keys.ask_for_next(first, BLOCK);
}

// Heads of 64 dimensions are the most usual ones.
template <int QUERIES, class Emit>
inline void key_products(const int32_t* queries, const ByteRows& keys, int units, int count,
                         Emit emit) {
  if (units == LANES)
    key_products<QUERIES, LANES>(queries, keys, units, count, emit);
  else
    key_products<QUERIES, 0>(queries, keys, units, count, emit);
}

#else

template <int QUERIES, class Emit>
inline void key_products(const int32_t* queries, const ByteRows& keys, int units, int count,
                         Emit emit) {
  keys.ask_for_next(0, BLOCK);
  for (int first = 0; first < count; first += LANES) {
    i32x16 sums[QUERIES] = {};
    for (int u = 0; u < units; u += LANES) {
      f32x16 x[LANES];
      for (int t = 0; t < LANES; ++t) x[t] = widen(keys.at[first + t] + 4 * u);
      transpose(x);
      const int32_t* left = queries + u;
#pragma GCC unroll 16
      for (int i = 0; i < LANES; ++i)
#pragma GCC unroll 4
        for (int q = 0; q < QUERIES; ++q)
          sums[q] = KeyProduct::add(sums[q], left[q * units + i], (u8x64)x[i]);
    }
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q) emit(q, first / LANES, sums[q]);
  }
}

#endif

#if PHLOEM_AVX512

// Four tokens' bytes of QUADS times 16 dimensions as quads, one vector of 16 dimensions after the
// other, but for the order of the dimensions, which `in_order` undoes for the sums.
constexpr int QUADS = 4;

inline void load_quads(const int8_t* const rows[4], u8x64 quads[QUADS]) {
  const __mmask64 bytes = -1;  // GCC 12 warns of the forms without a mask
  const __mmask32 pairs = -1;
  __m512i x[4];
  for (int t = 0; t < 4; ++t) x[t] = _mm512_loadu_si512(rows[t]);
  const __m512i low[2] = {_mm512_maskz_unpacklo_epi8(bytes, x[0], x[1]),
                          _mm512_maskz_unpacklo_epi8(bytes, x[2], x[3])};
  const __m512i high[2] = {_mm512_maskz_unpackhi_epi8(bytes, x[0], x[1]),
                           _mm512_maskz_unpackhi_epi8(bytes, x[2], x[3])};
  quads[0] = (u8x64)_mm512_maskz_unpacklo_epi16(pairs, low[0], low[1]);
  quads[1] = (u8x64)_mm512_maskz_unpackhi_epi16(pairs, low[0], low[1]);
  quads[2] = (u8x64)_mm512_maskz_unpacklo_epi16(pairs, high[0], high[1]);
  quads[3] = (u8x64)_mm512_maskz_unpackhi_epi16(pairs, high[0], high[1]);
}

template <int ORDER>
inline i32x16 choose_quarters(i32x16 a, i32x16 b) {
  return (i32x16)_mm512_maskz_shuffle_i32x4((__mmask16)-1, (__m512i)a, (__m512i)b, ORDER);
}

// Quarter k of vector i has the dimensions 16 k + 4 i to 16 k + 4 i + 3: a 4 x 4 transpose.
inline void in_order(i32x16 x[4]) {
  constexpr int EVEN = 0x88, ODD = 0xdd;
  const i32x16 even[2] = {choose_quarters<EVEN>(x[0], x[1]), choose_quarters<EVEN>(x[2], x[3])};
  const i32x16 odd[2] = {choose_quarters<ODD>(x[0], x[1]), choose_quarters<ODD>(x[2], x[3])};
  x[0] = choose_quarters<EVEN>(even[0], even[1]);
  x[1] = choose_quarters<EVEN>(odd[0], odd[1]);
  x[2] = choose_quarters<ODD>(even[0], even[1]);
  x[3] = choose_quarters<ODD>(odd[0], odd[1]);
}

template <int QUERIES, class Emit>
inline void value_products(const uint8_t* weights, const ByteRows& values, int vectors, int count,
                           Emit emit) {
  for (int v = 0; v < vectors; v += QUADS) {
    i32x16 sums[QUERIES][QUADS] = {};
    for (int t = 0; t < count; t += 4) {
      const int8_t* rows[4];
      for (int i = 0; i < 4; ++i) rows[i] = values.at[t + i] + v * LANES;
      u8x64 quads[QUADS];
      load_quads(rows, quads);
#pragma GCC unroll 4
      for (int q = 0; q < QUERIES; ++q) {
        const int32_t left = load<int32_t>(weights + q * BLOCK + t);
#pragma GCC unroll 4
        for (int i = 0; i < QUADS; ++i)
          sums[q][i] = ValueProduct::add(sums[q][i], left, quads[i]);
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q) {
      in_order(sums[q]);
#pragma GCC unroll 4
      for (int i = 0; i < QUADS; ++i) emit(q, v + i, sums[q][i]);
    }
  }
}

#else

template <int QUERIES, class Emit>
inline void value_products(const uint8_t* weights, const ByteRows& values, int vectors, int count,
                           Emit emit) {
  const int part = (BLOCK + vectors - 1) / vectors;
  for (int v = 0; v < vectors; ++v) {
    values.ask_for_next(v * part, part);
    i32x16 sums[QUERIES] = {};
    const uint8_t* left = weights;
    for (int64_t t = 0; t < count; t += 4) {
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; ++pair, left += sizeof(int32_t)) {
        const int8_t* const* rows = values.at + t + 2 * pair;
        const i16x32 pairs = row_pairs(rows[0] + v * LANES, rows[1] + v * LANES);
#pragma GCC unroll 4
        for (int q = 0; q < QUERIES; ++q) {
          const size_t query = q * BLOCK * sizeof(int16_t);
          sums[q] = PairProduct::add(sums[q], load<int32_t>(left + query), pairs);
        }
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < QUERIES; ++q) emit(q, v, sums[q]);
  }
}

#endif

// Calls f with the number of queries as a constant.
template <class F>
inline void for_few(int queries, F f) {
  static_assert(FEW_QUERIES <= 4);
  switch (queries) {
    case 1: return f(std::integral_constant<int, 1>{});
    case 2: return f(std::integral_constant<int, 2>{});
    case 3: return f(std::integral_constant<int, 3>{});
    case 4: return f(std::integral_constant<int, 4>{});
  }
}

// emit(query, vector, products with the keys of 16 tokens).
template <class Emit>
void few_key_products(int size, const int32_t* queries, const ByteRows& keys, int units, int count,
                      Emit emit) {
  for_few(size, [&](auto n) { key_products<n.value>(queries, keys, units, count, emit); });
}

// emit(query, vector, products of the weights, BLOCK a query, with 16 dimensions of the values).
// Weights are as packed values take them; those behind the last token are 0.
template <class Emit>
void few_value_products(int size, const uint8_t* weights, const ByteRows& values, int vectors,
                        int count, Emit emit) {
  for_few(size, [&](auto n) { value_products<n.value>(weights, values, vectors, count, emit); });
}

}  // namespace phloem
