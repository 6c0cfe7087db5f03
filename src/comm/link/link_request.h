#pragma once

// What a link is made of, and who makes one.
//
// Values. Failure: what a maker throws.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "comm/link/link.h"

namespace tutti {

/// Gives bytes and gets those of all participants, in their order, the own ones included. All
/// participants call it equally often.
using ExchangeBytes = std::function<std::vector<std::string>(const std::string& mine)>;

struct LinkRequest {
  /// The same on all participants, and another one for each link of a job.
  std::string name;
  int self = 0;
  int peers = 1;
  int lanes = 1;
  std::string address = {};  ///< of this host, by which the others reach it
  Deadline deadline = {};    ///< of making the link
  ExchangeBytes exchange;
};

struct LinkEngine {
  std::string name;  ///< "gloo"
  /// Collective among the participants.
  std::function<std::unique_ptr<Link>(const LinkRequest&)> make = {};
  /// Why it was chosen. For a log.
  std::string reason = {};
};

}  // namespace tutti
