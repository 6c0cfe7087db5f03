#pragma once

// The memory that an operation reads, while a device still copies to it.
//
// Threads: one at a time. Failure: of what copies.

namespace tutti {

class ComingInput {
 public:
  virtual ~ComingInput() = default;
  /// Never blocks.
  virtual bool has_come() = 0;
  virtual void wait() = 0;
};

}  // namespace tutti
