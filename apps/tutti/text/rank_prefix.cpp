#include "apps/tutti/text/rank_prefix.h"

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

std::string ranks_prefix(const std::vector<int>& ascending) {
  std::string text;
  for (std::size_t first = 0; first < ascending.size();) {
    std::size_t last = first;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += first == last ? fmt::format("{}", ascending[first])
                          : fmt::format("{}-{}", ascending[first], ascending[last]);
    first = last + 1;
  }
  return fmt::format("[{}] ", text);
}

bool wants_colour(bool is_terminal, const char* no_color, const char* term) {
  if (!is_terminal || (no_color && *no_color)) return false;
  return !term || std::string_view(term) != "dumb";
}

}  // namespace tutti::command
