#pragma once

// The variables that `tutti run --hosts` passes on to the launcher of each host. They go through
// its standard input, as the token does: a command line can be read by every user of a machine.
//
// Threads: pure functions, but for read_host_input() and set_variables(). Failure: Refusal.

#include <optional>
#include <string>
#include <vector>

namespace tutti::command {

/// What a launcher reads from its standard input before it starts.
struct HostInput {
  std::string token;
  std::vector<std::string> variables;  ///< "NAME=value" each
};

/// Those of `inherited` ("NAME=value" each) that begin with TUTTI_, but for the token and the file
/// of a timeline, or select instruction sets in libtorch, MKL and oneDNN; then those `asked` for by
/// --env, as NAME or NAME=value. Throws Refusal where a NAME is not inherited.
std::vector<std::string> variables_for_hosts(const std::vector<std::string>& asked,
                                             const std::vector<std::string>& inherited);

/// Throws Refusal with the usage status for a value of --env that names no variable.
void check_variable(const std::string& asked);

/// Throws Refusal where it is more than a pipe holds.
std::string text_of(const HostInput& input);
/// Nothing where standard input ends before.
std::optional<HostInput> read_host_input();
/// The next line of standard input, of which nothing more is read. Nothing at its end.
std::optional<std::string> read_input_line();

/// In this process. There are no other threads yet.
void set_variables(const std::vector<std::string>& variables);

}  // namespace tutti::command
