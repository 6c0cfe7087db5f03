// The one source that reads Gloo's headers. It never touches a member of gloo::Context and derives
// from none of its classes: the layouts of the headers and of libtorch differ.

#include "c10d/gloo_link.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <torch/version.h>

#include "base/error_kind.h"
#include "base/helper_thread.h"
#include "c10d/backend_link.h"
#include "c10d/pipe_signal.h"
#include "comm/link/link_collectives.h"
#include "tutti/error.h"

#ifdef TUTTI_HAS_GLOO
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace tutti {

#ifdef TUTTI_HAS_GLOO

namespace {

using Milliseconds = std::chrono::milliseconds;

/// Versions of libtorch with which the conformance suite has passed.
constexpr bool kIsTried = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 11 &&
                          TORCH_VERSION_MINOR <= 15 && TORCH_VERSION_MINOR != 12;

/// Gloo adds time-outs to points in time: no maximum of a type.
Milliseconds left_until(Deadline deadline) {
  constexpr Milliseconds kLongest = std::chrono::hours(24);
  if (deadline.at == Clock::time_point::max()) return kLongest;
  const auto left = std::chrono::duration_cast<Milliseconds>(deadline.at - Clock::now());
  return std::clamp(left, Milliseconds(1), kLongest);
}

std::shared_ptr<gloo::transport::Device> make_device(const GlooOptions& options) {
  constexpr bool kLazy = false;
  const WithoutSignals without;  // its thread writes to sockets
  try {
    return options.interface.empty()
               ? c10d::ProcessGroupGloo::createDeviceForHostname(options.address, kLazy)
               : c10d::ProcessGroupGloo::createDeviceForInterface(options.interface, kLazy);
  } catch (...) {
    throw InvalidArgument(fmt::format(
        "Gloo cannot use the {} \"{}\": {}", options.interface.empty() ? "address" : "interface",
        options.interface.empty() ? options.address : options.interface, exception_text()));
  }
}

void check(const GlooOptions& options) {
  if (const auto why = why_no_gloo(); !why.empty()) throw Unsupported(why);
  if (options.peers < 1 || options.self < 0 || options.self >= options.peers || options.lanes < 1) {
    throw InvalidArgument(fmt::format("a link of Gloo for peer {} of {} with {} lanes",
                                      options.self, options.peers, options.lanes));
  }
  if (options.interface.empty() == options.address.empty()) {
    throw InvalidArgument(
        "a link of Gloo needs the interface or the address to bind to, and not both");
  }
}

c10::intrusive_ptr<c10d::Backend> make_lane(const GlooOptions& options, int lane,
                                            const c10::intrusive_ptr<c10d::Store>& store) {
  const WithoutPipeSignal without;
  const StartsHelpers starts;
  auto settings = c10d::ProcessGroupGloo::Options::create(left_until(options.deadline));
  settings->threads = 1;
  settings->devices.push_back(make_device(options));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(fmt::format("tutti/{}", lane), store), options.self,
      options.peers, settings);
}

}  // namespace

std::string why_no_gloo() {
  if (kIsTried) return "";
  return fmt::format(
      "the link over Gloo was not tried with libtorch {}, only with 2.11 and 2.13 to 2.15: "
      "build with one of these",
      TORCH_VERSION);
}

std::unique_ptr<Link> make_gloo_link(const GlooOptions& options,
                                     const c10::intrusive_ptr<c10d::Store>& store) {
  check(options);
  std::vector<c10::intrusive_ptr<c10d::Backend>> lanes;
  try {
    for (int lane = 0; lane < options.lanes; ++lane) {
      lanes.push_back(make_lane(options, lane, store));
    }
  } catch (const Error&) {
    throw;
  } catch (...) {
    const auto text = fmt::format("Gloo could not connect peer {} of {}: {}", options.self,
                                  options.peers, exception_text());
    if (Clock::now() >= options.deadline.at) throw Timeout(text);
    throw IoError(0, text);
  }
  auto link = make_backend_link(
      std::move(lanes),
      fmt::format("gloo on {}", options.interface.empty() ? options.address : options.interface));
  self_test(*link, options.deadline);
  return link;
}

#else

std::string why_no_gloo() {
  return "this build has no link over Gloo: the headers of Gloo were missing. Install libgloo-dev "
         "(Debian, Ubuntu) and build again";
}

std::unique_ptr<Link> make_gloo_link(const GlooOptions&, const c10::intrusive_ptr<c10d::Store>&) {
  throw Unsupported(why_no_gloo());
}

#endif

std::unique_ptr<Link> make_gloo_link(const GlooOptions& options, ExchangeBytes exchange) {
  if (const auto why = why_no_gloo(); !why.empty()) throw Unsupported(why);
  const auto store = c10::make_intrusive<GatherStore>(std::move(exchange), options.self);
  store->setTimeout(std::chrono::hours(24));  // the exchange has a deadline of its own
  auto link = make_gloo_link(options, c10::static_intrusive_pointer_cast<c10d::Store>(store));
  store->finish();
  return link;
}

}  // namespace tutti
