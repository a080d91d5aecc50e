// Rows of logits, and the passes that choosing from them is made of.
//
// A row is looked at in spans of 1,024 logits. A pass leaves a little of every span (its largest
// logits, its sum, those of its logits that may be chosen), and one task of the row goes on from
// there, in the order of the spans. Spans are fixed, so a row's results are the same bits whatever
// the number of threads and of other rows.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "simd.h"
#include "team.h"

namespace phloem {

constexpr int SPAN = 1024;
constexpr int TASK_SPANS = 8;
// Rows that have a place in the workspace; more are done one part after the other.
constexpr int ROWS_AT_ONCE = 16;

struct Logits {
  const float* values;
  int64_t stride;  // from row to row
  int rows;
  int vocab;

  const float* row(int r) const { return values + r * stride; }
  int spans() const { return (vocab + SPAN - 1) / SPAN; }
  int span_size(int s) const { return s + 1 < spans() ? SPAN : vocab - s * SPAN; }
  int tasks() const { return (spans() + TASK_SPANS - 1) / TASK_SPANS; }  // of one row
  Logits part(int first) const {
    return {row(first), stride, rows - first < ROWS_AT_ONCE ? rows - first : ROWS_AT_ONCE, vocab};
  }
};

// Logits that may be chosen, in the order of their ids.
struct Candidates {
  float* values;
  int32_t* ids;
  int count;
};

// What passes leave of a row: views of memory that is not theirs.
struct RowNotes {
  float* maxima;    // [spans, 16] of every sixteenth logit of the span; NaN is left out
  float* zeros;     // [spans] 0, or NaN where a logit is not finite
  double* sums;     // [spans] of weights
  int32_t* counts;  // [tasks] of candidates
  Candidates found;  // room for the vocabulary; those of a task start where its logits do
  float* max;        // the largest logit
  float* bound;      // candidates are not below it

  // Moves the candidates of all tasks together.
  Candidates gather(const Logits& logits) const;
  // The sum of all weights.
  double total(const Logits& logits) const;
};

// What several tasks need to know of each other, for at most ROWS_AT_ONCE rows.
struct Workspace {
  char* memory;

  static size_t bytes(int rows, int vocab);
  RowNotes row(const Logits& logits, int r) const;
};

// The weight of a logit x, 1 for the largest: exp((x - max) / temperature), and 0 below `least`.
struct Weigher {
  float max;
  float inverse_temperature;
  float least;

  Weigher(float max, float temperature, float least);
  f32x16 operator()(f32x16 x) const {
    const f32x16 w = exp((x - max) * inverse_temperature);
    return select(w < splat(least), splat(0.0f), w);
  }
  // The weights of n logits; whole vectors are written, zeros after the last.
  void operator()(const float* x, int n, float* weights) const;
};

// Order of likelihood: the smaller rank comes first, the larger logit, of equal ones the lower id.
inline uint64_t rank_of(float logit, int32_t id) {
  uint32_t bits;
  logit += 0.0f;  // no negative zero
  std::memcpy(&bits, &logit, sizeof bits);
  bits = bits & 0x80000000u ? bits : ~bits & 0x7fffffffu;
  return static_cast<uint64_t>(bits) << 32 | static_cast<uint32_t>(id);
}

// Takes the largest of every sixteenth of n logits into `maxima`, [16], leaving NaN out. Returns 0,
// or NaN if not all of them are finite.
float take_maxima(const float* x, int n, float* maxima);

// The passes below do one task of one row.

void note_maxima(const Logits& logits, int r, int task, const RowNotes& notes);

void note_sums(const Logits& logits, int r, int task, const Weigher& weigh, const RowNotes& notes);

// Finds the logits that are at least `bound`.
void note_candidates(const Logits& logits, int r, int task, float bound, const RowNotes& notes);

// The largest logit of a row, from its maxima.
float largest(const Logits& logits, const RowNotes& notes);

// A bound that at least `count` logits reach and few others: as many of the maxima do. -infinity
// where there are not enough maxima to say. `memory` takes all maxima.
float bound_of_largest(const Logits& logits, const RowNotes& notes, int count, float* memory);

// The sum of n weights, padded with zeros to whole vectors.
double sum_of(const float* weights, int n);

// Calls pass(r, task) for all tasks of all rows: one phase.
template <class Pass>
void each_task(Worker& worker, const Logits& logits, Pass pass) {
  const size_t tasks = logits.tasks();
  worker.each(logits.rows * tasks, [&](size_t i) {
    pass(static_cast<int>(i / tasks), static_cast<int>(i % tasks));
  });
}

}  // namespace phloem
