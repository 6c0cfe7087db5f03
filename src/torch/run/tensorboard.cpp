#include "tutti/tensorboard.h"

#include <fmt/format.h>

#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/error_kind.h"
#include "base/log_line.h"
#include "run/log/event_file.h"
#include "tutti/error.h"

namespace tutti {

template <class Write>
void TensorBoard::write(const Write& write) {
  if (!file_) return;
  try {
    write();
    failed_ = false;
  } catch (...) {
    if (!std::exchange(failed_, true)) {
      log_warning(fmt::format("a value for TensorBoard is missing, perhaps others after it too: {}",
                              exception_text()));
    }
  }
}

TensorBoard::TensorBoard(const Job& job, const std::string& directory,
                         std::optional<std::int64_t> done)
    : TensorBoard(job.rank() == 0, directory, done) {}

TensorBoard::TensorBoard(const Group& group, const std::string& directory,
                         std::optional<std::int64_t> done)
    : TensorBoard(group.rank() == 0, directory, done) {}

TensorBoard::TensorBoard(bool writes, const std::string& directory,
                         std::optional<std::int64_t> done) {
  if (done && (*done < 0 || *done == std::numeric_limits<std::int64_t>::max())) {
    throw InvalidArgument(fmt::format("a TensorBoard of a run of which {} steps are over", *done));
  }
  if (directory.empty())
    throw InvalidArgument("a TensorBoard needs a directory; its name is empty");
  if (!writes) return;
  file_ = event_file_in(directory);
  if (done) {
    write([&] { file_->resume(*done); });
  }
}

void TensorBoard::scalar(std::string_view name, double value, std::int64_t step) {
  require_utf8(name);
  write([&] {
    const std::pair<std::string, double> one(name, value);
    file_->scalars(step, std::span(&one, 1));
  });
}

void TensorBoard::metrics(std::string_view name, const Metrics& metrics, std::int64_t step) {
  require_utf8(name);
  write([&] {
    std::vector<std::pair<std::string, double>> values;
    for (const Metric& metric : metrics) {
      if (metric.kind == MetricKind::gather) continue;
      values.emplace_back(fmt::format("{}/{}", name, metric.name), metric.value);
    }
    file_->scalars(step, values);
  });
}

void TensorBoard::histogram(std::string_view name, const torch::Tensor& values, std::int64_t step) {
  require_utf8(name);
  if (values.is_complex()) {
    throw InvalidArgument(
        fmt::format("a histogram of complex numbers, \"{}\": give abs(), or a part of them", name));
  }
  write([&] {
    const torch::NoGradGuard no_grad;
    const auto dense = values.layout() == torch::kStrided ? values : values.to_dense();
    const auto all = dense.to(torch::kCPU, torch::kFloat64).contiguous();
    const auto found =
        Histogram::of({all.const_data_ptr<double>(), static_cast<std::size_t>(all.numel())});
    if (found) file_->histogram(step, name, *found);
  });
}

}  // namespace tutti
