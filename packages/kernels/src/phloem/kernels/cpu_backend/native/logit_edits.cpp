// Changes of logits before a token is chosen, in place: forbidden tokens and penalties.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "simd.h"
#include "team.h"
#include "token_masks.h"

namespace phloem {
namespace {

// What one task does.
constexpr int MASK_WORDS = 512, SEEN_TOKENS = 2048;

struct Penalties {
  const int64_t* rows;
  const int64_t* ids;
  const float* counts;
  const float* repetition;
  const float* frequency;
  const float* presence;

  void apply(float* logits, int64_t stride, int64_t i) const {
    float& logit = logits[rows[i] * stride + ids[i]];
    float v = logit > 0 ? logit / repetition[i] : logit * repetition[i];
    v -= counts[i] * frequency[i];
    v -= counts[i] > 0 ? presence[i] : 0.0f;
    logit = v;
  }
};

}  // namespace
}  // namespace phloem

extern "C" {

// Sets logits without their bit to -infinity: bit t % 32 of word t / 32 of row j of `bits`, [n,
// ceil(vocab / 32)], is token t's in row rows[j].
void phloem_apply_token_bitmask(phloem::Team* team, float* logits, int64_t stride, int vocab,
                                const int64_t* rows, int n, const uint32_t* bits) {
  using namespace phloem;
  const int words = (vocab + WORD - 1) / WORD;
  const size_t tasks = (words + MASK_WORDS - 1) / MASK_WORDS;
  team->run([&](Worker& worker) {
    worker.each(n * tasks, [&](size_t i) {
      const int64_t j = i / tasks;
      const int first = i % tasks * MASK_WORDS, last = std::min(first + MASK_WORDS, words);
      for (int w = first; w < last; ++w)
        forbid(logits + rows[j] * stride + w * WORD, std::min(vocab - w * WORD, WORD),
               bits[j * words + w]);
    });
  });
}

// Penalises m tokens, no two of them the same logit, as `Ops.apply_penalties` says.
void phloem_apply_penalties(phloem::Team* team, float* logits, int64_t stride, int64_t m,
                            const int64_t* rows, const int64_t* ids, const float* counts,
                            const float* repetition, const float* frequency,
                            const float* presence) {
  using namespace phloem;
  const Penalties penalties = {rows, ids, counts, repetition, frequency, presence};
  team->run([&](Worker& worker) {
    worker.each((m + SEEN_TOKENS - 1) / SEEN_TOKENS, [&](size_t task) {
      const int64_t first = task * SEEN_TOKENS, last = std::min(first + SEEN_TOKENS, m);
      for (int64_t i = first; i < last; ++i) penalties.apply(logits, stride, i);
    });
  });
}

}  // extern "C"
