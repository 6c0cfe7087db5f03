#pragma once

// `tutti doctor`: what this machine offers for training.

#include <string>

namespace tutti::command {

/// Prints it. Returns 1 when something would stop training, else 0.
int doctor(bool as_json);

/// Prints a line for each check. Returns 1 where one is an error, else 0. `hosts`: "a,b" or
/// "a:2,b:2"; `ssh`: as for `tutti run`.
int doctor_hosts(const std::string& hosts, const std::string& ssh);

}  // namespace tutti::command
