#include "sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>

namespace phloem {
namespace {

// Bins of likelihood in which the edge of a nucleus is looked for.
constexpr int BINS = 1024;

// How one row is sampled.
struct Rule {
  float temperature, top_p, min_p;
  int top_k;  // 0: all
  double uniform;

  Rule(const Sampling& how, int r, int vocab)
      : temperature(how.temperature[r]),
        top_p(how.top_p[r]),
        min_p(std::min(how.min_p[r], 1.0f)),
        top_k(how.top_k[r] > 0 && how.top_k[r] < vocab ? how.top_k[r] : 0),
        uniform(how.uniforms[r]) {}
  bool limited() const { return top_k > 0; }
  bool nucleus() const { return top_p < 1.0f; }
  bool lists() const { return limited() || nucleus(); }
};

// Memory of the task that ends a row, for n candidates: views of a worker's scratch.
struct Desk {
  float* weights;   // [n], padded with zeros to whole vectors
  float* copy;      // [n]
  int32_t* bins;    // [n], padded
  uint64_t* ranks;  // [n]
  double* mass;     // [BINS]

  static Desk take(Worker& worker, int n) {
    const size_t padded = static_cast<size_t>(n + LANES - 1) / LANES * LANES;
    char* p = static_cast<char*>(worker.scratch(
        sizeof(double) * BINS + padded * (sizeof(float) * 2 + sizeof(int32_t) + sizeof(uint64_t))));
    Desk desk;
    desk.mass = reinterpret_cast<double*>(p);
    desk.ranks = reinterpret_cast<uint64_t*>(desk.mass + BINS);
    desk.weights = reinterpret_cast<float*>(desk.ranks + padded);
    desk.copy = desk.weights + padded;
    desk.bins = reinterpret_cast<int32_t*>(desk.copy + padded);
    return desk;
  }
};

// Leaves the k largest candidates, of equal ones the first.
void keep_largest(Candidates& c, int k, float* copy) {
  if (c.count <= k) return;
  std::copy(c.values, c.values + c.count, copy);
  std::nth_element(copy, copy + k - 1, copy + c.count, std::greater<float>());
  const float least = copy[k - 1];
  auto room = k - std::count_if(c.values, c.values + c.count, [=](float v) { return v > least; });
  int kept = 0;
  for (int i = 0; i < c.count; ++i) {
    if (!(c.values[i] > least) && !(c.values[i] == least && room-- > 0)) continue;
    c.values[kept] = c.values[i];
    c.ids[kept++] = c.ids[i];
  }
  c.count = kept;
}

// Bins by how far a candidate is below the largest: the first bin has the likeliest. Returns
// the mass of each in `desk.mass`.
void fill_bins(const Candidates& c, float max, const Desk& desk) {
  const float least = *std::min_element(c.values, c.values + c.count);
  const float bins_per_unit = max > least ? std::min((BINS - 1) / (max - least), FLT_MAX) : 0.0f;
  for (int i = 0; i < c.count; i += LANES) {
    const f32x16 v = load_some(c.values + i, std::min(c.count - i, LANES));
    const f32x16 bin = min((max - v) * bins_per_unit, splat(BINS - 1.0f));
    store(desk.bins + i, to_int(bin));
  }
  std::fill(desk.mass, desk.mass + BINS, 0.0);
  for (int i = 0; i < c.count; ++i) desk.mass[desk.bins[i]] += desk.weights[i];
}

// Zeroes the weights of candidates outside of the nucleus: the likeliest stay, as long as those
// before them weigh less than `wanted`. The bin where that ends is the only one put in order.
void keep_nucleus(const Candidates& c, float max, double wanted, const Desk& desk) {
  if (c.count == 0) return;
  fill_bins(c, max, desk);
  int edge = 0;
  double before = 0;
  for (; edge < BINS - 1 && before + desk.mass[edge] < wanted; ++edge) before += desk.mass[edge];
  int in_edge = 0;
  for (int i = 0; i < c.count; ++i)
    if (desk.bins[i] == edge) desk.ranks[in_edge++] = rank_of(c.values[i], i);
  std::sort(desk.ranks, desk.ranks + in_edge);
  uint64_t last = 0;
  for (int j = 0; j < in_edge && (before < wanted || (edge == 0 && j == 0)); ++j) {
    last = desk.ranks[j];
    before += desk.weights[static_cast<uint32_t>(last)];
  }
  for (int i = 0; i < c.count; ++i) {
    const bool out = desk.bins[i] > edge ||
                     (desk.bins[i] == edge && rank_of(c.values[i], i) > last);
    desk.weights[i] = out ? 0.0f : desk.weights[i];
  }
}

// The first of n weights whose cumulative sum, on top of `before`, exceeds `target`; if rounding
// leaves none, the last that is not 0.
int first_above(const float* weights, int n, double before, double target) {
  int last = 0;
  for (int i = 0; i < n; ++i) {
    if (!(weights[i] > 0.0f)) continue;
    last = i;
    before += weights[i];
    if (before > target) break;
  }
  return last;
}

// The span in which the cumulative sum of the spans exceeds `target`, and the sum before it.
struct Place {
  int span;
  double before;
};

template <class SumOf>
Place place_of(int spans, double target, SumOf sum_of_span) {
  Place place = {0, 0.0};
  double before = 0;
  for (int s = 0; s < spans && !(before > target); ++s) {
    const double sum = sum_of_span(s);
    if (sum > 0) place = {s, before};
    before += sum;
  }
  return place;
}

int draw_from_list(const float* weights, int n, double uniform) {
  const int spans = (n + SPAN - 1) / SPAN;
  const auto size = [&](int s) { return std::min(SPAN, n - s * SPAN); };
  const auto sum = [&](int s) { return sum_of(weights + s * SPAN, size(s)); };
  double total = 0;
  for (int s = 0; s < spans; ++s) total += sum(s);
  const double target = uniform * total;
  const Place place = place_of(spans, target, sum);
  const int start = place.span * SPAN;
  return start + first_above(weights + start, size(place.span), place.before, target);
}

int64_t draw_from_row(const Logits& logits, int r, const Rule& rule, const RowNotes& notes) {
  const double target = rule.uniform * notes.total(logits);
  const Place place = place_of(logits.spans(), target, [&](int s) { return notes.sums[s]; });
  float weights[SPAN];
  const int start = place.span * SPAN, n = logits.span_size(place.span);
  Weigher(*notes.max, rule.temperature, rule.min_p)(logits.row(r) + start, n, weights);
  return start + first_above(weights, n, place.before, target);
}

int64_t draw(Worker& worker, const Logits& logits, int r, const Rule& rule, const RowNotes& notes) {
  if (!rule.lists()) return draw_from_row(logits, r, rule, notes);
  Candidates c = notes.gather(logits);
  if (c.count == 0) return 0;  // NaN, or nothing that is allowed
  const Desk desk = Desk::take(worker, c.count);
  if (rule.limited()) keep_largest(c, rule.top_k, desk.copy);
  Weigher(*notes.max, rule.temperature, 0.0f)(c.values, c.count, desk.weights);
  if (rule.nucleus()) {
    double total = 0;
    if (!rule.limited()) total = notes.total(logits);
    else
      for (int i = 0; i < c.count; i += SPAN)
        total += sum_of(desk.weights + i, std::min(SPAN, c.count - i));
    keep_nucleus(c, *notes.max, rule.top_p * total, desk);
  }
  for (int i = 0; i < c.count; ++i)
    desk.weights[i] = desk.weights[i] < rule.min_p ? 0.0f : desk.weights[i];
  return c.ids[draw_from_list(desk.weights, c.count, rule.uniform)];
}

// A nucleus has no token as unlikely as this: all tokens, were they no likelier, would together
// weigh less than what it leaves out. Half of that leaves room for rounding.
float bound_of_nucleus(const Logits& logits, const Rule& rule, const RowNotes& notes) {
  const double left_out = (1.0 - rule.top_p) * notes.total(logits);
  const double least = std::max(left_out / logits.vocab, static_cast<double>(rule.min_p)) / 2;
  const float bound = static_cast<float>(*notes.max + rule.temperature * std::log(least));
  return std::max(std::nextafter(bound, -INFINITY), -FLT_MAX);
}

void sample_part(Worker& worker, const Logits& logits, const Sampling& how,
                 const Workspace& workspace, int64_t* ids) {
  const auto rule = [&](int r) { return Rule(how, r, logits.vocab); };
  bool nuclei = false;
  for (int r = 0; r < logits.rows; ++r) nuclei |= rule(r).nucleus() && !rule(r).limited();
  each_task(worker, logits, [&](int r, int task) {
    note_maxima(logits, r, task, workspace.row(logits, r));
  });
  worker.each(logits.rows, [&](size_t r) {
    const RowNotes notes = workspace.row(logits, r);
    *notes.max = largest(logits, notes);
    if (!rule(r).limited()) return;
    float* memory = static_cast<float*>(worker.scratch(sizeof(float) * LANES * logits.spans()));
    // Tokens of no weight are no candidates.
    *notes.bound = std::max(bound_of_largest(logits, notes, rule(r).top_k, memory), -FLT_MAX);
  });
  each_task(worker, logits, [&](int r, int task) {
    const RowNotes notes = workspace.row(logits, r);
    const Rule row = rule(r);
    if (row.limited()) return note_candidates(logits, r, task, *notes.bound, notes);
    const float least = row.nucleus() ? 0.0f : row.min_p;
    note_sums(logits, r, task, Weigher(*notes.max, row.temperature, least), notes);
  });
  if (nuclei)
    each_task(worker, logits, [&](int r, int task) {
      const RowNotes notes = workspace.row(logits, r);
      const Rule row = rule(r);
      if (!row.nucleus() || row.limited()) return;
      note_candidates(logits, r, task, bound_of_nucleus(logits, row, notes), notes);
    });
  worker.each(logits.rows, [&](size_t r) {
    ids[r] = draw(worker, logits, r, rule(r), workspace.row(logits, r));
  });
}

}  // namespace

void sample(Worker& worker, const Logits& logits, const Sampling& how, const Workspace& workspace,
            int64_t* ids) {
  for (int first = 0; first < logits.rows; first += ROWS_AT_ONCE)
    sample_part(worker, logits.part(first), how.part(first), workspace, ids + first);
}

}  // namespace phloem

extern "C" {

// Bytes of a workspace that these functions need for so many rows; it need not be aligned.
size_t phloem_sampling_workspace(int rows, int vocab) {
  return phloem::Workspace::bytes(rows, vocab);
}

void phloem_sample(phloem::Team* team, const float* logits, int64_t stride, int rows, int vocab,
                   const float* temperature, const int32_t* top_k, const float* top_p,
                   const float* min_p, const double* uniforms, void* workspace, int64_t* ids) {
  const phloem::Sampling how = {temperature, top_k, top_p, min_p, uniforms};
  team->run([&](phloem::Worker& worker) {
    phloem::sample(worker, {logits, stride, rows, vocab}, how, {static_cast<char*>(workspace)},
                   ids);
  });
}

}  // extern "C"
