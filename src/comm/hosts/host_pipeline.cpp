#include "comm/hosts/host_pipeline.h"

#include <algorithm>
#include <utility>

namespace tutti {

HostPipeline::HostPipeline(JobState& job, const HostLayout& layout, std::vector<int> ranks,
                           HostChannel& channel, std::vector<Counters*> team, Options options)
    : job_(job),
      layout_(layout),
      ranks_(std::move(ranks)),
      channel_(channel),
      team_(std::move(team)),
      options_(options) {
  for (auto* const open : {&arriving_, &others_}) {
    for (std::size_t i = 0; i < kMostUnderWay; ++i) open->emplace_back(layout_.hosts);
  }
}

void HostPipeline::restart(std::uint64_t epoch) {
  epoch_ = epoch;
  end_ = received_ = sent_nodes_ = sent_sums_ = 0;
  for (auto* const open : {&arriving_, &others_}) {
    for (auto& messages : *open) messages.forget();
  }
}

std::uint64_t HostPipeline::count(int team_member, Stage stage) const {
  const auto& counters = *team_[static_cast<std::size_t>(team_member)];
  const auto value = counters.of[stage].value.load(std::memory_order_acquire);
  return value > epoch_ ? value - epoch_ : 0;
}

std::uint64_t HostPipeline::least(Stage stage) const {
  auto least = end_;
  for (int m = 0; m < layout_.team.size(); ++m) least = std::min(least, count(m, stage));
  return least;
}

bool HostPipeline::has_room(std::uint64_t piece) const {
  if (piece >= end_ || piece < options_.window) return piece < end_;
  const auto before = piece - options_.window;
  return options_.stages ? least(kCollected) > before : has(&Counters::gathered, before);
}

bool HostPipeline::is_gathered() const {
  for (auto piece = end_ - std::min<std::uint64_t>(end_, options_.window); piece < end_; ++piece) {
    if (!has(&Counters::gathered, piece)) return false;
  }
  return true;
}

bool HostPipeline::tell(Stage stage) {
  auto& counter = team_[static_cast<std::size_t>(layout_.team.rank)]->of[stage].value;
  counter.store(epoch_ + through(stage) + 1, std::memory_order_release);
  announce(job_.board());
  return true;
}

/// What others wait for comes first.
bool HostPipeline::advance(HostWork& work) {
  if (layout_.drives() && channel_.is_connected() && drive(work)) return true;
  if (const auto piece = through(kSummed); piece < least(kFolded) && has(&Counters::came, piece)) {
    work.sum(piece);
    return tell(kSummed);
  }
  const auto to_fold = through(kFolded);
  if (options_.stages ? to_fold < least(kStaged) : has_room(to_fold)) {
    work.fold(to_fold);
    return tell(kFolded);
  }
  if (!options_.stages) return false;
  if (const auto piece = through(kCollected); piece < end_ && has(&Counters::gathered, piece)) {
    work.collect(piece);
    return tell(kCollected);
  }
  if (const auto piece = through(kStaged); has_room(piece)) {
    work.stage(piece);
    return tell(kStaged);
  }
  return false;
}

/// Receives are posted as soon as there is room, so that no engine has to keep what comes early.
bool HostPipeline::drive(HostWork& work) {
  if (has_room(received_)) {
    receive(work, received_++);
  } else if (sent_nodes_ < least(kFolded)) {
    send_nodes(work, sent_nodes_++);
  } else if (sent_sums_ < least(kSummed)) {
    send_sums(work, sent_sums_++);
  } else {
    return false;
  }
  announce(job_.board());  // it may have been the last of what somebody waits for
  return true;
}

void HostPipeline::receive(HostWork& work, std::uint64_t piece) {
  auto& nodes = arriving_[piece % kMostUnderWay];
  auto& others = others_[piece % kMostUnderWay];
  nodes.open(word_of(&Counters::came, piece), epoch_ + piece + 1);
  others.open(word_of(&Counters::gathered, piece), epoch_ + piece + 1);
  for (int host = 0; host < layout_.hosts; ++host) {
    if (host == layout_.here) continue;
    work.visit_sums(piece, host, layout_.here, [&](std::span<std::byte> bytes) {
      channel_.receive(options_.sums, host, bytes, others.add(host));
    });
    work.visit_nodes(piece, host, layout_.here, [&](std::span<std::byte> bytes) {
      channel_.receive(options_.nodes, host, bytes, nodes.add(host));
    });
  }
  nodes.close();
}

void HostPipeline::send_nodes(HostWork& work, std::uint64_t piece) {
  for (int host = 0; host < layout_.hosts; ++host) {
    if (host == layout_.here) continue;
    work.visit_nodes(piece, layout_.here, host, [&](std::span<std::byte> bytes) {
      channel_.send(options_.nodes, host, bytes, others_[piece % kMostUnderWay].add(host));
    });
  }
}

void HostPipeline::send_sums(HostWork& work, std::uint64_t piece) {
  auto& others = others_[piece % kMostUnderWay];
  for (int host = 0; host < layout_.hosts; ++host) {
    if (host == layout_.here) continue;
    work.visit_sums(piece, layout_.here, host, [&](std::span<std::byte> bytes) {
      channel_.send(options_.sums, host, bytes, others.add(host));
    });
  }
  others.close();
}

RankSet HostPipeline::behind(Stage stage, std::uint64_t pieces) const {
  RankSet behind;
  for (int m = 0; m < layout_.team.size(); ++m) {
    if (m == layout_.team.rank || count(m, stage) >= pieces) continue;
    behind.insert(ranks_[static_cast<std::size_t>(layout_.team.member(m))]);
  }
  return behind;
}

RankSet HostPipeline::late() const {
  const auto piece = through(kCollected);
  const auto first_of = [&](int host) {
    return ranks_[static_cast<std::size_t>(layout_.first_of[static_cast<std::size_t>(host)])];
  };
  const auto hosts_of = [&](const std::deque<OpenMessages>& open) {
    RankSet firsts;
    for (int host = 0; host < layout_.hosts; ++host) {
      if (open[piece % kMostUnderWay].any(host)) firsts.insert(first_of(host));
    }
    return firsts;
  };
  if (through(kStaged) <= piece) return behind(kCollected, piece + 1 - options_.window);
  if (through(kFolded) <= piece) return behind(kStaged, piece + 1);
  if (!layout_.drives()) return RankSet{first_of(layout_.here)};
  if (sent_nodes_ <= piece) return behind(kFolded, piece + 1);
  if (!has(&Counters::came, piece)) return hosts_of(arriving_);
  if (sent_sums_ <= piece) return behind(kSummed, piece + 1);
  return hosts_of(others_);
}

}  // namespace tutti
