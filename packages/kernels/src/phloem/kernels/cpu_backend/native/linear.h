// y = x W^T + b for packed weights (packed.h), with what follows it done on the way out.
//
// Each output is summed over k in one order, whatever the number of rows, threads or tiles: an
// output is a function of its row of x and its row of W alone. In float32, with one rounding where
// fma is:
//
//   PHLOEM_F32  y = fma(x_i, w_i, y)                            for each input i
//   PHLOEM_Q8   y = fma(d * scale, dot, y)                      for each group of 32 inputs
//   PHLOEM_Q4   y = fma(m, scale * sum(q), fma(d * scale, dot, y))
//   PHLOEM_I8   y = (d * scale) * dot                           of all inputs at once
//
// from y = 0 on, in ascending order, then y + b; dot and sum are exact integers, then
// rounded to floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "phloem.h"
#include "quantized_rows.h"
#include "team.h"

namespace phloem {

enum class Then {
  STORE,     // out = y
  ADD,       // out += y
  SILU_MUL,  // out[j] = silu(y[j]) * y[j + n / 2] for j < n / 2, a multiple of 16
};

// A linear's input, in the form that the kind of its weight takes: PHLOEM_F32 reads `values`, the
// quantized kinds `quantized`.
struct LinearInput {
  int rows;
  const float* values;  // [rows, k]
  QuantizedRows quantized;
};

// How much memory the quantized input of so many rows takes, and the view of it.
inline size_t input_bytes(const phloem_weight& weight, int rows) {
  return weight.kind == PHLOEM_F32 ? 0 : QuantizedRows::bytes(rows, weight.k, weight.input_bits);
}
inline QuantizedRows input_at(void* memory, const phloem_weight& weight, int rows) {
  return QuantizedRows::at(memory, rows, weight.k, weight.input_bits, weight.kind == PHLOEM_I8);
}

// One phase of the team: x = values, [rows, k] of floats, for all rows of x.
void quantize_rows(Worker& worker, const QuantizedRows& x, const float* values, int k);

// One phase of the team. `out` is [rows, n] with `stride` floats from row to row, and must not
// overlap the input.
void linear(Worker& worker, const phloem_weight& weight, const LinearInput& x, float* out,
            int64_t stride, Then then);

// The same within a task, by the calling thread alone.
void linear_in_task(const phloem_weight& weight, const LinearInput& x, float* out, int64_t stride);

// Asks memory for what the calling thread will read first in a linear of `rows` rows: before a phase
// that leaves memory idle.
void ask_for(const Worker& worker, const phloem_weight& weight, int rows);

// A row of W as floats, [k]: an embedding, where W is a table of them.
void unpack_row(const phloem_weight& weight, int64_t row, float* out);

}  // namespace phloem
