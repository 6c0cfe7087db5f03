// Sums by NCCL.

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/log_line.h"
#include "comm/gather_bytes.h"
#include "torch/sums/nccl_library.h"
#include "torch/sums/watched_wait.h"
#include "tutti/error.h"
#include "tutti/group.h"
#include "tutti/sum_engine.h"

namespace tutti {
namespace {

constexpr int kNcclFloat32 = 7;
constexpr int kNcclFloat64 = 8;
constexpr int kNcclSum = 0;

/// What calls of the device's own libraries take as its stream.
template <class Stream>
void* native_handle(const Stream& stream) {
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    throw Unsupported("NCCL: this version of libtorch does not tell a stream's native handle");
  }
}

class NcclEngine final : public SumEngine {
 public:
  NcclEngine(const Group& group, c10::Device device, const NcclLibrary& library,
             const NcclUniqueId& id)
      : group_(group), device_(device), library_(library), guard_(device.type()) {
    const c10::DeviceGuard on(device_);
    NcclConfig config;
    check(library_.comm_init_rank_config(&comm_, group_.size(), id, group_.rank(), &config));
    try {
      await("NCCL's start");
    } catch (...) {
      abort();
      throw;
    }
  }
  ~NcclEngine() override { abort(); }

  std::string name() const override { return "nccl"; }
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }

  void all_reduce(const torch::Tensor& flat) override {
    const c10::DeviceGuard on(device_);
    check(library_.all_reduce(flat.const_data_ptr(), flat.data_ptr(),
                              static_cast<std::size_t>(flat.numel()),
                              flat.scalar_type() == torch::kFloat64 ? kNcclFloat64 : kNcclFloat32,
                              kNcclSum, comm_, native_handle(guard_.getStream(device_))));
    // Nothing is on the stream before.
    await("NCCL's connections");
  }

  bool finished() override {
    NcclResult state = kNcclSuccess;
    check(library_.comm_get_async_error(comm_, &state));
    check(state);
    return state == kNcclSuccess;
  }

  void abort() noexcept override {
    if (comm_ != nullptr) library_.comm_abort(std::exchange(comm_, nullptr));
  }

 private:
  void check(NcclResult result) const {
    if (result == kNcclSuccess || result == kNcclInProgress) return;
    const auto* const more = library_.get_last_error(comm_);
    const auto text = fmt::format("NCCL on rank {}: {}{}{}", group_.job_rank(group_.rank()),
                                  library_.get_error_string(result), more != nullptr ? ": " : "",
                                  more != nullptr ? more : "");
    // Such as two workers on one device.
    if (result == kNcclInvalidArgument || result == kNcclInvalidUsage) throw InvalidArgument(text);
    throw DeviceFailed(text);
  }
  void await(const char* what) {
    await_watched(
        group_, [&] { return finished(); }, [&] { return std::string(what); });
  }

  Group group_;
  c10::Device device_;
  NcclLibrary library_;
  c10::impl::VirtualGuardImpl guard_;
  NcclComm comm_ = nullptr;
};

}  // namespace

std::shared_ptr<SumEngine> nccl_engine(const Group& group, torch::Device device,
                                       const std::string& library) {
  if (device.is_cpu()) throw InvalidArgument("nccl_engine(): NCCL adds up on devices, not the CPU");
  std::optional<NcclLibrary> nccl;
  NcclUniqueId id{};
  std::string why;
  try {
    nccl.emplace(library);
    if (group.rank() == 0) {
      if (const auto result = nccl->get_unique_id(&id); result != kNcclSuccess) {
        why = fmt::format("NCCL: {}", nccl->get_error_string(result));
      }
    }
  } catch (const Unsupported& error) {
    why = error.what();
  }
  // A worker without the library would let the others wait for it in NCCL.
  const auto all = gather_texts(group, why, {.label = "NCCL"});
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    throw Unsupported(fmt::format("rank {}: {}", group.job_rank(static_cast<int>(r)), all[r]));
  }
  group.broadcast({id.internal.data(), static_cast<std::int64_t>(id.internal.size()), DType::uint8},
                  0, {.label = "NCCL's id"});
  auto engine = std::make_shared<NcclEngine>(group, device, *nccl, id);
  int version = 0;
  nccl->get_version(&version);
  if (group.rank() == 0)
    log_info(fmt::format("NCCL {} adds up on {} workers", version, group.size()));
  return engine;
}

}  // namespace tutti
