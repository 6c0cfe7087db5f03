// Codecs on several hosts: see coded_gradients.h.

#include <algorithm>
#include <cstddef>

#include "comm/group_state.h"
#include "comm/host_copies.h"
#include "sync/coded/coded_gradients.h"

namespace tutti {

/// The message and its facts are complete on this host.
void CodedGradients::made(const MessageTask& task) {
  if (!spans_hosts_) return;
  auto& header = board_.header(task.logical, task.bucket);
  const bool has_new = board_.has_residuals() && header.refusal[0] == 0;
  if (has_new) header.residual_squares = kept_squares(task);
  travelling_->made(task.logical, task.bucket);
}

/// By host: the messages that its workers make.
std::vector<std::size_t> CodedGradients::messages_of_hosts() const {
  const auto& state = *exchange_.group().state();
  std::vector<std::size_t> messages(static_cast<std::size_t>(state.hosts()));
  for (const auto& one : carried_) {
    if (one.nodes.begin == one.nodes.end) continue;
    const int maker = nodes().held()[one.nodes.begin].worker;
    messages[static_cast<std::size_t>(state.host_of(maker))] += board_.buckets().size();
  }
  return messages;
}

/// All messages are made, and on all hosts unless there is a refusal.
CodedGradients::Refusal CodedGradients::exchange_messages() {
  constexpr const char* kMade = "the encoding of its gradients in";
  constexpr const char* kCome = "the messages of its gradients in";
  if (!spans_hosts_) {
    exchange_.protocol().barrier(kMade);
    return first_refusal();
  }
  travelling_->close(messages_of_hosts());
  exchange_.hosts().barrier_while(
      kMade,
      [this] {
        travelling_->move();
        return travelling_->all_known();
      },
      [this] { return travelling_->missing(); });
  exchange_.protocol().barrier(kCome);
  return first_refusal();
}

/// While no worker can be in the next step yet.
void CodedGradients::note_squares() {
  if (!spans_hosts_) return;
  noted_squares_ = squares_;
  for (std::size_t l = 0; l < squares_.size(); ++l) {
    for (std::size_t b = 0; b < squares_[l].size(); ++b) {
      noted_squares_[l][b] = board_.header(l, b).residual_squares;
    }
  }
}

/// Before the buffers turn.
void CodedGradients::note_homes() {
  if (!spans_hosts_) return;
  for (std::size_t l = 0; l < carried_.size(); ++l) {
    const auto& nodes = carried_[l].nodes;
    if (nodes.begin == nodes.end) continue;
    homes_[l] = this->nodes().held()[nodes.begin].worker;
    for (std::size_t b = 0; b < squares_[l].size(); ++b) {
      squares_[l][b] = noted_squares_[l][b];
    }
  }
}

bool CodedGradients::has_kept_elsewhere() const {
  return keeps_on_hosts() && std::ranges::any_of(homes_, [](int home) { return home >= 0; });
}

void CodedGradients::bring_kept() {
  if (!keeps_on_hosts()) return;
  std::vector<HostPiece> pieces;
  for (std::size_t l = 0; l < homes_.size(); ++l) {
    if (homes_[l] < 0) continue;
    for (const auto part : board_.kept_memory(exchange_.plan(), l)) {
      pieces.push_back({homes_[l], part.data(), part.size()});
    }
    homes_[l] = -1;
  }
  if (pieces.empty()) return;
  copy_to_hosts(exchange_.group(), pieces,
                {.label = "what codecs keep", .deadline = exchange_.options().deadline});
}

void CodedGradients::spread_kept() {
  if (!keeps_on_hosts()) return;
  homes_.assign(homes_.size(), 0);
  bring_kept();
  for (std::size_t l = 0; l < squares_.size(); ++l) {
    for (std::size_t b = 0; b < squares_[l].size(); ++b) {
      squares_[l][b] = kept_squares({.logical = l, .bucket = b});
    }
  }
}

}  // namespace tutti
