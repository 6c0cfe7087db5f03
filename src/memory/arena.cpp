#include "memory/arena.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {
namespace {

std::size_t whole_pages(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
    throw OutOfMemory(fmt::format("{} bytes are more than a block of memory can have", bytes));
  }
  return round_up(std::max<std::size_t>(bytes, 1), kPageBytes);
}

}  // namespace

Arena::Arena(System& system, FileDescriptor file, std::size_t bytes)
    : file_(std::move(file)), bytes_(bytes), memory_(system.map(file_, bytes)) {}

Arena Arena::create(System& system, std::string_view name, std::size_t bytes) {
  const std::size_t rounded = whole_pages(bytes);
  return Arena(system, system.create_memory(name, rounded), rounded);
}

Arena Arena::open(System& system, FileDescriptor file, std::size_t bytes) {
  return Arena(system, std::move(file), whole_pages(bytes));
}

void touch_pages(std::byte* begin, std::size_t bytes) noexcept {
  for (std::size_t offset = 0; offset < bytes; offset += kPageBytes) {
    *static_cast<volatile std::byte*>(begin + offset) = std::byte{0};
  }
}

}  // namespace tutti
