#include "apps/tutti/run/remote_shell.h"

#include <filesystem>

namespace tutti::command {

std::string shell_word(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::string remote_line(const std::vector<std::string>& words) {
  std::string line = "cd " + shell_word(std::filesystem::current_path().string()) + " && exec";
  for (const auto& word : words) line.append(" ").append(shell_word(word));
  return line;
}

}  // namespace tutti::command
