#include "torch/shards/step_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "base/log_line.h"
#include "run/numbers/metric_exchange.h"
#include "torch/model/module_modes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

/// Begins a worker's notes; the modes of its modules and its metrics follow.
struct Head {
  DataRequest request;
  std::uint64_t active = 0;
  GivenByProgram given = {};
  std::uint64_t same_shards = SameShards::kNone;  ///< SameShards::common()
  std::uint64_t modules = 0;                      ///< 0 where it has no shard
  std::size_t bytes() const { return sizeof(Head) + (modules + 7) / 8 * 8; }
};

/// What the workers that compute the same shards have recorded of each.
std::vector<ShardMetrics> joined(std::vector<ShardMetrics> some, std::vector<ShardMetrics> more) {
  if (some.empty()) return more;
  for (std::size_t s = 0; s < more.size(); ++s) some[s] = tutti::joined(some[s], more[s]);
  return some;
}

}  // namespace

StepNotes::StepNotes(const Group& group, ShardBoard& board, const torch::nn::Module& module,
                     const DataOrder& data, Options options)
    : group_(group), board_(board), module_(module), data_(data), options_(std::move(options)) {}

void StepNotes::open(const StepFacts& step) {
  board_.mine() = {.in_halves = step.in_halves ? 1 : 0};
  step_ = step.number;
  active_ = step.active;
  given_ = {.rate_factor = step.rate_factor,
            .loss_scale = step.loss_scale,
            .averaging = step.averaging,
            .position = data_.position()};
  same_shards_.open(is_first_ && options_.shards > 1);
  metrics_.clear();
  request_.reset();
  asked_.clear();
}

void StepNotes::require_as_before(const DataRequest& request, std::int64_t shard) const {
  if (!request_ || *request_ == request) return;
  throw InvalidArgument(fmt::format(
      "shard {} asks for {} of {} samples, before that {} of {} were asked for in this step: all "
      "shards of a step ask one loader, once",
      shard, request.batch, request.dataset_size, request_->batch, request_->dataset_size));
}

void StepNotes::ask(const DataRequest& request, std::int64_t shard) {
  request_ = request;
  if (asked_.insert(shard).second) ++board_.mine().asked;
}

void StepNotes::publish() {
  const auto modes = options_.computes ? modes_of(module_) : std::vector<std::uint8_t>();
  given_.order = data_.own_digest();  // the shards have asked for samples, if they do
  const Head head{request_.value_or(DataRequest{}), active_, given_, same_shards_.common(),
                  modes.size()};
  const auto area = board_.notes_area();
  std::memcpy(area.data(), &head, sizeof head);
  if (!modes.empty()) std::memcpy(area.data() + sizeof head, modes.data(), modes.size());
  board_.mine().notes = head.bytes() + pack(metrics_, area.subspan(head.bytes()));
}

/// A module that one worker has left in eval() would give that worker's shards other gradients. A
/// layer that changes a mode does so on the workers that have its stage.
void StepNotes::require_same_modes(std::span<const std::vector<std::uint8_t>> modes) const {
  const auto places = static_cast<std::size_t>(options_.workers_per_shard);
  std::optional<std::size_t> first;               // of the workers that have shards
  std::map<std::size_t, std::size_t> same_place;  // the first at each place
  for (std::size_t r = 0; r < modes.size(); ++r) {
    if (modes[r].empty()) continue;
    if (!first) first = r;
    const auto neighbour = same_place.try_emplace(r % places, r).first->second;
    const bool is_alike =
        modes[r].size() == modes[*first].size() && modes[r][0] == modes[*first][0];
    if (is_alike && modes[r] == modes[neighbour]) continue;
    if (is_alike) first = neighbour;
    const auto rank_of = [&](std::size_t rank) { return group_.job_rank(static_cast<int>(rank)); };
    const auto& one = modes[*first];
    if (modes[r].size() != one.size()) {
      throw InvalidArgument(fmt::format(
          "step {} of \"{}\": the model is made of {} modules on rank {}, of {} on rank {}", step_,
          options_.name, one.size(), rank_of(*first), modes[r].size(), rank_of(r)));
    }
    const auto at = std::mismatch(one.begin(), one.end(), modes[r].begin()).first - one.begin();
    const auto k = static_cast<std::size_t>(at);
    throw InvalidArgument(fmt::format(
        "step {} of \"{}\": {} is in {} on rank {}, in {} on rank {}; call train() or eval() alike "
        "on all workers (trainer.evaluate() leaves modules as they were)",
        step_, options_.name, module_text(module_, k), one[k] != 0 ? "train()" : "eval()",
        rank_of(*first), modes[r][k] != 0 ? "train()" : "eval()", rank_of(r)));
  }
}

/// Each worker updates its own tiles by its own factor, and reads its own samples: nobody else
/// would see the difference.
void StepNotes::require_same_given(std::span<const GivenByProgram> given) const {
  const auto& first = given.front();
  const GivenByProgram* ordered = nullptr;  // the first that knows the epoch's samples
  for (std::size_t r = 0; r < given.size(); ++r) {
    const auto& other = given[r];
    const auto rank_of = [&](const GivenByProgram& one) {
      return group_.job_rank(static_cast<int>(&one - given.data()));
    };
    const auto refuse = [&](const std::string& what) {
      throw InvalidArgument(fmt::format(
          "step {} of \"{}\": {}. What the program gives for a step is the same on all workers: it "
          "may depend on what step() and evaluate() return, not on a worker's own numbers",
          step_, options_.name, what));
    };
    if (other.rate_factor != first.rate_factor) {
      refuse(fmt::format("the factor of the schedule \"{}\" is {} on rank {}, {} on rank {}",
                         options_.schedule, first.rate_factor, rank_of(first), other.rate_factor,
                         rank_of(other)));
    }
    if (other.loss_scale != first.loss_scale) {
      refuse(fmt::format("the loss scale is {} on rank {}, {} on rank {}", first.loss_scale,
                         rank_of(first), other.loss_scale, rank_of(other)));
    }
    if (other.averaging != first.averaging) {
      refuse(fmt::format("averaging {} is due on rank {} in other buckets than on rank {}",
                         options_.averaging, rank_of(first), rank_of(other)));
    }
    if (other.position != first.position) {
      refuse(
          fmt::format("rank {} has taken {} samples of epoch {}, rank {} {} of epoch {}: the order "
                      "\"{}\" gives "
                      "them epochs of other sizes",
                      rank_of(first), first.position.taken, first.position.epoch, rank_of(other),
                      other.position.taken, other.position.epoch, data_.order().text()));
    }
    if (other.order == 0) continue;
    if (ordered == nullptr) ordered = &other;
    if (other.order == ordered->order) continue;
    refuse(fmt::format("the order \"{}\" gives rank {} and rank {} other samples in epoch {}",
                       data_.order().text(), rank_of(*ordered), rank_of(other),
                       first.position.epoch));
  }
}

/// Workers at one place of their pipelines have gradients of the same parameters.
void StepNotes::warn_of_same_shards(std::span<const std::uint64_t> common) const {
  const auto places = static_cast<std::size_t>(options_.workers_per_shard);
  std::vector<std::optional<std::uint64_t>> first(places);
  bool any = false;
  for (std::size_t r = 0; r < common.size(); ++r) {
    if (board_.of(static_cast<int>(r)).ran == 0) continue;
    auto& here = first[r % places];
    if (!here) here = common[r];
    if (common[r] == SameShards::kDiffer || *here != common[r]) return;
    any = any || common[r] != SameShards::kNone;
  }
  if (!any) return;
  log_warning(fmt::format(
      "step {} of \"{}\": all {} shards computed the same gradient: each does the others' work. "
      "Where all have the same batch, take the samples of shard.indices(), or the part of the "
      "batch "
      "that is shard.index()'s (share_of()). Nothing is wrong where the loss has no data (a "
      "penalty on the parameters) or constants alone. Where gradients are NaN, look at the loss",
      step_, options_.name, ran_));
}

void StepNotes::judge(StepFacts&) {
  std::vector<ShardMetrics> all;
  std::vector<ShardMetrics> together;  // of the workers so far that have the same shards
  std::vector<std::vector<std::uint8_t>> modes;
  std::vector<GivenByProgram> given;
  std::vector<std::uint64_t> same_shards;
  request_.reset();
  ran_ = 0;
  in_halves_ = false;
  all_in_halves_ = true;
  std::uint64_t first_active = 0;
  for (int r = 0; r < board_.size(); ++r) {
    in_halves_ = in_halves_ || board_.of(r).in_halves != 0;
    all_in_halves_ = all_in_halves_ && board_.of(r).in_halves != 0;
    const bool is_last = (r + 1) % options_.workers_per_shard == 0;
    if (is_last) ran_ += board_.of(r).ran;
    const auto notes = board_.notes_of(r);
    Head head;
    std::memcpy(&head, notes.data(), sizeof head);
    const auto* const theirs = reinterpret_cast<const std::uint8_t*>(notes.data()) + sizeof head;
    modes.emplace_back(theirs, theirs + head.modules);
    given.push_back(head.given);
    same_shards.push_back(head.same_shards);
    if (r == 0) first_active = head.active;
    if (head.active != first_active) {
      throw InvalidArgument(
          fmt::format("step {} of \"{}\": rank {} and rank {} give step() different models to "
                      "train: all workers take the same turns",
                      step_, options_.name, group_.job_rank(0), group_.job_rank(r)));
    }
    const auto& request = head.request;
    auto shards = unpack(notes.subspan(head.bytes()));
    together = joined(std::move(together), std::move(shards));
    if (is_last) {
      all.insert(all.end(), std::make_move_iterator(together.begin()),
                 std::make_move_iterator(together.end()));
      together.clear();
    }
    if (request == DataRequest{}) continue;
    if (!request_) request_ = request;
    if (request != *request_) {
      throw InvalidArgument(
          fmt::format("step {}: rank {} asks for {} of {} samples per shard, a rank before it for "
                      "{} of {}",
                      step_, group_.job_rank(r), request.batch, request.dataset_size,
                      request_->batch, request_->dataset_size));
    }
  }
  require_same_given(given);
  require_same_modes(modes);
  require_all_asked();
  if (same_shards_.looks() && group_.rank() == 0 && ran_ > 1) warn_of_same_shards(same_shards);
  result_ = reduce(all);
}

/// Where several workers compute a shard, the first of them may ask, the last, or both.
void StepNotes::require_all_asked() const {
  for (int place = 0; place < options_.workers_per_shard; ++place) {
    std::int64_t asked = 0;
    std::int64_t unasked = 0;
    for (int r = place; r < board_.size(); r += options_.workers_per_shard) {
      asked += board_.of(r).asked;
      unasked += board_.of(r).unasked;
    }
    if (asked == 0 || asked + unasked == options_.shards) continue;
    throw InvalidArgument(fmt::format(
        "step {}: {} of {} shards asked for data: samples that are not asked for would be lost; "
        "call shard.indices() in every shard, and then shard.nothing() where there is nothing to "
        "compute",
        step_, asked, options_.shards));
  }
}

}  // namespace tutti
