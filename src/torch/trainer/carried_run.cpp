#include "torch/trainer/carried_run.h"

namespace tutti {
namespace {

constexpr const char* kWhat = "the state of a run";
constexpr const char* kFolder = "/run";

}  // namespace

CarriedRun::CarriedRun(const BetweenSteps& between, const RunState& state, std::int64_t steps)
    : steps_(steps) {
  auto own = state.of_run();
  own.bring();
  own.gather(between.gather(kWhat));
  const auto error = between.on_first_rank(kWhat, [&] {
    CheckpointStore store(files_, kFolder);
    own.write(store, {.step = steps_});
  });
  own.release();
  if (error) std::rethrow_exception(error);
}

void CarriedRun::restore(const BetweenSteps& between, const RunState& state,
                         const std::function<void()>& spread) const {
  auto own = state.of_run();
  std::vector<std::byte> found;
  const auto error = between.on_first_rank(
      kWhat, [&] { found = own.read(CheckpointStore(files_, kFolder).open(steps_)); });
  if (error) std::rethrow_exception(error);
  found = between.gather(kWhat)(found).front();
  spread();
  own.restore(found);
}

}  // namespace tutti
