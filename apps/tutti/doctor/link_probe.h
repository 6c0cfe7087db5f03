#pragma once

// What one TCP connection between two hosts is worth, for `tutti doctor --hosts`: one host serves
// it, another one measures.
//
// Threads: one. Failure: IoError; whoever waits for the other does so for 10 seconds.

#include <optional>
#include <string>

namespace tutti::command {

struct LinkFigures {
  double round_trip = 0;  ///< seconds, the median of many
  double there = 0;       ///< bytes per second to the host that serves
  double back = 0;
};

/// Listens at the address, prints the port, and serves one connection.
void serve_probe(const std::string& address);
LinkFigures probe(const std::string& address, int port);

std::string text_of(const LinkFigures& figures);
/// Nothing where it is none that text_of() has made.
std::optional<LinkFigures> read_figures(const std::string& text);

}  // namespace tutti::command
