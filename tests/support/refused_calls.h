#pragma once

// System calls that fail, as those of an old kernel, or of a file system that lacks something or is
// full.

#include <linux/filter.h>
#include <vector>

namespace tutti {

class RefusedCalls {
 public:
  RefusedCalls();
  /// `call` is SYS_…, `error` what errno says then.
  void add(int call, int error);
  /// Where its first argument is `descriptor`.
  void add(int call, int descriptor, int error);
  /// From now on, in this thread and in what it starts; for good. False: the system has no seccomp.
  /// Allocates nothing: to be called after fork, too.
  bool install();

 private:
  std::vector<sock_filter> filter_;  // its last line allows the rest
};

}  // namespace tutti
