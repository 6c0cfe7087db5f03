#pragma once

// Places in what libtorch hands on from a thread to the threads of the backwards that it runs, as
// those of a device: what is the thread's alone does not come there.
//
// Threads: any. Failure: none.

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tutti {

enum class ThreadSlot : std::uint8_t { write_watch = 254, segment = 255 };

/// libtorch before 2.13 numbers the places, up to 255; later they are known by addresses.
template <ThreadSlot slot, class Kind = c10::DebugInfoKind>
Kind kind_of_slot() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(slot);
  } else {
    static constexpr std::string_view kName = "tutti";
    return Kind(&kName);
  }
}

}  // namespace tutti
