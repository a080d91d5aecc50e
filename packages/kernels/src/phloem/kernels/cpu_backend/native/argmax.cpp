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

// `bits` are the piece's, or null; what they forbid is forgotten.
Best best_of(float* x, int n, int first_id, const uint32_t* bits) {
  float maxima[LANES];
  const float zero = take_maxima(x, n, maxima);
  if (bits != nullptr) {
    forbid_all(x, n, bits);
    take_maxima(x, n, maxima);
  }
  const float max = max_lane(load(maxima));
  return {max, max == -INFINITY ? 0 : first_id + first_equal(x, n, max), zero};
}

// A weight cut into pieces of whole pairs of panels that a thread reads in about 20 microseconds:
// of whole words of a mask, too.
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

void argmax_linear(Worker& worker, const phloem_weight& weight, const LinearInput& x,
                   TokenMasks masks, void* memory, Greedy found) {
  const Pieces pieces{weight};
  Best* best = static_cast<Best*>(memory);  // [pieces, rows]
  worker.each(pieces.count, [&](size_t i) {
    const phloem_weight piece = pieces.at(i);
    float* logits = static_cast<float*>(worker.scratch(sizeof(float) * x.rows * pieces.size));
    linear_in_task(piece, x, logits, pieces.size);
    const int first = static_cast<int>(i) * pieces.size;
    for (int r = 0; r < x.rows; ++r) {
      const uint32_t* bits = masks.bits;
      if (bits != nullptr) bits += static_cast<size_t>(r) * masks.words + first / WORD;
      best[i * x.rows + r] = best_of(logits + r * pieces.size, piece.n, first, bits);
    }
  });
  worker.each(x.rows, [&](size_t r) {
    Best most = best[r];
    for (int i = 1; i < pieces.count; ++i) {
      const Best& other = best[i * x.rows + r];
      const float zero = most.zero + other.zero;
      if (other.logit > most.logit) most = other;
      most.zero = zero;
    }
    found.ids[r] = most.id;
    found.finite[r] = most.zero == 0;
    found.allowed[r] = most.logit != -INFINITY;
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

}  // extern "C"
