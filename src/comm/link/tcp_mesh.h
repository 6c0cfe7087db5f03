#pragma once

// The connections of a link over TCP: each peer connects to those before it, and proves by a secret
// of theirs, which it was told through the job, that it is none of another program.
//
// Threads: one. Failure: IoError, Timeout, and what the request's exchange throws.

#include <vector>

#include "base/file_descriptor.h"
#include "comm/link/link_request.h"

namespace tutti {

/// Collective. The sockets to each peer by lane, non-blocking: that of lane l to peer p is at
/// p × lanes + l, and empty for the own ones.
std::vector<FileDescriptor> connect_mesh(const LinkRequest& request);

}  // namespace tutti
