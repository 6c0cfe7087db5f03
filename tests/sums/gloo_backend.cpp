#include "sums/gloo_backend.h"

#include <chrono>
#include <csignal>
#include <stdexcept>

#ifdef TUTTI_HAS_GLOO
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace tutti::test {

#ifdef TUTTI_HAS_GLOO

bool has_gloo() { return true; }

c10::intrusive_ptr<c10d::Backend> gloo_backend(int rank, int size, const std::string& file) {
  std::signal(SIGPIPE, SIG_IGN);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(20));
  options->threads = 1;
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::FileStore>(file, size), rank, size, options);
}

#else

bool has_gloo() { return false; }

c10::intrusive_ptr<c10d::Backend> gloo_backend(int, int, const std::string&) {
  throw std::logic_error("no Gloo in this build");
}

#endif

}  // namespace tutti::test
