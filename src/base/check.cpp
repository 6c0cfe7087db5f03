#include "base/check.h"

namespace tutti {

void fail_check(const char* file, int line, const char* condition, const std::string& text) {
  throw InternalError(fmt::format("{}:{}: {} ({}). This is a defect in Tutti; please report it.",
                                  file, line, text, condition));
}

}  // namespace tutti
