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

// Rows of a block; those behind its last token are the last one once more.
struct ByteRows {
  const int8_t* at[BLOCK];

  // Asks for the rows of the block after it too.
  void find(const Slots<int8_t>& slots, int dim, const BlockSlots& block, int64_t next) {
    for (int t = 0; t < block.count; ++t) at[t] = slots.elements(block.slots[t]);
    for (int t = block.count; t % LANES != 0; ++t) at[t] = at[block.count - 1];
    for (int t = 0; t < block.next_count; ++t) prefetch(slots.elements(block.next[t]) + next, dim);
  }
};

template <int QUERIES, class Emit>
inline void key_products(const int32_t* queries, const ByteRows& keys, int units, int count,
                         Emit emit) {
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

// Four tokens' bytes of QUADS times 16 dimensions as quads, one vector of 16 dimensions after the
// other. Where it is faster the dimensions are in another order, which `in_order` undoes for the
// sums.
#if PHLOEM_AVX512

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

#elif PHLOEM_AVX2

// For more there are no registers.
constexpr int QUADS = 2;

inline void load_quads(const int8_t* const rows[4], u8x64 quads[QUADS]) {
  __m256i x[4];
  for (int t = 0; t < 4; ++t) x[t] = _mm256_loadu_si256((const __m256i*)rows[t]);
  const __m256i low[2] = {_mm256_unpacklo_epi8(x[0], x[1]), _mm256_unpacklo_epi8(x[2], x[3])};
  const __m256i high[2] = {_mm256_unpackhi_epi8(x[0], x[1]), _mm256_unpackhi_epi8(x[2], x[3])};
  quads[0] = {(native::Bytes)_mm256_unpacklo_epi16(low[0], low[1]),
              (native::Bytes)_mm256_unpackhi_epi16(low[0], low[1])};
  quads[1] = {(native::Bytes)_mm256_unpacklo_epi16(high[0], high[1]),
              (native::Bytes)_mm256_unpackhi_epi16(high[0], high[1])};
}

// Each register has four dimensions of the first vector, and then four of the second.
inline void in_order(i32x16 x[QUADS]) {
  const auto halves = [](native::Ints a, native::Ints b, auto order) {
    return (native::Ints)_mm256_permute2x128_si256((__m256i)a, (__m256i)b, order.value);
  };
  constexpr std::integral_constant<int, 0x20> FIRST;
  constexpr std::integral_constant<int, 0x31> SECOND;
  const i32x16 a = x[0], b = x[1];
  x[0] = {halves(a.low, a.high, FIRST), halves(b.low, b.high, FIRST)};
  x[1] = {halves(a.low, a.high, SECOND), halves(b.low, b.high, SECOND)};
}

#else

constexpr int QUADS = 1;

inline void load_quads(const int8_t* const rows[4], u8x64 quads[QUADS]) {
  interleave(rows, reinterpret_cast<int8_t*>(quads));
}

inline void in_order(i32x16*) {}

#endif

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

// emit(query, vector, products of the weights, BLOCK bytes a query, with 16 dimensions of the
// values). Weights behind the last token are 0.
template <class Emit>
void few_value_products(int size, const uint8_t* weights, const ByteRows& values, int vectors,
                        int count, Emit emit) {
  for_few(size, [&](auto n) { value_products<n.value>(weights, values, vectors, count, emit); });
}

}  // namespace phloem
