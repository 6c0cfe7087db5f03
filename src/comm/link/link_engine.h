#pragma once

// The engine by which a process makes its links. The core has none: who brings one (c10d/
// gloo_link.h, a test) sets it, before the groups that need links are made.
//
// Threads: any. Failure: what a maker throws.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/link/link.h"

namespace tutti {

struct LinkRequest {
  /// The same on all participants, and another one for each link of a job.
  std::string name;
  int self = 0;
  int peers = 1;
  int lanes = 1;
  std::string address = {};  ///< of this host, by which the others reach it
  Deadline deadline = {};    ///< of making the link
  /// Gives bytes and gets those of all participants, in their order. All call it equally often.
  std::function<std::vector<std::string>(const std::string& mine)> exchange;
};

struct LinkEngine {
  std::string name;  ///< "gloo"
  /// Collective among the participants.
  std::function<std::unique_ptr<Link>(const LinkRequest&)> make;
};

/// Replaces the engine; one without a name is none.
void set_link_engine(LinkEngine engine);
LinkEngine link_engine();

}  // namespace tutti
