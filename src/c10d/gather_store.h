#pragma once

// A c10d::Store served by an all-gather of the caller's: what a process group needs to begin, over
// the rendezvous that there is. No server, no port.
//
// In rounds, as long as anybody has not finished, all participants gather what each has written
// since; every one of them applies it in the order of participants. So all see the same history,
// and add() and compareSet() are decided alike.
// Threads: one of its own makes the rounds; the store may be used by any thread.
// Failure: an exchange that throws ends the store: every call throws the same from then on.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/link/link_request.h"

namespace tutti {

class GatherStore final : public c10d::Store {
 public:
  /// Collective. `exchange` is called by the store's thread until finish().
  GatherStore(ExchangeBytes exchange, int self);
  /// Ends as by finish(), without an error.
  ~GatherStore() override;

  /// Collective: returns when all participants have called it; what was written stays readable.
  /// Throws what the exchange has thrown.
  void finish();

  c10::intrusive_ptr<Store> clone() override;
  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  using Store::compareSet;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  /// Waits until the key is there, until the store's time-out.
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

 private:
  class Rounds;
  std::shared_ptr<Rounds> rounds_;
};

}  // namespace tutti
