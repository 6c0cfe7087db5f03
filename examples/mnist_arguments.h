#pragma once

// What the programs on MNIST are told: FOLDER EPOCHS, and those in parallel [--device TYPE].

#include <stdexcept>
#include <string>

struct Arguments {
  std::string folder;
  int epochs = 0;
  std::string device = "cpu";
};

/// std::runtime_error with the usage where they are others.
inline Arguments arguments_of(int argc, char** argv) {
  if (argc != 3) throw std::runtime_error("usage: mnist FOLDER EPOCHS");
  return {.folder = argv[1], .epochs = std::stoi(argv[2])};
}
inline Arguments arguments_with_device(int argc, char** argv) {
  const bool has_device = argc == 5 && std::string(argv[3]) == "--device";
  if (argc != 3 && !has_device) {
    throw std::runtime_error("usage: PROGRAM FOLDER EPOCHS [--device TYPE]");
  }
  auto arguments = arguments_of(3, argv);
  if (has_device) arguments.device = argv[4];
  return arguments;
}
