#include "run/log/step_curves.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "run/numbers/metric_exchange.h"

namespace tutti {

StepCurves::StepCurves(std::shared_ptr<EventFile> file, std::vector<double> rates,
                       std::int64_t steps)
    : file_(std::move(file)), rates_(std::move(rates)), last_step_(steps) {
  file_->resume(steps);
}

void StepCurves::add(std::int64_t step, const StepFigures& figures) {
  std::vector<std::pair<std::string, double>> values;
  const auto now = Clock::now();
  const double seconds =
      std::chrono::duration<double>(now - std::exchange(last_time_, now)).count();
  const auto steps = static_cast<double>(step - std::exchange(last_step_, step));
  const double weight = std::exchange(weight_, 0) + figures.weight;
  // What the program did before its first step does not count.
  if (!std::exchange(is_first_, false) && seconds > 0) {
    values.emplace_back("speed/steps_per_second", steps / seconds);
    values.emplace_back("speed/weight_per_second", weight / seconds);
  }
  if (figures.applied) {
    values.emplace_back("step/loss", figures.loss);
    for (std::size_t k = 0; k < rates_.size(); ++k) {
      values.emplace_back(
          rates_.size() == 1 ? "step/learning_rate" : fmt::format("step/learning_rate/{}", k),
          rates_[k] * figures.rate_factor);
    }
    if (figures.gradient_norm) values.emplace_back("step/gradient_norm", *figures.gradient_norm);
    values.emplace_back("step/weight", figures.weight);
  } else {
    values.emplace_back("step/dropped", 1);
  }
  if (figures.loss_scale != 1) values.emplace_back("step/loss_scale", figures.loss_scale);
  for (const Metric& metric : figures.metrics) {
    if (metric.kind != MetricKind::gather && metric.name != kLossName) {  // it is step/loss
      values.emplace_back("metrics/" + metric.name, metric.value);
    }
  }
  file_->scalars(step, values);
}

}  // namespace tutti
