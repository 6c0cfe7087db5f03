#pragma once

// Why the first worker of a host, through which the others of it join, cannot join itself: it tells
// them before it ends, so that they do not wait for it until the deadline.
//
// Threads: one. Failure: tell_failure() none; who is not told finds nobody that listens.

#include <chrono>

#include "base/file_descriptor.h"
#include "job/wire/frame.h"

namespace tutti {

/// How long workers that have not connected yet are still told, and how much longer than until its
/// deadline one that has connected waits for that.
inline constexpr std::chrono::milliseconds kLastWords{1000};

/// Inside a handler: tells `others` workers of this host, which say hello to `listener`, that rank
/// `first` has failed with what is being handled. Returns once all are told, or after kLastWords.
void tell_failure(const FileDescriptor& listener, int first, int others) noexcept;

/// Throws what the answer to a hello tells, as an error of the class that the first worker had.
void throw_if_failed(const Frame& answer);

}  // namespace tutti
