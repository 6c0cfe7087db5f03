#pragma once

// The engine by which a process makes its links. Who brings one (c10d/gloo_engine.h, the program, a
// test) sets it, before the groups that need links are made; the core itself has MPI.
//
// Threads: any. Failure: what a maker throws.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  std::function<std::unique_ptr<Link>(const LinkRequest&)> make = {};
  /// Why it was chosen; of no engine, why there is none. For a log.
  std::string reason = {};
};

/// Replaces the engine; one without a name is none.
void set_link_engine(LinkEngine engine);
/// Makes an engine where none is set and TUTTI_LINK is auto or gloo; one without a name has the
/// reason. Called before main() by what is linked into a program.
void offer_link_engine(LinkEngine (*make)());
/// The one that was set, else the one that is offered, or where TUTTI_LINK asks for it, MPI. Throws
/// Unsupported where it asks for Gloo and none is there.
LinkEngine link_engine();

/// Finds the first of the workers, whose engines have these names, that has none. Throws Mismatch
/// with two of their `ranks` where engines differ.
std::optional<std::size_t> without_engine(std::span<const std::string> names,
                                          std::span<const int> ranks);

/// Whether links have been asked for: from then on another engine would divide the job.
bool link_engine_is_used();
void note_link_engine_is_used();

}  // namespace tutti
