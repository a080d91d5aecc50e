// The likeliest tokens of a head, whose logits are never there as a whole.
//
// A head that reads its inputs in two terms (quantized_rows.h) is multiplied with the first ones, and
// with the second only where that could matter: what a second term e adds to a logit is at most
// |w| |e|, so a logit that is further below the largest than twice that cannot become it. The rest get
// both terms and are the numbers that `linear` gives.

#include <algorithm>
#include <cmath>

#include "packed.h"
#include "sampling.h"

namespace phloem {
namespace {

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

Best better(const Best& a, const Best& b) {
  Best best = b.logit > a.logit ? b : a;
  best.zero = a.zero + b.zero;
  return best;
}

// A weight cut into pieces of whole pairs of panels that a thread reads in about 20 microseconds.
struct Pieces {
  static constexpr size_t BYTES = 256 << 10;

  const phloem_weight& weight;
  const size_t panel = panel_bytes(weight.kind, weight.k);
  const int panels = static_cast<int>(std::max<size_t>(1, BYTES / (2 * panel))) * 2;
  const int size = panels * PANEL;
  const int count = (weight.n + size - 1) / size;

  phloem_weight at(int i) const { return part(i * panels, size); }

  // At most `outputs` outputs from a panel on.
  phloem_weight part(int first_panel, int outputs) const {
    phloem_weight part = weight;
    part.n = std::min(outputs, weight.n - first_panel * PANEL);
    part.packed = static_cast<const char*>(weight.packed) + first_panel * panel;
    if (weight.bias != nullptr) part.bias += first_panel * PANEL;
    return part;
  }
};

// One term of one row.
LinearInput only(const QuantizedRows& x, int row) {
  LinearInput one{1, nullptr, x};
  const size_t group = static_cast<size_t>(row) * x.groups;
  one.quantized.rows = one.quantized.terms = 1;
  one.quantized.q += group * GROUP;
  one.quantized.scales += group;
  one.quantized.offsets += group;
  one.quantized.scaled_sums += group;
  return one;
}

// At most what the second term of row r adds to a logit, with room for what sums are rounded by.
float reach(const QuantizedRows& x, int r, float largest_norm) {
  float squares = 0;
  const size_t first = static_cast<size_t>(x.rows + r) * x.groups;
  for (size_t group = first; group < first + x.groups; ++group) {
    int32_t sum = 0;
    for (int i = 0; i < GROUP; ++i) sum += x.q[group * GROUP + i] * x.q[group * GROUP + i];
    squares += x.scales[group] * x.scales[group] * static_cast<float>(sum);
  }
  return std::sqrt(squares) * largest_norm * 1.01f;
}

// The best of a piece for row r, whose first terms gave `logits`.
Best screened(const Pieces& pieces, int piece, const LinearInput& x, int r, float* logits, int n) {
  const Best first = best_of(logits, n, 0);
  const float room = 2 * reach(x.quantized, r, pieces.weight.largest_norm) +
                     1e-4f * (1 + std::abs(first.logit));
  if (!(std::abs(room) < INFINITY)) return {first.logit, piece * pieces.size, NAN};
  const LinearInput second = only(x.quantized, x.quantized.rows + r);
  Best best{-INFINITY, 0, first.zero};
  for (int panel = 0; panel * PANEL < n; ++panel) {
    float* y = logits + panel * PANEL;
    const int lanes = std::min(PANEL, n - panel * PANEL);
    const float most = lanes == PANEL ? max_lane(load(y)) : *std::max_element(y, y + lanes);
    if (most < first.logit - room) continue;
    float added[PANEL];
    linear_in_task(pieces.part(piece * pieces.panels + panel, lanes), second, added, PANEL);
    for (int i = 0; i < lanes; ++i) y[i] += added[i];
    best = better(best, best_of(y, lanes, piece * pieces.size + panel * PANEL));
  }
  return best;
}

bool can_screen(const phloem_weight& weight, const LinearInput& x) {
  return weight.kind != PHLOEM_F32 && x.quantized.terms == 2 && weight.largest_norm > 0 &&
         weight.bias == nullptr;
}

}  // namespace

size_t argmax_linear_bytes(const phloem_weight& weight, int rows) {
  return sizeof(Best) * rows * Pieces{weight}.count;
}

void argmax_linear(Worker& worker, const phloem_weight& weight, const LinearInput& x, void* memory,
                   int64_t* ids, bool* finite) {
  const Pieces pieces{weight};
  Best* best = static_cast<Best*>(memory);  // [pieces, rows]
  const bool screens = can_screen(weight, x);
  worker.each(pieces.count, [&](size_t i) {
    const phloem_weight piece = pieces.at(i);
    float* logits = static_cast<float*>(worker.scratch(sizeof(float) * x.rows * pieces.size));
    LinearInput read = x;
    if (screens) read.quantized.terms = 1;
    linear_in_task(piece, read, logits, pieces.size);
    for (int r = 0; r < x.rows; ++r) {
      float* row = logits + static_cast<size_t>(r) * pieces.size;
      best[i * x.rows + r] =
          screens ? screened(pieces, i, x, r, row, piece.n) : best_of(row, piece.n, i * pieces.size);
    }
  });
  worker.each(x.rows, [&](size_t r) {
    Best found = best[r];
    for (int i = 1; i < pieces.count; ++i) found = better(found, best[i * x.rows + r]);
    ids[r] = found.id;
    if (finite != nullptr) finite[r] = found.zero == 0;
  });
}

}  // namespace phloem

extern "C" {

// Bytes that `phloem_argmax_linear` needs, aligned to 64.
size_t phloem_argmax_linear_scratch(const phloem_weight* weight, int rows) {
  return phloem::QuantizedRows::bytes(rows, weight->k, weight->input_terms) +
         phloem::argmax_linear_bytes(*weight, rows);
}

// The argmax of x W^T + b for x [rows, k].
void phloem_argmax_linear(phloem::Team* team, const phloem_weight* weight, const float* x, int rows,
                          void* scratch, int64_t* ids, bool* finite) {
  using namespace phloem;
  void* best =
      static_cast<char*>(scratch) + QuantizedRows::bytes(rows, weight->k, weight->input_terms);
  team->run([=](Worker& worker) {
    LinearInput input{rows, x, {}};
    if (weight->kind != PHLOEM_F32) {
      input.quantized = QuantizedRows::at(scratch, rows, weight->k, weight->input_terms);
      quantize_rows(worker, input.quantized, x, weight->k);
    }
    argmax_linear(worker, *weight, input, best, ids, finite);
  });
}

// The largest Euclidean norm of an output's weights; `norms` is [n].
float phloem_largest_norm(phloem::Team* team, const phloem_weight* weight, float* norms) {
  using namespace phloem;
  constexpr int AT_ONCE = 256;
  team->run([&](Worker& worker) {
    worker.each((weight->n + AT_ONCE - 1) / AT_ONCE, [&](size_t task) {
      float* row = static_cast<float*>(worker.scratch(sizeof(float) * weight->k));
      const int first = static_cast<int>(task) * AT_ONCE;
      for (int o = first; o < std::min(weight->n, first + AT_ONCE); ++o) {
        unpack_row(*weight, o, row);
        double squares = 0;
        for (int i = 0; i < weight->k; ++i) squares += static_cast<double>(row[i]) * row[i];
        norms[o] = static_cast<float>(std::sqrt(squares));
      }
    });
  });
  return *std::max_element(norms, norms + weight->n);
}

}  // extern "C"
