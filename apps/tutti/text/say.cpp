#include "apps/tutti/text/say.h"

#include <sys/uio.h>
#include <unistd.h>
#include <array>

namespace tutti::command {

void say(std::string_view line) noexcept {
  char end = '\n';
  const std::array<iovec, 2> parts = {{{const_cast<char*>(line.data()), line.size()}, {&end, 1}}};
  [[maybe_unused]] const ssize_t ignored = writev(STDERR_FILENO, parts.data(), parts.size());
}

}  // namespace tutti::command
