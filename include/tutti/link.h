#pragma once

// A link between hosts that the program makes itself, over libtorch's c10d: a process group of its
// own, over a network or with settings that TUTTI_LINK does not know. Needs libtorch, and is not
// part of tutti/tutti.h, because it reads c10d's headers. An example: docs/links.md.
//
// Threads: use_link() is called by one thread, before Trainers and DataParallels are made. Failure:
// each function's.

#include <functional>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace tutti {

/// A link that hosts are about to make. The first worker of each host has it.
struct LinkPlace {
  /// The same on all of them, and another one for each link of a job: what a store's keys can begin
  /// with.
  std::string name;
  int host = 0;   ///< of this worker, 0 … hosts-1: the rank that its backends must have
  int hosts = 1;  ///< the size that its backends must have
  int lanes = 1;  ///< how many backends are needed
};

/// Makes the backends of one link, at the same time on its hosts. Only their send() and recv() are
/// called, and nobody else may use them until Tutti lets go of them, at the end of the Trainer or
/// the DataParallel. What it throws comes out of the call that needed the link.
using MakeBackends =
    std::function<std::vector<c10::intrusive_ptr<c10d::Backend>>(const LinkPlace&)>;

/// From now on links between hosts are made by `make`, in the place of TUTTI_LINK's auto; `name`
/// stands in logs and errors. All workers call it, with the same name: Mismatch where the first
/// Trainer or DataParallel is made otherwise. Nothing happens on one host. Throws InvalidArgument
/// without a name or a function, with a name that TUTTI_LINK knows, where TUTTI_LINK is not auto,
/// and after a link was needed. A link whose backends are too few or too many, or of another rank
/// or size, is InvalidArgument; so is one that is null.
void use_link(const std::string& name, MakeBackends make);

}  // namespace tutti
