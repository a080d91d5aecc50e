// A team for callers of the C ABI.
#include <exception>

#include "team.h"

#ifndef PHLOEM_SOURCES
#define PHLOEM_SOURCES "unknown"
#endif

extern "C" {

// A team of `threads` (at least 1), the caller's among them; null if the system gives no more.
void* phloem_team_create(int threads) {
  try {
    return new phloem::Team(threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void phloem_team_destroy(void* team) { delete static_cast<phloem::Team*>(team); }

int phloem_team_size(const void* team) { return static_cast<const phloem::Team*>(team)->size(); }

// The sources that this library was compiled from, as a hash.
const char* phloem_sources() { return PHLOEM_SOURCES; }

}  // extern "C"
