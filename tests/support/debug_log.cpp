#include "support/debug_log.h"

#include "base/log.h"

namespace tutti::test {

DebugLog::DebugLog() { set_log_level("debug"); }
DebugLog::~DebugLog() { set_log_level("info"); }

}  // namespace tutti::test
