// What a shard's closure asks of it.

#include <fmt/format.h>

#include "run/data/leaf_seed.h"
#include "torch/shards/shard_runner.h"
#include "tutti/error.h"

namespace tutti {

std::uint64_t ShardRunner::seed_of(std::int64_t shard) const {
  return leaf_seed(options_.seed, step_, shard);
}

std::vector<std::int64_t> ShardRunner::indices(const DataRequest& request, std::int64_t shard) {
  // The audited shard may be another worker's: how workers ask is compared when all have run.
  if (!repeats()) parts_.notes.require_as_before(request, shard);
  parts_.data.check(request);
  if (!repeats()) parts_.notes.ask(request, shard);
  return parts_.data.indices(request, shard);
}

torch::Tensor ShardRunner::state_of(std::int64_t shard, const std::string& name,
                                    const ShardStates::Init& init) {
  if (options_.in_stages) {
    throw Unsupported(fmt::format(
        "shard {}: a state (\"{}\") in a pipeline, where several workers have the shard", shard,
        name));
  }
  return (repeats() ? parts_.audit->states() : parts_.states).of(shard, name, init);
}

std::function<std::optional<std::vector<std::int64_t>>()> ShardRunner::coming_indices(
    const DataRequest& request, std::int64_t shard) const {
  parts_.data.check(request);
  if (repeats()) shard = options_.mine.end - 1;  // this worker's own are over
  return
      [order = parts_.data, request, shard, mine = options_.mine, shards = options_.shards,
       epoch = parts_.data.position().epoch]() mutable -> std::optional<std::vector<std::int64_t>> {
        if (mine.count() == 0 || order.position().epoch != epoch) return {};
        if (++shard == mine.end) {
          order.advance(request, shards);
          shard = mine.begin;
          if (order.position().epoch != epoch) return {};
        }
        return order.indices(request, shard);
      };
}

}  // namespace tutti
