#pragma once

// Messages of a step's logical workers on their way to other hosts, each as soon as it is made:
//
//   made(): in this host's log │ its first worker tells the others and sends │ they receive
//
// A host's messages travel in the order of its log, which its workers fill as they finish. Before
// that a few are gathered, so that the others are told of more than one at a time.
//
// Threads: made() by any worker of the host, in its own thread; the rest by the one that moves the
// exchange's link (HostExchange::run_in_background()). Failure: that of the link.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "comm/group_state.h"
#include "sync/coded/message_store.h"
#include "sync/step/step_exchange.h"

namespace tutti {

class HostMessages {
 public:
  /// Keeps references.
  HostMessages(StepExchange& exchange, const MessageStore& store);

  /// Forgets the last step, where this one is another. Before this worker's part of it, while
  /// nobody moves.
  void open();
  /// The message and its header are written, or the header has the refusal.
  void made(std::size_t logical, std::size_t bucket);

  // ---- of the first worker of a host ----

  /// Sends and receives what can be now.
  void move();
  /// All workers of the group have made all their messages: `expected` of each host. From now on
  /// nothing is gathered.
  void close(std::vector<std::size_t> expected);
  /// Whether all that was expected is on its way, or there.
  bool all_known() const;
  /// The first workers of hosts whose messages are not known yet.
  RankSet missing() const;

 private:
  MessageLog& log(int host) const { return store_.log(host); }
  std::uint64_t tag(std::size_t number) const {
    return static_cast<std::uint64_t>(step_) << 32 | number;
  }
  /// The number in a word, 0 where it is of another step.
  std::size_t number_in(std::uint64_t word) const {
    return word >= tag(0) && word < tag(0) + (std::uint64_t{1} << 32)
               ? static_cast<std::size_t>(word - tag(0))
               : 0;
  }
  struct Message {
    std::size_t logical = 0;
    std::size_t bucket = 0;
  };
  /// None where the entry is of another step.
  std::optional<Message> message_in(const std::atomic<std::uint64_t>& entry) const;
  void send_own();
  void give(int host, std::size_t entry);

  StepExchange& exchange_;
  const GroupState& state_;
  const MessageStore& store_;
  int here_;
  std::uint64_t step_ = 0;
  std::vector<std::size_t> taken_;     ///< by host: of its log
  std::vector<std::size_t> expected_;  ///< by host; empty before close()
};

}  // namespace tutti
