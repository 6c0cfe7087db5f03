#include "torch/run/between_steps.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "base/error_kind.h"
#include "comm/gather_bytes.h"
#include "comm/group_state.h"
#include "job/alone.h"
#include "tutti/error.h"

namespace tutti {

RunPart::Gather BetweenSteps::gather(const char* what) const {
  return [this, what](std::span<const std::byte> mine) {
    return gather_bytes(group_, mine, waits(what));
  };
}

void BetweenSteps::require_together(const std::string& what) const {
  tutti::require_together(group_.state()->job(), what);
}

void BetweenSteps::require_one_thread(const std::string& what, const Stepping& stepping) {
  if (stepping.elsewhere().empty()) return;
  throw InvalidArgument(fmt::format(
      "{} begins while {} is under way on another thread of this process: both would draw random "
      "numbers from torch's one generator; call them in turns",
      what, stepping.elsewhere()));
}

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
  std::vector<std::byte> kind_and_text;
  try {
    check();
  } catch (...) {
    error = std::current_exception();
    const auto kind = error_kind();
    auto text = exception_text();
    if (text.empty()) text = "an exception without a text";
    append(kind_and_text, kind);
    append_all(kind_and_text, text);
  }
  const auto all = gather(what)(kind_and_text);
  if (error) std::rethrow_exception(error);
  for (int r = 0; r < group_.size(); ++r) {
    ByteReader said{all[static_cast<std::size_t>(r)]};
    if (said.left.empty()) continue;
    const auto kind = said.value<ErrorKind>();
    std::rethrow_exception(make_error(kind, fmt::format("{} failed on rank {}: {}", what,
                                                        group_.job_rank(r), text_of(said.left))));
  }
}

std::exception_ptr BetweenSteps::on_first_rank(const char* what,
                                               const std::function<void()>& work) const {
  struct {
    ErrorKind kind;
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
      said.kind = error_kind();
    }
  }
  group_.broadcast({&said, sizeof said, DType::uint8}, 0, waits(what));
  if (error || said.text[0] == 0) return error;
  return make_error(said.kind, said.text.data());
}

}  // namespace tutti
