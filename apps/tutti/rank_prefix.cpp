#include "rank_prefix.h"

#include <fmt/format.h>
#include <array>
#include <string_view>

namespace tutti::command {

std::string rank_prefix(int rank, int size, bool colour) {
  constexpr std::array kColours = {36, 33, 32, 35, 34, 96, 93, 92, 95, 94};  // ECMA-48 SGR
  const auto width = fmt::formatted_size("{}", size - 1);
  const std::string plain = fmt::format("[{:>{}}]", rank, width);
  if (!colour) return plain + " ";
  return fmt::format("\x1b[{}m{}\x1b[0m ",
                     kColours[static_cast<std::size_t>(rank) % kColours.size()], plain);
}

bool wants_colour(bool is_terminal, const char* no_color, const char* term) {
  if (!is_terminal || (no_color && *no_color)) return false;
  return !term || std::string_view(term) != "dumb";
}

}  // namespace tutti::command
