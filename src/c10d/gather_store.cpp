#include "c10d/gather_store.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/helper_thread.h"
#include "base/number.h"

namespace tutti {
namespace {

using Value = std::vector<std::uint8_t>;
using Json = nlohmann::json;

/// Between rounds, so that a participant that waits for others does not gather without a pause.
constexpr std::chrono::milliseconds kPause{1};

Json bytes_of(const Value& value) { return Json::binary(value); }

}  // namespace

/// What all clones of a store share, and the thread that makes the rounds.
class GatherStore::Rounds {
 public:
  Rounds(ExchangeBytes exchange, int self) : exchange_(std::move(exchange)), self_(self) {
    thread_ = start_helper_thread("tutti store", [this] { run(); });
  }
  ~Rounds() {
    end();
    thread_.join();
  }

  void end() {
    const std::lock_guard lock(mutex_);
    is_finished_ = true;
    changed_.notify_all();
  }

  void finish() {
    end();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_over_; });
    if (error_) std::rethrow_exception(error_);
  }

  /// Sends a write, and returns what it gave when it has been applied.
  Json write(Json entry, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    require_open();
    const auto number = written_++;
    pending_.push_back(std::move(entry));
    changed_.notify_all();
    wait_until(lock, timeout, "a write", [&] { return results_.contains(number); });
    return results_.extract(number).mapped();
  }

  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    wait_until(lock, timeout, fmt::format("{}", fmt::join(keys, ", ")),
               [&] { return has_all(keys); });
  }
  Value get(const std::string& key, std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    wait_until(lock, timeout, key, [&] { return values_.contains(key); });
    return values_.at(key);
  }
  bool check(const std::vector<std::string>& keys) {
    const std::lock_guard lock(mutex_);
    return has_all(keys);
  }
  std::int64_t size() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::int64_t>(values_.size());
  }

 private:
  bool has_all(const std::vector<std::string>& keys) const {
    return std::ranges::all_of(keys, [this](const auto& key) { return values_.contains(key); });
  }
  void require_open() const {
    if (error_) std::rethrow_exception(error_);
    TUTTI_CHECK(!is_finished_, "a write to a store that has been finished");
  }

  template <typename IsSo>
  void wait_until(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds timeout,
                  const std::string& what, IsSo is_so) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    const auto has_ended = [&] { return is_so() || is_over_; };
    if (timeout == kNoTimeout) {
      changed_.wait(lock, has_ended);
    } else {
      changed_.wait_until(lock, end, has_ended);
    }
    if (is_so()) return;
    if (error_) std::rethrow_exception(error_);
    C10_THROW_ERROR(DistStoreError, fmt::format("the other participants have not given {}", what));
  }

  void run() {
    try {
      while (!make_round()) {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kPause, [this] { return !pending_.empty(); });
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }

  /// Whether it was the last one.
  bool make_round() {
    Json mine = {{"entries", Json::array()}};
    {
      const std::lock_guard lock(mutex_);
      mine["finished"] = is_finished_;
      mine["entries"] = std::exchange(pending_, Json::array());
    }
    const auto packed = Json::to_cbor(mine);
    const auto all = exchange_(std::string(packed.begin(), packed.end()));
    const std::lock_guard lock(mutex_);
    bool are_all_finished = true;
    for (std::size_t from = 0; from < all.size(); ++from) {
      const auto theirs = Json::from_cbor(all[from]);
      are_all_finished = are_all_finished && theirs.at("finished").get<bool>();
      for (const auto& entry : theirs.at("entries")) {
        auto result = apply(entry);
        if (static_cast<int>(from) == self_) results_[applied_++] = std::move(result);
      }
    }
    changed_.notify_all();
    return are_all_finished;
  }

  /// 0 where there is no such key.
  std::int64_t number_at(const std::string& key) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return 0;
    const std::string text(found->second.begin(), found->second.end());
    const auto number = parse_number<std::int64_t>(text);
    if (!number) {
      C10_THROW_ERROR(DistStoreError,
                      fmt::format("{} is \"{}\": only numbers can be added up", key, text));
    }
    return *number;
  }

  /// The same on all participants.
  Json apply(const Json& entry) {
    const auto key = entry.at("key").get<std::string>();
    const auto what = entry.at("what").get<std::string>();
    if (what == "delete") return values_.erase(key) > 0;
    if (what == "add") {
      const auto sum = entry.at("value").get<std::int64_t>() + number_at(key);
      const auto text = std::to_string(sum);
      values_[key] = Value(text.begin(), text.end());
      return sum;
    }
    const Value value = entry.at("value").get_binary();
    if (what == "compare_set") {
      const Value expected = entry.at("expected").get_binary();
      const auto found = values_.find(key);
      if (found == values_.end() && !expected.empty()) return bytes_of(expected);
      if (found != values_.end() && found->second != expected) return bytes_of(found->second);
    }
    values_[key] = value;
    return bytes_of(value);
  }

  const ExchangeBytes exchange_;
  const int self_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Value> values_;
  Json pending_ = Json::array();
  std::map<std::uint64_t, Json> results_;  ///< of own writes, by number
  std::uint64_t written_ = 0;
  std::uint64_t applied_ = 0;
  bool is_finished_ = false;
  bool is_over_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

GatherStore::GatherStore(ExchangeBytes exchange, int self)
    : rounds_(std::make_shared<Rounds>(std::move(exchange), self)) {}
GatherStore::~GatherStore() = default;

void GatherStore::finish() { rounds_->finish(); }
c10::intrusive_ptr<c10d::Store> GatherStore::clone() {
  return c10::make_intrusive<GatherStore>(*this);
}
void GatherStore::set(const std::string& key, const Value& value) {
  rounds_->write({{"what", "set"}, {"key", key}, {"value", bytes_of(value)}}, timeout_);
}
Value GatherStore::compareSet(const std::string& key, const Value& expected, const Value& desired) {
  return rounds_
      ->write({{"what", "compare_set"},
               {"key", key},
               {"expected", bytes_of(expected)},
               {"value", bytes_of(desired)}},
              timeout_)
      .get_binary();
}
Value GatherStore::get(const std::string& key) { return rounds_->get(key, timeout_); }
std::int64_t GatherStore::add(const std::string& key, std::int64_t value) {
  return rounds_->write({{"what", "add"}, {"key", key}, {"value", value}}, timeout_)
      .get<std::int64_t>();
}
bool GatherStore::deleteKey(const std::string& key) {
  return rounds_->write({{"what", "delete"}, {"key", key}}, timeout_).get<bool>();
}
bool GatherStore::check(const std::vector<std::string>& keys) { return rounds_->check(keys); }
std::int64_t GatherStore::getNumKeys() { return rounds_->size(); }
void GatherStore::wait(const std::vector<std::string>& keys) { rounds_->wait(keys, timeout_); }
void GatherStore::wait(const std::vector<std::string>& keys,
                       const std::chrono::milliseconds& timeout) {
  rounds_->wait(keys, timeout);
}

}  // namespace tutti
