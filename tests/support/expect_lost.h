#pragma once

// What ranks that are threads have in common when one of them dies.

#include <exception>
#include <vector>

#include <gtest/gtest.h>

#include "support/thread_ranks.h"
#include "tutti/error.h"

namespace tutti::test {

/// That each of these ranks has lost that one.
inline void expect_lost(const ThreadOutcome& outcome, const std::vector<int>& ranks, int lost) {
  for (const int rank : ranks) {
    const auto& error = outcome.errors[static_cast<std::size_t>(rank)];
    ASSERT_TRUE(error) << "of rank " << rank;
    try {
      std::rethrow_exception(error);
    } catch (const PeerLost& peer) {
      EXPECT_EQ(peer.rank(), lost) << "of rank " << rank << ": " << peer.what();
    }
  }
}

}  // namespace tutti::test
