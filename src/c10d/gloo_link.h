#pragma once

// The link over Gloo, the engine inside libtorch: TCP connections between all peers, one set for
// each lane, each lane with a thread of Gloo's own.
//
// Built where Gloo's headers are installed (Debian: libgloo-dev); elsewhere every call is
// Unsupported and names the package. Those headers are older than the Gloo in libtorch, so its
// objects only pass through, a new link exchanges some bytes on every lane and with every peer
// before it is handed out, and versions of libtorch that were not tried are refused.
//
// Threads: any; one call per participant at a time. Failure: make_gloo_link() throws
// InvalidArgument (no such interface or address), Unsupported, Timeout (a peer did not come, or did
// not answer), IoError; what the link does is in link.h.

#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "c10d/gather_store.h"
#include "comm/link/link.h"

namespace tutti {

struct GlooOptions {
  int self = 0;
  int peers = 1;
  int lanes = 1;
  /// What to bind to: an interface ("eth0"), or an address or name of this host. One of the two.
  std::string interface = {};
  std::string address = {};
  Deadline deadline = {};  ///< of making the link
};

/// Empty where this build has Gloo and the libtorch that runs was tried; else why not.
std::string why_no_gloo();

/// Collective: all participants call it, each with its own address. `store` finds the others, and
/// is not used once this has returned.
std::unique_ptr<Link> make_gloo_link(const GlooOptions& options,
                                     const c10::intrusive_ptr<c10d::Store>& store);
/// The same by an all-gather of the caller's.
std::unique_ptr<Link> make_gloo_link(const GlooOptions& options, ExchangeBytes exchange);

}  // namespace tutti
