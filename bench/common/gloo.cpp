#include "common/gloo.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace bench {

c10::intrusive_ptr<c10d::Backend> make_gloo(const std::string& store, int rank, int size) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto shared = c10::make_intrusive<c10d::FileStore>(store, size);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(shared, rank, size, options);
}

}  // namespace bench
