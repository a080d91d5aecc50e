// Functions that use a team in the ways that kernels do, and count what goes wrong.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "team.h"

using phloem::Team;
using phloem::Worker;

namespace {

Team& team_of(void* handle) { return *static_cast<Team*>(handle); }

// What a late thread does outside of tasks, before its first phase.
void wait_until(const std::atomic<bool>& flag) {
  while (!flag.load()) std::this_thread::yield();
}

}  // namespace

extern "C" {

// Phase p has tasks[p] tasks; each adds 1 to its own of `counts`, which follow each other.
void probe_counts(void* team, int phases, const int32_t* tasks, int32_t* counts) {
  team_of(team).run([=](Worker& worker) {
    int32_t* own = counts;
    for (int p = 0; p < phases; own += tasks[p++])
      worker.each(tasks[p], [&](size_t i) { std::atomic_ref<int32_t>(own[i]).fetch_add(1); });
  });
}

// In each phase every task reads what all tasks of the phase before wrote, without atomics. Returns
// how often that was anything else.
int64_t probe_order(void* team, int phases, int tasks) {
  std::vector<int32_t> cells[2] = {std::vector<int32_t>(tasks), std::vector<int32_t>(tasks)};
  std::atomic<int64_t> wrong{0};
  team_of(team).run([&](Worker& worker) {
    for (int p = 0; p < phases; ++p)
      worker.each(tasks, [&](size_t i) {
        const auto& before = cells[p % 2];
        wrong += tasks - std::count(before.begin(), before.end(), p);
        cells[(p + 1) % 2][i] = p + 1;
      });
  });
  return wrong;
}

// Many runs of one phase; returns how many tasks ran.
int64_t probe_runs(void* team, int runs, int tasks) {
  std::atomic<int64_t> ran{0};
  for (int r = 0; r < runs; ++r)
    team_of(team).run([&](Worker& worker) { worker.each(tasks, [&](size_t) { ++ran; }); });
  return ran;
}

// One other thread, that comes to the first phase only when the caller has done `done_before` of
// the phases; needs a team of at least 2. Returns how many cells of [phases, tasks] are not 1.
int64_t probe_late(void* team, int phases, int tasks, int done_before) {
  std::vector<int32_t> counts(static_cast<size_t>(phases) * tasks);
  std::atomic<bool> here{false}, begin{false};
  team_of(team).run([&](Worker& worker) {
    if (worker.index() != 0) {
      here = true;
      wait_until(begin);
    } else {
      wait_until(here);
    }
    for (int p = 0; p < phases; ++p) {
      if (worker.index() == 0 && p == done_before) begin = true;
      worker.each(tasks, [&, p](size_t i) {
        std::atomic_ref<int32_t>(counts[static_cast<size_t>(p) * tasks + i]).fetch_add(1);
      });
    }
    begin = true;
  });
  return static_cast<int64_t>(counts.size()) - std::count(counts.begin(), counts.end(), 1);
}

// Each task fills the scratch of its thread and reads it again. Returns how many found something
// else there, memory that is not aligned, or less of it than before.
int64_t probe_scratch(void* team, int tasks, int64_t bytes) {
  std::atomic<int64_t> wrong{0};
  team_of(team).run([&](Worker& worker) {
    worker.each(tasks, [&](size_t i) {
      const size_t size = bytes * (i % 3 + 1);
      auto* memory = static_cast<unsigned char*>(worker.scratch(size));
      std::memset(memory, static_cast<int>(i % 256), size);
      std::this_thread::yield();
      const bool kept = std::count(memory, memory + size, i % 256) == static_cast<long>(size);
      wrong += !kept || reinterpret_cast<uintptr_t>(memory) % 64 != 0;
    });
  });
  return wrong;
}

}  // extern "C"
