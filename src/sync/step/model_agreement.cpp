#include "sync/step/model_agreement.h"

#include <algorithm>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "job/publish.h"
#include "tutti/error.h"

namespace tutti {

ModelAgreement::ModelAgreement(StepProtocol& protocol, NodeStore& nodes,
                               const ExchangeOptions& options)
    : protocol_(protocol),
      nodes_(nodes),
      options_(options),
      digests_(nodes_.plan(), nodes_.boards(), options_.desync_check_every) {}

void ModelAgreement::publish(const ModelMemory& model) {
  auto& job = protocol_.job();
  const auto& board = nodes_.boards().mine();
  // This step is the last where all have drained.
  if (reads_parameters()) {
    digests_.publish(model);
    send_ahead(job, {{board.digests().data(), board.digests().size_bytes()}});
  }
  if (looks_closely()) {
    std::copy_n(model.modes.begin(), std::min(model.modes.size(), board.modes().size()),
                board.modes().begin());
    send_ahead(job, {{board.modes().data(), board.modes().size_bytes()}});
  }
  if (!options_.sync_buffers || !may_be_source()) return;
  for (std::size_t b = 0; b < model.buffers.size(); ++b) {
    const auto bytes = nodes_.plan().buffers()[b].bytes;
    auto* const at = published_buffer(nodes_, nodes_.rank(), b);
    std::memcpy(at, model.buffers[b], bytes);
    send_ahead(job, {{at, bytes}});
  }
}

void ModelAgreement::compare() const {
  if (looks_closely() || (digests_.compares() && all_drained())) {
    digests_.compare(protocol_.step_text());
  }
  if (looks_closely()) compare_modes();
}

bool ModelAgreement::has_leaf(int rank) const {
  const auto& other = protocol_.header(rank);
  switch (other.mode) {
    case StepMode::one_backward:
      return true;
    case StepMode::micro_batches:
      return other.leaves > 0;
    case StepMode::no_gradient:
      break;
  }
  return other.weight > 0;
}

/// Whether it counts: a worker without rows may run a leaf, of weight 0.
bool ModelAgreement::has_weight(int rank) const {
  const auto& other = protocol_.header(rank);
  if (other.mode != StepMode::micro_batches) return other.weight > 0;
  const std::span nodes(other.nodes, static_cast<std::size_t>(other.node_count));
  return std::ranges::any_of(nodes, [](const auto& node) { return node.weight > 0; });
}

int ModelAgreement::buffer_source() const {
  const int size = protocol_.group().size();
  for (int r = 0; r < size; ++r) {
    if (has_weight(r)) return r;
  }
  for (int r = 0; r < size; ++r) {
    if (has_leaf(r)) return r;
  }
  return 0;
}

/// May be called before all have published: returns false where a lower rank is certain to be the
/// source.
bool ModelAgreement::may_be_source() const {
  const int rank = protocol_.group().rank();
  if (rank == 0) return true;
  if (!has_leaf(rank)) return false;
  for (int r = 0; r < rank; ++r) {
    const auto& other = protocol_.header(r);
    if (other.opened.load(std::memory_order_acquire) < protocol_.step()) continue;
    if (other.mode != StepMode::micro_batches && other.weight > 0) return false;
  }
  return true;
}

bool ModelAgreement::all_drained() const {
  return std::ranges::all_of(nodes_.boards(),
                             [](const StepBoard& board) { return board.header().drained != 0; });
}

/// Workers without a leaf ran no forward: the modes of their modules do not matter.
void ModelAgreement::compare_modes() const {
  const auto& group = protocol_.group();
  const int first = buffer_source();
  const auto modes_of = [&](int r) { return nodes_.boards().of(r).modes(); };
  const auto text = [](std::uint8_t mode) { return mode != 0 ? "train()" : "eval()"; };
  for (int r = 0; r < group.size(); ++r) {
    if (r == first || !has_leaf(r)) continue;
    for (std::size_t k = 0; k < options_.modules; ++k) {
      if (modes_of(r)[k] == modes_of(first)[k]) continue;
      throw Mismatch(
          fmt::format("{}: {} is in {} on rank {}, in {} on rank {}; call train() or eval() alike "
                      "on all workers",
                      protocol_.step_text(), options_.module_name(k), text(modes_of(first)[k]),
                      group.job_rank(first), text(modes_of(r)[k]), group.job_rank(r)));
    }
  }
}

/// The next step checks whether they still were equal when it began.
void ModelAgreement::take_buffers(const ModelMemory& model) {
  if (!options_.sync_buffers) return;
  const int source = buffer_source();
  changed_buffers_.assign(model.buffers.size(), 0);
  for (std::size_t b = 0; b < model.buffers.size() && protocol_.group().rank() != source; ++b) {
    const auto bytes = nodes_.plan().buffers()[b].bytes;
    const auto* const from = published_buffer(nodes_, source, b);
    if (std::memcmp(model.buffers[b], from, bytes) == 0) continue;
    std::memcpy(model.buffers[b], from, bytes);
    changed_buffers_[b] = 1;
  }
  note_buffers(model);
}

void ModelAgreement::note_buffers(const ModelMemory& model) {
  if (digests_.due(protocol_.step() + 1)) digests_.note_buffers(model);
}

std::optional<std::string> ModelAgreement::part(const ModelMemory& model) noexcept {
  auto& job = protocol_.job();
  const auto done = protocol_.numbers().done;
  if (!job.is_own() || !digests_.compares() || done == 0 || protocol_.is_open()) return {};
  if (protocol_.ending().is_over()) return {};
  const int size = protocol_.group().size();
  for (int r = 0; r < size; ++r) {
    // Another worker may still be reading this worker's board of a dropped step.
    if (protocol_.header(r).folded.load(std::memory_order_acquire) < done) return {};
  }
  digests_.publish(model);
  const auto digests = nodes_.boards().mine().digests();
  // Sequentially consistent: of two workers that part at once, one sees the other.
  send_ahead(job, {{digests.data(), digests.size_bytes()}});
  publish_early(job, protocol_.own_header().parted, done + 1);
  std::vector<int> parted;
  for (int r = 0; r < size; ++r) {
    if (protocol_.header(r).parted.load(std::memory_order_seq_cst) == done + 1) parted.push_back(r);
  }
  const auto found = digests_.difference(parted);
  if (!found || protocol_.header(0).parting_said.exchange(1) != 0) return {};
  return fmt::format("\"{}\" after step {}: {}", options_.name, protocol_.last_number(), *found);
}

}  // namespace tutti
