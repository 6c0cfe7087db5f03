#pragma once

// Errors that a caller can act on. Every one of them names worker, step and parameter where these
// exist; docs/errors.md says what is still usable after each. A broken invariant of Tutti itself is
// not one of these: it ends in tutti::InternalError with file and line.
//
// Threads: values; safe anywhere. Failure: none.

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tutti {

/// Base of everything Tutti throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An argument, an option, a model or an environment variable that cannot be worked with: the
/// program, or what started it, has to change. Nothing was changed.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// What was asked for is meaningful but not offered here; the text says what to do instead.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// The system refused a file, a folder, a descriptor or a socket: the disk is full, a permission or
/// a file is missing. What was there before is as it was; the call may succeed when made again.
class IoError : public Error {
 public:
  IoError(int code, const std::string& text) : Error(text), code_(code) {}
  /// The system's reason, of errno (ENOSPC, EACCES, ENOENT); 0 where it gave none.
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/// Memory cannot be had: the need of all workers exceeds what the machine, a cgroup or a limit of
/// the process allows, or the system refused it. Nothing was changed; a smaller request may fit.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A checkpoint, one of its files or a step log is damaged: cut, or not what its hash claims.
/// Nothing was changed; an older checkpoint may be whole (LoadOptions::fall_back).
class Corrupt : public Error {
 public:
  using Error::Error;
};

/// Training has gone wrong by its values: a value that cannot be sent or averaged because it is not
/// finite or out of range, or too many dropped steps in succession. Thrown on every worker; what
/// was wrong is in no parameter. Other data, a lower rate or an older checkpoint may help.
class Diverged : public Error {
 public:
  using Error::Error;
};

/// A device (a GPU) has failed, or the memory on it has, at or before the call that throws it, or
/// the engine of Sum::fast. The text has what it says. Nothing on such a device can be relied on
/// any more: end the process.
class DeviceFailed : public Error {
 public:
  using Error::Error;
};

/// Workers disagree: about the operation, the plan or the values. Thrown on every worker.
class Mismatch : public Error {
 public:
  using Error::Error;
};

/// A deadline passed. The text names the workers that were waited for and what they were doing.
class Timeout : public Error {
 public:
  using Error::Error;
};

/// A worker's process ended while others needed it.
class PeerLost : public Error {
 public:
  PeerLost(int rank, const std::string& text) : Error(text), rank_(rank) {}
  /// Rank of the lost worker in the job.
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

/// A live worker reported a failure of its own in this step; the step is dropped by all. Or, where
/// no step is made, that it leaves a group (Group::fail).
class PeerFailed : public Error {
 public:
  PeerFailed(int rank, std::int64_t step, const std::string& text)
      : Error(text), rank_(rank), step_(step) {}
  /// Rank of the failed worker in the job.
  int rank() const noexcept { return rank_; }
  /// Step that was dropped, counted from 1; 0 of a group.
  std::int64_t step() const noexcept { return step_; }

 private:
  int rank_;
  std::int64_t step_;
};

}  // namespace tutti
