#include "tutti/step_report.h"

#include <fmt/format.h>

namespace tutti {

std::string StepReport::text() const {
  constexpr double kMega = 1e6;
  const auto exposed = exposed_seconds > 0 ? fmt::format(", {:.3f} ms for gradients between hosts",
                                                         exposed_seconds * 1e3)
                                           : std::string();
  const auto device =
      device_bytes > 0
          ? fmt::format(", {:.2f} MB to and from the device, {:.3f} ms waited for",
                        static_cast<double>(device_bytes) / kMega, device_wait_seconds * 1e3)
          : std::string();
  return fmt::format(
      "step {}: {} exchange of {:.2f} of {:.2f} MB, {} parameters skipped, {} micro-batches of "
      "weight {}, {} gradient copies held, waited {} times for {:.3f} ms{}{}, rank {} was ready "
      "last",
      step, collectives, static_cast<double>(max_sent_bytes) / kMega,
      static_cast<double>(dense_bytes) / kMega, parameters_skipped, leaves, weight, nodes_held,
      waits, wait_seconds * 1e3, exposed, device, last_worker);
}

}  // namespace tutti
