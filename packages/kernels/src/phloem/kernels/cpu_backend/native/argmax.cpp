#include <algorithm>

#include "packed.h"
#include "sampling.h"

namespace phloem {
namespace {

// The first of n logits that equals `max`.
int first_equal(const float* x, int n, float max) {
  int i = 0;
  while (i < n - 1 && x[i] != max) ++i;
  return i;
}

int64_t first_largest(const Logits& logits, int r, const RowNotes& notes) {
  const float max = largest(logits, notes);
  if (max == -INFINITY) return 0;
  int s = 0;
  while (max_lane(load(notes.maxima + s * LANES)) != max) ++s;
  return s * SPAN + first_equal(logits.row(r) + s * SPAN, logits.span_size(s), max);
}

bool all_finite(const Logits& logits, const RowNotes& notes) {
  float zeros = 0;
  for (int s = 0; s < logits.spans(); ++s) zeros += notes.zeros[s];
  return zeros == 0;
}

// The largest of a row's logits in a piece of the vocabulary.
struct Best {
  float logit;
  int32_t id;
  float zero;  // NaN where a logit of the piece is not finite
};

Best best_of(const float* x, int n, int first_id) {
  float maxima[LANES];
  const float zero = take_maxima(x, n, maxima);
  const float max = max_lane(load(maxima));
  return {max, max == -INFINITY ? 0 : first_id + first_equal(x, n, max), zero};
}

// A weight cut into pieces of whole pairs of panels that a thread reads in about 20 microseconds.
struct Pieces {
  static constexpr size_t BYTES = 256 << 10;

  const phloem_weight& weight;
  const size_t panel = panel_bytes(weight.kind, weight.k);
  const int panels = static_cast<int>(std::max<size_t>(1, BYTES / (2 * panel))) * 2;
  const int size = panels * PANEL;
  const int count = (weight.n + size - 1) / size;

  phloem_weight at(int i) const {
    phloem_weight piece = weight;
    piece.n = std::min(size, weight.n - i * size);
    piece.packed = static_cast<const char*>(weight.packed) + i * panels * panel;
    if (weight.bias != nullptr) piece.bias += i * size;
    return piece;
  }
};

}  // namespace

void argmax(Worker& worker, const Logits& logits, const Workspace& workspace, int64_t* ids,
            bool* finite) {
  for (int first = 0; first < logits.rows; first += ROWS_AT_ONCE) {
    const Logits part = logits.part(first);
    each_task(worker, part, [&](int r, int task) {
      note_maxima(part, r, task, workspace.row(part, r));
    });
    worker.each(part.rows, [&](size_t r) {
      const RowNotes notes = workspace.row(part, r);
      ids[first + r] = first_largest(part, r, notes);
      if (finite != nullptr) finite[first + r] = all_finite(part, notes);
    });
  }
}

size_t argmax_linear_bytes(const phloem_weight& weight, int rows) {
  return sizeof(Best) * rows * Pieces{weight}.count;
}

void argmax_linear(Worker& worker, const phloem_weight& weight, const LinearInput& x, void* memory,
                   int64_t* ids, bool* finite) {
  const Pieces pieces{weight};
  Best* best = static_cast<Best*>(memory);  // [pieces, rows]
  worker.each(pieces.count, [&](size_t i) {
    const phloem_weight piece = pieces.at(i);
    float* logits = static_cast<float*>(worker.scratch(sizeof(float) * x.rows * pieces.size));
    linear_in_task(piece, x, logits, pieces.size);
    for (int r = 0; r < x.rows; ++r)
      best[i * x.rows + r] = best_of(logits + r * pieces.size, piece.n, i * pieces.size);
  });
  worker.each(x.rows, [&](size_t r) {
    Best found = best[r];
    for (int i = 1; i < pieces.count; ++i) {
      const Best& other = best[i * x.rows + r];
      const float zero = found.zero + other.zero;
      if (other.logit > found.logit) found = other;
      found.zero = zero;
    }
    ids[r] = found.id;
    if (finite != nullptr) finite[r] = found.zero == 0;
  });
}

}  // namespace phloem

extern "C" {

void phloem_argmax(phloem::Team* team, const float* logits, int64_t stride, int rows,
                              int vocab, void* workspace, int64_t* ids, bool* finite) {
  team->run([&](phloem::Worker& worker) {
    phloem::argmax(worker, {logits, stride, rows, vocab}, {static_cast<char*>(workspace)}, ids,
                   finite);
  });
}

// Bytes that `phloem_argmax_linear` needs, aligned to 64.
size_t phloem_argmax_linear_scratch(const phloem_weight* weight, int rows) {
  return phloem::input_bytes(*weight, rows) +
         phloem::argmax_linear_bytes(*weight, rows);
}

// The argmax of x W^T + b for x [rows, k].
void phloem_argmax_linear(phloem::Team* team, const phloem_weight* weight, const float* x, int rows,
                          void* scratch, int64_t* ids, bool* finite) {
  using namespace phloem;
  void* best = static_cast<char*>(scratch) + input_bytes(*weight, rows);
  team->run([=](Worker& worker) {
    LinearInput input{rows, x, {}};
    if (weight->kind != PHLOEM_F32) {
      input.quantized = input_at(scratch, *weight, rows);
      quantize_rows(worker, input.quantized, x, weight->k);
    }
    argmax_linear(worker, *weight, input, best, ids, finite);
  });
}

}  // extern "C"
