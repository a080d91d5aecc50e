// The team under a sanitizer, without Python: ends with the number of errors that it counts itself.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" {
void* phloem_team_create(int threads);
void phloem_team_destroy(void* team);
void probe_counts(void* team, int phases, const int32_t* tasks, int32_t* counts);
int64_t probe_order(void* team, int phases, int tasks);
int64_t probe_runs(void* team, int runs, int tasks);
int64_t probe_late(void* team, int phases, int tasks, int done_before);
int64_t probe_scratch(void* team, int tasks, int64_t bytes);
}

int main() {
  int64_t wrong = 0;
  for (int threads = 1; threads <= 4; ++threads) {
    void* team = phloem_team_create(threads);
    const std::vector<int32_t> tasks = {1, 0, 7, 100, 3};
    std::vector<int32_t> counts(111);
    probe_counts(team, static_cast<int>(tasks.size()), tasks.data(), counts.data());
    for (int32_t count : counts) wrong += count != 1;
    wrong += probe_order(team, 2000, 8);
    wrong += 6000 - probe_runs(team, 2000, 3);
    wrong += probe_scratch(team, 200, 1000);
    for (int late = 0; threads > 1 && late <= 20; ++late) wrong += probe_late(team, 20, 5, late);
    phloem_team_destroy(team);
  }
  std::printf("%lld errors\n", static_cast<long long>(wrong));
  return wrong != 0;
}
