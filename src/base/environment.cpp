#include "tutti/environment.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::array<Environment::Variable, 15> kVariables = {{
    {"TUTTI_RANK", "this worker, 0 to size-1; set by `tutti run`"},
    {"TUTTI_SIZE", "number of workers; set by `tutti run`"},
    {"TUTTI_RENDEZVOUS_FD", "inherited socket to the launcher; set by `tutti run`"},
    {"TUTTI_THREADS", "intra-op threads of each worker; set by `tutti run --threads`"},
    {"TUTTI_RESTART",
     "how often all workers have been started again; set by `tutti run`, 0 in the first attempt"},
    {"TUTTI_RUN", "identity of this run; set by `tutti run`, the same in all attempts"},
    {"TUTTI_DEADLINE", "seconds a wait for other workers may last, in place of the default 600"},
    {"TUTTI_PROFILE", "file for a Chrome-trace timeline"},
    {"TUTTI_LOG", "least level that is logged: debug, info, warn, error or off; default info"},
    {"OMPI_COMM_WORLD_SIZE", "set by Open MPI's mpirun; above 1 a start is refused"},
    {"PMI_SIZE", "set by MPICH's mpiexec; above 1 a start is refused"},
    {"SLURM_NTASKS", "set by Slurm; above 1, with SLURM_PROCID, a start is refused"},
    {"SLURM_PROCID", "set by Slurm's srun; see SLURM_NTASKS"},
    {"WORLD_SIZE", "set by torchrun; above 1, with RANK, a start is refused"},
    {"RANK", "set by torchrun; see WORLD_SIZE"},
}};

std::optional<std::string_view> text_of(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

template <class Number>
std::optional<Number> parse(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<int> integer(const char* name, int least) {
  const auto text = text_of(name);
  if (!text) return std::nullopt;
  const auto number = parse<int>(*text);
  if (!number || *number < least)
    throw InvalidArgument(
        fmt::format("{} is \"{}\": must be a whole number from {}", name, *text, least));
  return number;
}

std::optional<std::chrono::milliseconds> seconds(const char* name) {
  const auto text = text_of(name);
  if (!text) return std::nullopt;
  const auto number = parse<double>(*text);
  constexpr double kMost = 1e9;
  if (!number || !std::isfinite(*number) || *number < 0.001 || *number > kMost)
    throw InvalidArgument(fmt::format(
        "{} is \"{}\": must be a positive number of seconds, 0.001 or more", name, *text));
  return std::chrono::milliseconds(std::llround(*number * 1000.0));
}

/// Number of processes a foreign launcher started; 1 when absent or not a number.
int processes(const char* name) {
  const auto text = text_of(name);
  return text ? parse<int>(*text).value_or(1) : 1;
}

std::string find_foreign_launcher() {
  const auto found = [](const char* launcher, const char* name) {
    return fmt::format("{} ({}={})", launcher, name, processes(name));
  };
  if (processes("OMPI_COMM_WORLD_SIZE") > 1) return found("mpirun", "OMPI_COMM_WORLD_SIZE");
  if (processes("PMI_SIZE") > 1) return found("mpiexec", "PMI_SIZE");
  if (processes("SLURM_NTASKS") > 1 && text_of("SLURM_PROCID"))
    return found("srun", "SLURM_NTASKS");
  if (processes("WORLD_SIZE") > 1 && text_of("RANK")) return found("torchrun", "WORLD_SIZE");
  return {};
}

}  // namespace

Environment Environment::read() {
  Environment environment;
  environment.rank = integer("TUTTI_RANK", 0);
  environment.size = integer("TUTTI_SIZE", 1);
  environment.rendezvous_fd = integer("TUTTI_RENDEZVOUS_FD", 0);
  environment.threads = integer("TUTTI_THREADS", 1);
  environment.restart = integer("TUTTI_RESTART", 0);
  if (const auto text = text_of("TUTTI_RUN")) environment.run = *text;
  environment.deadline = seconds("TUTTI_DEADLINE");
  if (const auto text = text_of("TUTTI_PROFILE")) environment.profile = *text;
  if (const auto text = text_of("TUTTI_LOG")) environment.log_level = *text;
  environment.foreign_launcher = find_foreign_launcher();
  return environment;
}

std::span<const Environment::Variable> Environment::variables() { return kVariables; }

}  // namespace tutti
