#pragma once

// One logger. Lines carry level and rank; level from TUTTI_LOG. Output goes to stderr.

#include <memory>
#include <string>

#include <spdlog/logger.h>

namespace tutti {

/// The library's logger; never null.
spdlog::logger& log();
/// "debug", "info", "warn", "error" or "off"; anything else is InvalidArgument.
void set_log_level(const std::string& level);
/// Lines say which worker speaks: set by Job::join. size 1 leaves the rank out.
void set_log_rank(int rank, int size);

}  // namespace tutti
