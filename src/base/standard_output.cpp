#include "base/standard_output.h"

#include <stdio_ext.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

namespace tutti {

void print_whole_lines_at_once() {
  struct stat file {};
  if (::fstat(STDOUT_FILENO, &file) != 0 || !S_ISFIFO(file.st_mode)) return;
  // The C library's own buffer has no bytes before the first output, and st_blksize after it.
  const std::size_t size = __fbufsize(stdout);
  if (size != 0 && size != static_cast<std::size_t>(file.st_blksize)) return;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::fflush(stdout);
}

}  // namespace tutti
