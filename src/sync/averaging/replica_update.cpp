#include "sync/averaging/replica_update.h"

#include <algorithm>
#include <utility>

#include "comm/host_copies.h"
#include "kernels/fold_schedule.h"
#include "kernels/norm.h"

namespace tutti {

ReplicaUpdate::ReplicaUpdate(StepExchange& exchange, const ShardBoard& board,
                             const ReplicaCopies& copies, std::vector<ShardRange> logical,
                             const std::vector<std::optional<UpdateRule>>& rules, const Clip& clip,
                             ReplicaAveraging* averaging)
    : exchange_(exchange),
      slices_(exchange.nodes()),
      board_(board),
      copies_(copies),
      logical_(std::move(logical)),
      rules_(copies.size(), UpdateRules(exchange.plan(), rules)),
      clip_(clip),
      averaging_(averaging),
      share_(tile_share(exchange.plan(), copies.parameters(), exchange.nodes().team().rank,
                        exchange.nodes().team().size())),
      gradient_(kTile * sizeof(double)),
      norms_(exchange.memory().add_common<SectionList<double>>(
          tiles_of_replicas(exchange.plan(), copies.size()))),
      updated_(copies.size()) {}

bool ReplicaUpdate::touched(std::size_t logical, std::uint32_t parameter) const {
  return exchange_.nodes().touched(parameter, locals_[logical].nodes);
}

NodeSources ReplicaUpdate::sources_of(std::size_t logical, std::uint32_t parameter) const {
  auto sources = exchange_.nodes().sources_of(parameter, locals_[logical].nodes);
  sources.divisor = locals_[logical].divisor;
  return sources;
}

const Section<double>& ReplicaUpdate::norms_of_tiles(std::size_t logical,
                                                     std::uint32_t parameter) const {
  return norms_[logical * exchange_.plan().parameters().size() + parameter];
}

void ReplicaUpdate::collect_nodes(double loss_scale) {
  const auto& step = exchange_.nodes();
  const auto nodes = nodes_of(step.held(), logical_);
  locals_.assign(copies_.size(), {});
  for (std::size_t l = 0; l < locals_.size(); ++l) {
    locals_[l].nodes = nodes[l];
    locals_[l].divisor = step.held().weight_of(nodes[l]) * loss_scale;
    locals_[l].refusal = refusal_of(board_.facts_of(l), exchange_.plan());
  }
}

const std::vector<LocalVerdict>& ReplicaUpdate::judge(std::int64_t step) {
  step_ = step;
  find_norms();
  const auto parameters = exchange_.plan().parameters().size();
  std::vector<std::int64_t> updating(parameters);
  for (std::size_t l = 0; l < copies_.size(); ++l) {
    updated_[l].assign(parameters, 0);
    for (const auto p : copies_.parameters()) {
      updated_[l][p] = locals_[l].refusal.empty() && touched(l, p);
      updating[p] += updated_[l][p];
    }
  }
  if (averaging_ != nullptr) averaging_->begin(step, updating);
  return locals_;
}

bool ReplicaUpdate::updates_any() const {
  return std::ranges::any_of(updated_, [](const auto& one) {
    return std::ranges::find(one, std::uint8_t{1}) != one.end();
  });
}

/// Norms cost a fold and a barrier: they are taken where a clip needs them or a sum may overflow.
void ReplicaUpdate::find_norms() {
  std::vector<std::size_t> measured;
  for (std::size_t l = 0; l < locals_.size(); ++l) {
    const auto& local = locals_[l];
    if (!local.refusal.empty() || local.divisor == 0) continue;
    if (!needs_norms(clip_) && !may_overflow(board_.facts_of(l), local.divisor)) continue;
    measured.push_back(l);
    measure(l);
  }
  if (measured.empty()) return;
  exchange_.protocol().barrier("the norms of its logical workers' gradients in");
  for (const auto l : measured) {
    std::vector<std::uint32_t> present;
    for (const auto p : copies_.parameters()) {
      if (touched(l, p)) present.push_back(p);
    }
    auto norms =
        norms_of(exchange_.plan(), clip_, present,
                 [&](std::uint32_t p) -> std::span<const double> { return norms_of_tiles(l, p); });
    locals_[l].refusal = norms.refusal;
    if (norms.refusal.empty()) locals_[l].squares = norms.squares;
    locals_[l].scales = std::move(norms.scales);
  }
}

/// Finds the squares of this worker's tiles. The folded gradient is not kept, as that would take
/// memory for each logical worker: update_tile() folds it again. One host measures for all.
void ReplicaUpdate::measure(std::size_t logical) {
  const auto& hosts = copies_.hosts();
  if (hosts.differ() && !hosts.gives(logical)) return;
  for (const auto& range : share_) {
    const auto p = range.parameter;
    if (!touched(logical, p)) continue;
    const auto type = exchange_.plan().parameters()[p].node_type;
    const auto sources = sources_of(logical, p);
    for (const auto& tile : tiles_of(range)) {
      void* const to = gradient_.data();
      slices_.fold(sources, tile.begin, tile.end, type, {&to, 1});
      squares_of_blocks(
          to, type, tile.end - tile.begin,
          {&norms_of_tiles(logical, p)[static_cast<std::size_t>(tile.begin / kTile)], 1});
    }
    if (!hosts.differ()) continue;
    exchange_.memory().send({{norms_of_tiles(logical, p).data() + range.begin / kTile,
                              tiles_of(range).size() * sizeof(double)}});
  }
}

void ReplicaUpdate::apply(double rate_factor) {
  await_arrivals();
  update_all(rate_factor);
  const bool gives = averaging_ != nullptr && copies_.hosts().differ() && averaging_->any_sent();
  if (!gives) return;
  if (averaging_->gives_messages()) {
    averaging_->write_given(share_);
    exchange_.protocol().barrier("the differences of its logical workers in");
  } else {
    // A host that updates a copy itself must not find it updated.
    exchange_.protocol().barrier("the update of its logical workers in");
  }
  give(averaging_->given());
}

void ReplicaUpdate::give(std::vector<HostPiece> pieces) {
  if (!averaging_->may_fly() || !exchange_.hosts().spans_hosts()) {
    exchange_.hosts().barrier("what its logical workers average in", pieces);
    return average_all();
  }
  flights_.push_back({step_, std::move(pieces), exchange_.hosts().drops()});
  averaging_->let_fly();
  exchange_.hosts().start_sending(flights_.back().pieces);
}

/// All that a step sent arrives at once.
void ReplicaUpdate::await_arrivals() {
  const auto arrives = [&](const Flight& flight) {
    return averaging_->rounds().arrives_of(flight.step);
  };
  const auto end = std::ranges::find_if_not(flights_, arrives);
  if (end == flights_.begin()) return;
  give_again({flights_.begin(), end});
  exchange_.hosts().barrier_sent("what its logical workers have sent in");
  flights_.erase(flights_.begin(), end);
}

/// What was on its way over a link that was dropped.
void ReplicaUpdate::give_again(std::span<const Flight> flights) {
  for (const auto& flight : flights) {
    if (flight.links_dropped != exchange_.hosts().drops())
      exchange_.hosts().start_sending(flight.pieces);
  }
}

void ReplicaUpdate::land() {
  if (flights_.empty()) return;
  give_again(flights_);
  exchange_.hosts().await_sent();
  exchange_.group().barrier({.label = "what logical workers have sent"});
  for (const auto& range : share_) {
    for (const auto& tile : tiles_of(range)) averaging_->land(tile);
  }
  exchange_.group().barrier({.label = "what logical workers have sent, taken"});
  averaging_->landed();
  flights_.clear();
}

ReplicaUpdate::~ReplicaUpdate() {
  if (!flights_.empty()) exchange_.hosts().cancel_sending();
}

/// On one host a tile is averaged while it is hot.
void ReplicaUpdate::update_all(double rate_factor) {
  struct Task {
    std::size_t logical;
    PreparedUpdate update;
    NodeSources sources;
  };
  const auto& hosts = copies_.hosts();
  for (const auto& range : share_) {
    const auto p = range.parameter;
    std::vector<Task> tasks;
    for (std::size_t l = 0; l < copies_.size(); ++l) {
      if (updated_[l][p] != 0 && hosts.is_here(l))
        tasks.push_back({l, rules_[l].next(p, rate_factor), sources_of(l, p)});
    }
    const bool is_averaged = averaging_ != nullptr && averaging_->rounds().is_averaged(p);
    if (tasks.empty() && !is_averaged) continue;
    for (const auto& tile : tiles_of(range)) {
      for (const auto& task : tasks) update_tile(task.logical, tile, task.update, task.sources);
      if (!is_averaged) continue;
      averaging_->receive(tile);
      if (!hosts.differ()) averaging_->average(tile);
    }
  }
}

void ReplicaUpdate::average_all() {
  for (const auto& range : share_) {
    if (!averaging_->rounds().is_averaged(range.parameter)) continue;
    for (const auto& tile : tiles_of(range)) averaging_->average(tile);
  }
}

void ReplicaUpdate::update_tile(std::size_t logical, const ElementRange& tile,
                                const PreparedUpdate& by, const NodeSources& sources) {
  const auto& model = copies_.of(logical);
  auto target = model.target(tile);
  const auto& scales = locals_[logical].scales;
  if (!scales.empty()) target.gradient_scale = scales[tile.parameter];
  target.clip_value = clip_.value;
  if (sources.nodes.size() <= kMaxSources) {
    return model.update(tile, slices_.fold_of(sources, tile.begin, tile.end), target, by);
  }
  const auto type = exchange_.plan().parameters()[tile.parameter].node_type;
  void* const gradient = gradient_.data();
  slices_.fold(sources, tile.begin, tile.end, type, {&gradient, 1});
  target.gradient = gradient;
  update(by, target);
  model.round_values(tile);
}

void ReplicaUpdate::commit() {
  for (const auto p : copies_.parameters()) {
    for (std::size_t l = 0; l < copies_.size(); ++l) rules_[l].updates()[p] += updated_[l][p];
  }
  if (averaging_ != nullptr) averaging_->commit(rules_);
}

void ReplicaUpdate::read_gradient(std::size_t logical, std::uint32_t parameter, std::byte* to) {
  const auto& entry = exchange_.plan().parameters()[parameter];
  void* const destination = to;
  slices_.fold(sources_of(logical, parameter), 0, entry.spec.count, entry.node_type,
               {&destination, 1});
}

}  // namespace tutti
