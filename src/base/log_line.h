#pragma once

// The logger for code that also includes torch's headers: those come with an fmt of their own,
// which spdlog's headers cannot be compiled against. Texts are formatted by the caller.

#include <string>

namespace tutti {

void log_debug(const std::string& text);
void log_info(const std::string& text);
void log_warning(const std::string& text);
void log_error(const std::string& text);

}  // namespace tutti
