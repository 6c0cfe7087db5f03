#include "sync/coded/host_messages.h"

#include <utility>

#include "comm/host_copies.h"

namespace tutti {
namespace {

/// The least that is worth telling other hosts while more is being made.
constexpr std::size_t kGathered = std::size_t{256} << 10;

std::size_t bytes_of(const MessageHeader& header) {
  return header.refusal[0] == 0 ? header.bytes : 0;
}

}  // namespace

HostMessages::HostMessages(StepExchange& exchange, const MessageStore& store)
    : exchange_(exchange),
      state_(*exchange.group().state()),
      store_(store),
      here_(state_.host_of(state_.rank())),
      taken_(static_cast<std::size_t>(state_.hosts())) {}

void HostMessages::open() {
  const auto step = exchange_.protocol().numbers().done + 1;
  if (step_ == step) return;
  step_ = step;
  taken_.assign(taken_.size(), 0);
  expected_.clear();
}

void HostMessages::made(std::size_t logical, std::size_t bucket) {
  auto& mine = log(here_);
  auto count = mine.made.load(std::memory_order_relaxed);
  std::uint64_t next = 0;
  do {
    next = tag(number_in(count) + 1);
  } while (!mine.made.compare_exchange_weak(count, next, std::memory_order_relaxed));
  store_.entries(here_)[number_in(next) - 1].store(
      tag(logical * store_.buckets().size() + bucket + 1), std::memory_order_release);
  announce(exchange_.protocol().job().board());
}

void HostMessages::close(std::vector<std::size_t> expected) { expected_ = std::move(expected); }

bool HostMessages::all_known() const { return taken_ == expected_; }

RankSet HostMessages::missing() const {
  RankSet late;
  for (std::size_t host = 0; host < taken_.size(); ++host) {
    if (expected_.empty() || taken_[host] < expected_[host]) {
      late.insert(state_.first_of(static_cast<int>(host)));
    }
  }
  return late;
}

void HostMessages::move() {
  if (!exchange_.hosts().can_send()) return;
  send_own();
  for (int host = 0; host < state_.hosts(); ++host) {
    if (host == here_) continue;
    auto& taken = taken_[static_cast<std::size_t>(host)];
    const auto given = number_in(log(host).given.load(std::memory_order_acquire));
    for (; taken < given; ++taken) give(host, taken);
  }
}

std::optional<HostMessages::Message> HostMessages::message_in(
    const std::atomic<std::uint64_t>& entry) const {
  const auto number = number_in(entry.load(std::memory_order_acquire));
  if (number == 0) return {};
  const auto buckets = store_.buckets().size();
  return Message{(number - 1) / buckets, (number - 1) % buckets};
}

void HostMessages::send_own() {
  auto& taken = taken_[static_cast<std::size_t>(here_)];
  const auto entries = store_.entries(here_);
  std::vector<PublishedData> data;
  std::size_t bytes = 0;
  auto end = taken;
  for (; end < entries.size(); ++end) {
    const auto message = message_in(entries[end]);
    if (!message) break;
    const auto& header = store_.header(message->logical, message->bucket);
    data.push_back({&header, header.told_bytes()});
    bytes += bytes_of(header);
  }
  if (end == taken || (expected_.empty() && bytes < kGathered)) return;
  data.push_back({&entries[taken], (end - taken) * sizeof(entries[0])});
  exchange_.memory().send(data);
  publish(exchange_.protocol().job(), log(here_).given, tag(end));
  for (; taken < end; ++taken) give(here_, taken);
}

/// Posts the message of an entry, to or from all others.
void HostMessages::give(int host, std::size_t entry) {
  const auto [logical, bucket] = *message_in(store_.entries(host)[entry]);
  const auto bytes = bytes_of(store_.header(logical, bucket));
  if (bytes == 0) return;
  const HostPiece piece{state_.first_member_of(host), store_.message(logical, bucket), bytes};
  exchange_.hosts().send({&piece, 1});
}

}  // namespace tutti
