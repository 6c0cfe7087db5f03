#pragma once

// Options of tests that run more workers than one host may have, as threads.

#include <chrono>

#include "support/thread_ranks.h"

namespace tutti::test {

/// Deadlines are generous: under a sanitizer, on a busy machine, so many threads take a minute.
inline ThreadOptions many_workers(int hosts, int each) {
  ThreadOptions options;
  options.job.join_deadline = std::chrono::seconds(120);
  options.job.deadline = std::chrono::seconds(200);
  options.limit = std::chrono::seconds(300);
  options.hosts = even_hosts(hosts * each, hosts);
  return options;
}

}  // namespace tutti::test
