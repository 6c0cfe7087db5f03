// The part of `tutti export` that needs libtorch: a program of its own, so that `tutti` does not.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "archive.h"

int main(int argc, char** argv) {
  tutti::command::ExportOptions options;
  CLI::App app("Started by `tutti export --torch`.", "tutti export");
  app.add_option("CHECKPOINT", options.checkpoint)->required();
  app.add_option("FILE", options.archive)->required();
  app.add_flag("--averages", options.averages);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto step = tutti::command::export_archive(options);
    fmt::print("{}: the {} after step {}\n", options.archive.string(),
               options.averages ? "averaged model" : "model", step);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tutti export: {}\n", error.what());
    return 1;
  }
  return 0;
}
