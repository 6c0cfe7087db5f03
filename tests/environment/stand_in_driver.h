#pragma once

// NVIDIA's driver, as a library of the tests that takes its place in a process.

#include <dlfcn.h>
#include <gtest/gtest.h>

namespace tutti::test {

/// Loads it, for good: in a process of its own. A context is on a GPU, or not.
inline void load_stand_in_driver(bool has_context) {
  void* const library = ::dlopen(TUTTI_STAND_IN_DRIVER, RTLD_NOW | RTLD_NODELETE);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto set = reinterpret_cast<void (*)(bool)>(::dlsym(library, "stand_in_driver_context"));
  ASSERT_NE(set, nullptr);
  set(has_context);
}

}  // namespace tutti::test
