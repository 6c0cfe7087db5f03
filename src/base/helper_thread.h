#pragma once

// Threads that Tutti runs beside the user's: they take no signals and carry a name that shows in
// debuggers.

#include <functional>
#include <thread>

namespace tutti {

/// `name`: at most 15 bytes.
std::thread start_helper_thread(const char* name, std::function<void()> body);

}  // namespace tutti
