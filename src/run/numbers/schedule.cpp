#include "tutti/schedule.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <utility>

#include "tutti/error.h"

namespace tutti {
namespace {

void require_steps(const char* what, std::int64_t steps) {
  if (steps < 1) throw InvalidArgument(fmt::format("{} {} steps: must be 1 or more", what, steps));
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

Schedule::Schedule() = default;

Schedule::Schedule(std::string name, std::function<double(std::int64_t step)> factor)
    : text_(std::move(name)) {
  if (text_.empty() || !factor) throw InvalidArgument("a schedule needs a name and a function");
  factor_ = [factor = std::move(factor)](std::int64_t step, std::int64_t) { return factor(step); };
}

Schedule Schedule::of(std::string text, Factor factor) {
  Schedule schedule;
  schedule.text_ = std::move(text);
  schedule.factor_ = std::move(factor);
  return schedule;
}

Schedule Schedule::warm_up(std::int64_t steps, const Schedule& after) {
  require_steps("warm-up over", steps);
  return of(fmt::format("warm-up over {}, then {}", steps, after.text()),
            [steps, after](std::int64_t step, std::int64_t epochs) {
              return step <= steps ? ratio(step, steps) : after(step - steps, epochs);
            });
}

Schedule Schedule::per_epoch(const Schedule& schedule) {
  return of(fmt::format("per epoch {}", schedule.text()),
            [schedule](std::int64_t, std::int64_t epochs) { return schedule(epochs + 1, epochs); });
}

Schedule Schedule::cosine(std::int64_t steps, double floor) {
  require_steps("cosine over", steps);
  if (!(floor >= 0 && floor <= 1))
    throw InvalidArgument(fmt::format("cosine to {}: not in 0 … 1", floor));
  return {fmt::format("cosine over {} to {}", steps, floor), [steps, floor](std::int64_t step) {
            if (step > steps) return floor;
            const double angle = std::numbers::pi * ratio(step - 1, steps);
            return floor + (1 - floor) * (1 + std::cos(angle)) / 2;
          }};
}

Schedule Schedule::step_decay(std::int64_t every, double factor) {
  require_steps("decay every", every);
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw InvalidArgument(fmt::format("decay by {}: must be positive and finite", factor));
  }
  return {fmt::format("decay by {} every {}", factor, every), [every, factor](std::int64_t step) {
            const auto decays = (step - 1) / every;
            return std::pow(factor, static_cast<double>(decays));
          }};
}

double Schedule::operator()(std::int64_t step, std::int64_t epochs) const {
  if (step < 1) throw InvalidArgument(fmt::format("schedule in step {}: steps count from 1", step));
  const double factor = factor_ ? factor_(step, epochs) : 1.0;
  if (!(factor >= 0) || !std::isfinite(factor)) {
    throw InvalidArgument(
        fmt::format("schedule \"{}\" gives {} in step {}: must be finite and not negative", text_,
                    factor, step));
  }
  return factor;
}

}  // namespace tutti
