#pragma once

// One join at the hub: those that connect are strangers until they have proved that they know the
// token, then hosts; the hub ends when all ranks are there, or something is wrong that concerns
// all.
//
// Threads: one. Failure: HubListener::accept_all().

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "job/hosts/host_connections.h"
#include "job/hosts/host_messages.h"
#include "job/hosts/signed_channel.h"
#include "job/wire/rank_set.h"

namespace tutti {

class HubJoin {
 public:
  /// `address` is for texts; what is passed by reference outlives this.
  HubJoin(const FileDescriptor& listener, std::string address, const HostIntroduction& own,
          Deadline deadline, const Patience& patience);
  ConnectedHosts run();

 private:
  struct Guest {
    SignedChannel channel;
    std::string from;
    Clock::time_point came;
    std::optional<HostIntroduction> host = {};  ///< once it is known to be one of the job
    bool told = false;                          ///< of the failure
    bool over = false;
  };

  void serve(Clock::time_point until);
  void accept();
  void hear(Guest& guest);
  void obey(Guest& guest, const SignedMessage& message);
  void introduce(Guest& guest, HostIntroduction said);
  void compare(const Guest& guest);
  void turn_away(Guest& guest, const HostVerdict& verdict, const std::string& reason);
  void refuse(Guest& guest, const std::string& reason);
  void end(Guest& guest);
  void decide(HostVerdict verdict);
  void time_out(const std::string& because);
  void tell_who_is_missing();
  std::string missing() const;
  std::string text_of(const HostIntroduction& host) const {
    return host_text(host.name, host.ranks);
  }
  bool has_unsent() const;
  [[noreturn]] void fail();
  ConnectedHosts finish();

  const FileDescriptor& listener_;
  std::string address_;
  const HostIntroduction& own_;
  std::string run_;
  Deadline deadline_;
  const Patience& patience_;
  Clock::time_point begin_ = Clock::now();
  RankSet there_;
  RankSet told_;  ///< of the failure
  std::vector<Guest> guests_;
  std::optional<HostVerdict> verdict_;
  bool no_descriptors_ = false;
  bool news_ = true;
  Clock::time_point next_news_ = begin_;
  std::vector<std::string> refusals_;  ///< reasons, for the text of a Timeout
};

}  // namespace tutti
