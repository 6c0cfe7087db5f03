// The worker that drives the link: see host_sums.h.

#include "comm/group_state.h"
#include "job/wire/board.h"
#include "sync/hosts/host_sums.h"

namespace tutti {

std::function<void()> HostSums::last_of(std::atomic<int>& open, std::atomic<std::uint64_t>& word,
                                        std::size_t k) {
  return [&open, &word, done = tag(k + 1)] {
    if (--open == 0) word.store(done, std::memory_order_release);
  };
}

/// Everything that can be posted now.
void HostSums::drive() {
  if (!link_.is_connected()) return;
  link_.check();
  const auto reduced = least(&Progress::reduced);
  while (posted_in_ < pieces_.size() && posted_in_ < reduced + kWindow) {
    post_in(pieces_[posted_in_], posted_in_);
    ++posted_in_;
  }
  for (const auto filled = least(&Progress::filled); posted_out_ < filled; ++posted_out_) {
    post_out(pieces_[posted_out_], posted_out_);
  }
  for (; posted_sums_ < reduced; ++posted_sums_) post_sums(pieces_[posted_sums_]);
  if (!closed_) return;
  if (!posted_lists_) post_lists();
  posted_lists_ = true;
  if (posted_sums_ == pieces_.size() && link_.is_idle(kPieces)) {
    words_->finished.store(step_, std::memory_order_release);
    announce(state_.job().board());
  }
}

/// What other hosts send of this host's slice, and the sums of theirs.
void HostSums::post_in(Piece& piece, std::size_t k) {
  piece.receives = 1;
  const auto end = last_of(piece.receives, words_->arrived[k % kWindow], k);
  const auto& mine = piece.slices[static_cast<std::size_t>(here_)];
  for (int host = 0; host < hosts_; ++host) {
    if (host == here_) continue;
    for (const auto run : runs_of(piece.slices[static_cast<std::size_t>(host)])) {
      link_.receive(kSums, host, run);
    }
    const auto bytes = visit(mine, host, {}, {});
    if (bytes == 0) continue;
    ++piece.receives;
    link_.receive(kNodes, host, {staging(false, k, host), bytes}, end);
  }
  end();
}

void HostSums::post_out(Piece& piece, std::size_t k) {
  piece.sends = 1;
  const auto end = last_of(piece.sends, words_->sent[k % kWindow], k);
  for (int host = 0; host < hosts_; ++host) {
    if (host == here_) continue;
    const auto bytes = visit(piece.slices[static_cast<std::size_t>(host)], here_, {}, {});
    if (bytes == 0) continue;
    ++piece.sends;
    link_.send(kNodes, host, {staging(true, k, host), bytes}, end);
  }
  end();
}

void HostSums::post_sums(const Piece& piece) {
  for (const auto run : runs_of(piece.slices[static_cast<std::size_t>(here_)])) {
    for (int host = 0; host < hosts_; ++host) {
      if (host != here_) link_.send(kSums, host, run);
    }
  }
}

/// All lists of rows, whose lengths have come with the step, and nodes that become messages.
void HostSums::post_lists() {
  for (std::uint32_t p = 0; p < nodes_.plan().parameters().size(); ++p) {
    if (nodes_.is_summed(p)) continue;
    for (const auto& node : nodes_.held()) {
      for (const auto part : nodes_.parts_of(node, p)) {
        const int from = state_.host_of(nodes_.worker_of(node, p));
        if (from != here_) {
          link_.receive(kLists, from, part);
          continue;
        }
        for (int host = 0; host < hosts_; ++host) {
          if (host != here_) link_.send(kLists, host, part);
        }
      }
    }
  }
}

}  // namespace tutti
