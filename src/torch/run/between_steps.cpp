#include "torch/run/between_steps.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "base/exception_text.h"
#include "comm/gather_bytes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

template <class Thrown>
bool is(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Thrown&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void BetweenSteps::require_no_half(const char* what) const {
  if (is_half_) throw InvalidArgument(fmt::format("{} between accumulate() and apply()", what));
}

void BetweenSteps::require_half(const char* what) const {
  if (!is_half_) throw InvalidArgument(fmt::format("{} before accumulate()", what));
}

void BetweenSteps::require(const char* what) const {
  require_no_half(what);
  if (*inside_ != 0) throw InvalidArgument(fmt::format("{} inside {}", what, inside_));
}

std::exception_ptr BetweenSteps::run_inside(const char* what, const std::function<void()>& body) {
  inside_ = what;
  std::exception_ptr error;
  try {
    body();
  } catch (...) {
    error = std::current_exception();
  }
  inside_ = "";
  return error;
}

void BetweenSteps::begin_on_all(const char* what, const std::function<void()>& check) const {
  require(what);  // alike on all
  std::exception_ptr error;
  std::string text;
  try {
    check();
  } catch (...) {
    error = std::current_exception();
    text = exception_text();
    if (text.empty()) text = "an exception without a text";
  }
  const auto all = gather_bytes(group_, std::as_bytes(std::span(text)), waits(what));
  if (error) std::rethrow_exception(error);
  for (int r = 0; r < group_.size(); ++r) {
    const auto& said = all[static_cast<std::size_t>(r)];
    if (said.empty()) continue;
    throw InvalidArgument(
        fmt::format("{} failed on rank {}: {}", what, group_.job_rank(r),
                    std::string_view(reinterpret_cast<const char*>(said.data()), said.size())));
  }
}

std::exception_ptr BetweenSteps::on_first_rank(const char* what,
                                               const std::function<void()>& work) const {
  struct {
    bool is_mismatch = false;
    std::array<char, 1024> text{};
  } said;
  std::exception_ptr error;
  if (group_.rank() == 0) {
    try {
      work();
    } catch (...) {
      error = std::current_exception();
      fmt::format_to_n(said.text.data(), said.text.size() - 1, "{} failed on rank {}: {}", what,
                       group_.job_rank(0), exception_text());
      said.is_mismatch = is<Mismatch>(error);
    }
  }
  group_.broadcast({&said, sizeof said, DType::uint8}, 0, waits(what));
  if (error || said.text[0] == 0) return error;
  if (said.is_mismatch) return std::make_exception_ptr(Mismatch(said.text.data()));
  return std::make_exception_ptr(InvalidArgument(said.text.data()));
}

}  // namespace tutti
