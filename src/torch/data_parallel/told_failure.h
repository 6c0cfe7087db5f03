#pragma once

// The failure of a step of which an exception has told the program: what a handler reports by
// fail() is that one, and not another step's.
//
// The program's code between two steps is not seen, so that what a fail() is about shows in where
// it is called: in the handler of that exception, or of one that was made of it.
//
// Threads: one. Failure: none.

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <typeindex>
#include <utility>

namespace tutti {

class ToldFailure {
 public:
  ToldFailure() = default;
  /// `error` has told that step `step` was dropped, or is about to; null: an exception that is none
  /// of std::exception's, or cannot be seen.
  ToldFailure(std::int64_t step, std::exception_ptr error)
      : step_(step), error_(std::move(error)), text_(text_of(error_)) {}

  /// Whether fail(why) reports it, where `last` is the last step that is over. Once that has been
  /// so, only the exception itself tells that it is again.
  bool is_reported(std::int64_t last, std::string_view why) {
    if (step_ != last) return false;
    const auto current = std::current_exception();
    if (error_ && current && is_made_of(current)) return is_reported_ = true;
    if (is_reported_) return false;
    // A destructor that the exception calls; or what was made of it, unless it is one of the same
    // kind that the program has thrown since.
    const auto is_told = [&] {
      if (!error_) return true;  // whatever its text is
      if (text_.empty() || why.find(text_) == why.npos) return false;
      return !current || text_of(current) != text_ || !have_one_type(current, error_);
    };
    is_reported_ = std::uncaught_exceptions() > 0 || is_told();
    return is_reported_;
  }

 private:
  static std::string text_of(const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return e.what();
    } catch (...) {
    }
    return {};
  }
  static bool have_one_type(const std::exception_ptr& one, const std::exception_ptr& other) {
    const auto type_of = [](const std::exception_ptr& error) -> std::type_index {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        return typeid(e);
      } catch (...) {
        return typeid(void);
      }
    };
    return type_of(one) == type_of(other);
  }
  /// `error` is it, or has it nested in it.
  bool is_made_of(std::exception_ptr error) const {
    while (error && error != error_) {
      std::exception_ptr inner;
      try {
        std::rethrow_exception(error);
      } catch (const std::nested_exception& nested) {
        inner = nested.nested_ptr();
      } catch (...) {
      }
      error = inner;
    }
    return error != nullptr;
  }

  std::int64_t step_ = -1;
  std::exception_ptr error_;
  std::string text_;
  bool is_reported_ = false;
};

}  // namespace tutti
