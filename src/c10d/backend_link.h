#pragma once

// A link over backends of c10d, one for each lane: Gloo (gloo_link.h), or what the user has made.
// The link calls only send() and recv() of a backend, with its own matching by tags; it must be
// used by nobody else as long as the link exists.
//
// Each message is preceded by its size, so that another size is an error and not garbage. Its own
// bytes carry their number as the tag: two sides that disagree never meet in one buffer.
// Threads: besides those of the backend two for each lane and peer that is used, in which works are
// waited for in order, and one for each peer that waits for word of its end.
// Failure: as Link has it. A backend whose Work::abort() is not implemented keeps operations with a
// lost peer open until it ends them itself.

#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "comm/link/link.h"

namespace tutti {

/// All participants call it with as many backends, of which each has the same rank and size.
/// `engine` is what description() begins with. InvalidArgument where the backends disagree. No
/// message is exchanged: self_test() does that.
std::unique_ptr<Link> make_backend_link(std::vector<c10::intrusive_ptr<c10d::Backend>> lanes,
                                        const std::string& engine);

}  // namespace tutti
