#include <algorithm>

#include "sampling.h"

namespace phloem {
namespace {

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
