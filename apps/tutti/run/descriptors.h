#pragma once

// Which descriptors workers do not get.
//
// Threads: one. Failure: none.

namespace tutti::command {

/// Whatever this process has inherited besides 0, 1 and 2 stays open here, and is closed in all
/// programs that it executes.
void close_inherited_on_exec();

}  // namespace tutti::command
