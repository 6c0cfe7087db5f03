// Sums by a backend of c10d.

#include <fmt/format.h>

#include <csignal>
#include <deque>
#include <exception>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/log_line.h"
#include "tutti/error.h"
#include "tutti/sum_engine.h"

namespace tutti {
namespace {

class BackendEngine final : public SumEngine {
 public:
  explicit BackendEngine(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)) {}

  std::string name() const override { return backend_->getBackendName(); }
  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }

  void all_reduce(const torch::Tensor& flat) override {
    std::vector<at::Tensor> tensors{flat};
    auto work = backend_->allreduce(tensors, {});  // a sum, unless asked otherwise
    if (!flat.is_cpu()) work->wait();
    running_.push_back({std::move(work), flat});
  }

  bool finished() override {
    while (!running_.empty() && running_.front().work->isCompleted()) {
      const auto& work = *running_.front().work;
      if (!work.isSuccess()) {
        if (const auto error = work.exception()) std::rethrow_exception(error);
        throw DeviceFailed("it was aborted");
      }
      running_.pop_front();
    }
    return running_.empty() || !running_.front().flat.is_cpu();
  }

  void abort() noexcept override {
    const auto attempt = [](const auto& call) {
      try {
        call();
      } catch (...) {  // not every backend can
      }
    };
    for (const auto& one : running_) attempt([&] { one.work->abort(); });
    attempt([&] { backend_->abort(); });
  }

 private:
  struct Running {
    c10::intrusive_ptr<c10d::Work> work;
    torch::Tensor flat;
  };
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::deque<Running> running_;  ///< as they were begun
};

/// Gloo writes to sockets without MSG_NOSIGNAL, in threads that the program has started with it.
void warn_of_pipe_signal(const std::string& backend) {
  struct sigaction now {};
  if (backend != "gloo" || ::sigaction(SIGPIPE, nullptr, &now) != 0) return;
  if (now.sa_handler != SIG_DFL) return;
  log_warning(
      "c10d_engine(): a worker that ends takes others with it, by SIGPIPE, as Gloo writes to it: "
      "call std::signal(SIGPIPE, SIG_IGN) before the backend is made");
}

}  // namespace

std::shared_ptr<SumEngine> c10d_engine(c10::intrusive_ptr<c10d::Backend> backend) {
  if (!backend) throw InvalidArgument("c10d_engine(): the backend is null");
  warn_of_pipe_signal(backend->getBackendName());
  return std::make_shared<BackendEngine>(std::move(backend));
}

}  // namespace tutti
