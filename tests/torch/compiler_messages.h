#pragma once

// What the compiler says about a few statements that use a public header.

#include <cstdio>
#include <string>

namespace tutti::test {

/// The compiler's messages about `statements` in a function of a `group` and a tensor `x`.
inline std::string messages_about(const std::string& header, const std::string& statements) {
  const std::string command = std::string("printf '%s' '") + "#include \"tutti/" + header +
                              "\"\n#include \"tutti/group.h\"\n"
                              "void use(const tutti::Group& group, torch::Tensor x) { " +
                              statements + " }\n' | LC_ALL=C " + TUTTI_COMPILER +
                              " -std=c++20 -fsyntax-only -I" + TUTTI_SOURCE + "/include -I" +
                              TUTTI_SOURCE + "/tests/torch/stand_in -x c++ - 2>&1";
  std::string text;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen() failed";
  char piece[4096];
  while (fgets(piece, sizeof piece, pipe) != nullptr) text += piece;
  pclose(pipe);
  return text;
}

}  // namespace tutti::test
