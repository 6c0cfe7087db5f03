#pragma once

// How workers that know nothing of each other exchange a few bytes and descriptors: used to join,
// and to make groups and arenas. Everything after that goes through shared memory.
//
// The launcher serves it over inherited socket pairs (socket_rendezvous.h); ranks that are threads
// use MeetingPoint (meeting_point.h).

#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/file_descriptor.h"

namespace tutti {

struct Parcel {
  std::string bytes;
  std::vector<FileDescriptor> descriptors;
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;

  /// Every worker of `ranks` (job ranks, ascending, the caller among them) gives a parcel under the
  /// same tag and gets all of them, in the order of `ranks`. A tag is used once per set of ranks.
  /// Throws Timeout naming who has not come, PeerLost when one of `ranks` has ended before giving.
  virtual std::vector<Parcel> all_gather(const std::string& tag, const std::vector<int>& ranks,
                                         Parcel mine, Deadline deadline) = 0;

  /// Tells whoever watches the workers that this one failed because of `culprit` (a job rank), so
  /// that the first cause is reported, not its echo. Never throws.
  virtual void blame(int culprit, const std::string& text) noexcept = 0;
};

}  // namespace tutti
