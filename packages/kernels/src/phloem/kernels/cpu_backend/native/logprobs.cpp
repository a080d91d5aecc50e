#include <algorithm>
#include <cmath>

#include "sampling.h"

namespace phloem {
namespace {

struct LogSoftmax {
  float max;
  double log_sum;
  float operator()(float logit) const {
    return static_cast<float>(static_cast<double>(logit) - max - log_sum);
  }
};

void write_top(Worker& worker, const Candidates& c, const LogSoftmax& logprob, int top,
               int64_t* ids, float* logprobs) {
  uint64_t* ranks = static_cast<uint64_t*>(worker.scratch(sizeof(uint64_t) * c.count));
  for (int i = 0; i < c.count; ++i) ranks[i] = rank_of(c.values[i], i);
  std::partial_sort(ranks, ranks + top, ranks + c.count);
  for (int j = 0; j < top; ++j) {
    const uint32_t i = static_cast<uint32_t>(ranks[j]);
    ids[j] = c.ids[i];
    logprobs[j] = logprob(c.values[i]);
  }
}

void finish_row(Worker& worker, const Logits& logits, int r, const TokenLogprobs& wanted,
                const RowNotes& notes) {
  const LogSoftmax logprob = {*notes.max, std::log(notes.total(logits))};
  int64_t* ids = wanted.top_ids + static_cast<int64_t>(r) * wanted.top;
  float* logprobs = wanted.top_logprobs + static_cast<int64_t>(r) * wanted.top;
  if (std::isnan(logprob.log_sum)) {
    wanted.chosen[r] = NAN;
    std::fill(ids, ids + wanted.top, 0);
    std::fill(logprobs, logprobs + wanted.top, NAN);
    return;
  }
  wanted.chosen[r] = logprob(logits.row(r)[wanted.ids[r]]);
  if (wanted.top > 0)
    write_top(worker, notes.gather(logits), logprob, wanted.top, ids, logprobs);
}

void logprobs_of_part(Worker& worker, const Logits& logits, const TokenLogprobs& wanted,
                      const Workspace& workspace) {
  each_task(worker, logits, [&](int r, int task) {
    note_maxima(logits, r, task, workspace.row(logits, r));
  });
  worker.each(logits.rows, [&](size_t r) {
    const RowNotes notes = workspace.row(logits, r);
    *notes.max = largest(logits, notes);
    if (wanted.top == 0) return;
    float* memory = static_cast<float*>(worker.scratch(sizeof(float) * LANES * logits.spans()));
    *notes.bound = bound_of_largest(logits, notes, wanted.top, memory);
  });
  each_task(worker, logits, [&](int r, int task) {
    const RowNotes notes = workspace.row(logits, r);
    note_sums(logits, r, task, Weigher(*notes.max, 1.0f, 0.0f), notes);
    if (wanted.top > 0) note_candidates(logits, r, task, *notes.bound, notes);
  });
  worker.each(logits.rows, [&](size_t r) {
    finish_row(worker, logits, r, wanted, workspace.row(logits, r));
  });
}

}  // namespace

void token_logprobs(Worker& worker, const Logits& logits, const TokenLogprobs& wanted,
                    const Workspace& workspace) {
  for (int first = 0; first < logits.rows; first += ROWS_AT_ONCE)
    logprobs_of_part(worker, logits.part(first), wanted.part(first), workspace);
}

}  // namespace phloem

extern "C" void phloem_token_logprobs(phloem::Team* team, const float* logits, int64_t stride,
                                      int rows, int vocab, const int64_t* ids, int top,
                                      void* workspace, float* chosen, int64_t* top_ids,
                                      float* top_logprobs) {
  const phloem::TokenLogprobs wanted = {ids, top, chosen, top_ids, top_logprobs};
  team->run([&](phloem::Worker& worker) {
    phloem::token_logprobs(worker, {logits, stride, rows, vocab}, wanted,
                           {static_cast<char*>(workspace)});
  });
}
