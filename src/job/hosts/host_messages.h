#pragma once

// What hosts and hub tell each other while they join, as bytes. Sizes are checked when they are
// read: what comes from a host that knows the token may still be wrong.
//
// Threads: pure functions. Failure: nothing is returned for what is no such message.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "job/hosts/host_connections.h"

namespace tutti {

enum class HostMessage : std::uint32_t {
  introduction = 1,  ///< host: HostIntroduction, without the token
  gave_up,           ///< host: its deadline has passed
  waiting,           ///< hub: text tells who is missing
  joined,            ///< hub: HostList
  failed,            ///< hub: HostVerdict
};

/// All hosts of a job, in the order of their lowest ranks.
struct HostList {
  struct Entry {
    std::string name;
    std::vector<int> ranks;
  };
  std::string run;
  std::vector<Entry> hosts;
};

/// Why a join has failed.
struct HostVerdict {
  enum class Kind : std::uint32_t {
    mismatch,
    timeout,
    lost,   ///< PeerLost of `rank`
    later,  ///< to be tried again: the hub is still at an earlier attempt
  };
  Kind kind = Kind::mismatch;
  int rank = 0;
  std::string text;
};

/// Throws the error that stands for it.
[[noreturn]] void throw_verdict(const HostVerdict& verdict);

std::string bytes_of(const HostIntroduction& introduction);
std::string bytes_of(const HostList& list);
std::string bytes_of(const HostVerdict& verdict);

std::optional<HostIntroduction> read_introduction(const std::string& bytes);
std::optional<HostList> read_host_list(const std::string& bytes);
std::optional<HostVerdict> read_verdict(const std::string& bytes);

/// "a (ranks 0 1)".
std::string host_text(const std::string& name, const std::vector<int>& ranks);

/// Throws InvalidArgument where a host cannot introduce itself so: without a token, or with a text
/// that is too long.
void require_introduction(const HostIntroduction& own);

}  // namespace tutti
