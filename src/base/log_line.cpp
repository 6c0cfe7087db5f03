#include "base/log_line.h"

#include "base/log.h"

namespace tutti {

void log_debug(const std::string& text) { log().debug("{}", text); }
void log_info(const std::string& text) { log().info("{}", text); }
void log_warning(const std::string& text) { log().warn("{}", text); }
void log_error(const std::string& text) { log().error("{}", text); }

}  // namespace tutti
