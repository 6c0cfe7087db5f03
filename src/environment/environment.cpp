#include "tutti/environment.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include "base/number.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::array<Environment::Variable, 53> kVariables = {{
    {"TUTTI_RANK", "this worker, 0 to size-1; set by `tutti run`"},
    {"TUTTI_SIZE", "number of workers; set by `tutti run`"},
    {"TUTTI_RENDEZVOUS_FD", "inherited socket to the launcher; set by `tutti run`"},
    {"TUTTI_THREADS", "intra-op threads of each worker; set by `tutti run --threads`"},
    {"TUTTI_RESTART",
     "how often all workers have been started again; set by `tutti run`, 0 in the first attempt"},
    {"TUTTI_HOSTS",
     "how many workers are on each host, in the order of their ranks; set by `tutti run --hosts`"},
    {"TUTTI_RUN", "identity of this run; set by `tutti run`, the same in all attempts"},
    {"TUTTI_DEADLINE", "seconds a wait for other workers may last, in place of the default 600"},
    {"TUTTI_PROFILE", "file for a Chrome-trace timeline"},
    {"TUTTI_LOG", "least level that is logged: debug, info, warn, error or off; default info"},
    {"TUTTI_HUB",
     "where the hosts of a job meet, at the host of rank 0: address:port, or :port where the "
     "launcher tells the address"},
    {"TUTTI_TOKEN", "the secret that the hosts of a job share"},
    {"TUTTI_INTERFACE", "network interface that this host's sockets to others are bound to"},
    {"TUTTI_LINK",
     "how gradients travel between hosts: gloo, mpi, tcp, or auto, the default: gloo where the "
     "build "
     "has it, else tcp"},
    {"TUTTI_LANES",
     "connections between two hosts, 1 to 16, over which each kind of their messages is spread; "
     "default 1"},
    {"TUTTI_MPI_LIBRARY",
     "file of the library through which Tutti calls MPI, in place of those that it looks for"},
    {"ATEN_CPU_CAPABILITY",
     "instruction set of libtorch's kernels: default, avx2 or avx512, on ARM default, sve128 or "
     "sve256; set by `tutti run --cpu`"},
    {"ONEDNN_MAX_CPU_ISA",
     "most that oneDNN may use: SSE41, AVX2, AVX512_CORE, …, on ARM ADVANCED_SIMD; set by `tutti "
     "run --cpu`"},
    {"MKL_CBWR", "MKL's code branch: COMPATIBLE, AVX2, AVX512, …; set by `tutti run --cpu`"},
    {"DNNL_MAX_CPU_ISA", "an older name of ONEDNN_MAX_CPU_ISA"},
    {"MKL_ENABLE_INSTRUCTIONS", "most that MKL may use on Intel's processors"},
    {"ONEDNN_DEFAULT_FPMATH_MODE", "whether oneDNN may round float32 to fewer bits"},
    {"DNNL_DEFAULT_FPMATH_MODE", "an older name of ONEDNN_DEFAULT_FPMATH_MODE"},
    {"CUBLAS_WORKSPACE_CONFIG",
     "how cuBLAS and cuDNN compute the same bits in every run; set to :4096:8 by Job::join() where "
     "no GPU has been used before"},
    {"RANK", "this worker; set by torchrun"},
    {"WORLD_SIZE", "number of workers; set by torchrun, and looked at together with RANK"},
    {"LOCAL_RANK", "this worker among those of its host; set by torchrun"},
    {"LOCAL_WORLD_SIZE", "number of workers on this host; set by torchrun"},
    {"GROUP_RANK", "this host; set by torchrun"},
    {"GROUP_WORLD_SIZE", "number of hosts; set by torchrun"},
    {"MASTER_ADDR", "the host of rank 0; set by torchrun"},
    {"MASTER_PORT",
     "port of torchrun's own store there; set by torchrun; without TUTTI_HUB hosts meet at the "
     "next"},
    {"TORCHELASTIC_RUN_ID", "torchrun's name of the job"},
    {"TORCHELASTIC_RESTART_COUNT", "how often torchrun has started all workers again"},
    {"OMPI_COMM_WORLD_RANK", "this worker; set by Open MPI's mpirun"},
    {"OMPI_COMM_WORLD_SIZE", "number of workers; set by Open MPI's mpirun"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "this worker among those of its host; set by Open MPI's mpirun"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "number of workers on this host; set by Open MPI's mpirun"},
    {"PMIX_NAMESPACE", "Open MPI's name of the job"},
    {"PMI_RANK", "this worker; set by MPICH's mpiexec"},
    {"PMI_SIZE", "number of workers; set by MPICH's mpiexec"},
    {"MPI_LOCALRANKID", "this worker among those of its host; set by MPICH's mpiexec"},
    {"MPI_LOCALNRANKS", "number of workers on this host; set by MPICH's mpiexec"},
    {"SLURM_PROCID", "this worker; set by Slurm's srun"},
    {"SLURM_STEP_NUM_TASKS",
     "number of workers; set by Slurm's srun, and looked at together with SLURM_STEP_ID"},
    {"SLURM_STEP_NUM_NODES", "number of hosts; set by Slurm's srun"},
    {"SLURM_NODEID", "this host; set by Slurm's srun"},
    {"SLURM_LOCALID", "this worker among those of its host; set by Slurm's srun"},
    {"SLURM_GTIDS", "the workers on this host; set by Slurm's srun"},
    {"SLURM_STEP_NODELIST",
     "names of the hosts, the first of which has rank 0; set by Slurm's srun"},
    {"SLURM_JOB_ID", "Slurm's number of the job"},
    {"SLURM_STEP_ID", "Slurm's number of the step in the job; set by srun alone"},
    {"OMP_NUM_THREADS",
     "threads of a worker that another launcher has started, unless TUTTI_THREADS is set; default "
     "1"},
}};

/// The variables that libtorch, MKL and oneDNN read themselves.
constexpr std::array kOfLibraries = {
    "ATEN_CPU_CAPABILITY",     "ONEDNN_MAX_CPU_ISA",      "MKL_CBWR",
    "DNNL_MAX_CPU_ISA",        "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE"};

std::optional<std::string_view> text_of(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<int> integer(const char* name, int least) {
  const auto text = text_of(name);
  if (!text) return std::nullopt;
  const auto number = parse_number<int>(*text);
  if (!number || *number < least)
    throw InvalidArgument(
        fmt::format("{} is \"{}\": must be a whole number from {}", name, *text, least));
  return number;
}

std::optional<std::chrono::milliseconds> seconds(const char* name) {
  const auto text = text_of(name);
  if (!text) return std::nullopt;
  const auto number = parse_number<double>(*text);
  constexpr double kMost = 1e9;
  if (!number || !std::isfinite(*number) || *number < 0.001 || *number > kMost)
    throw InvalidArgument(fmt::format(
        "{} is \"{}\": must be a positive number of seconds, 0.001 or more", name, *text));
  return std::chrono::milliseconds(std::llround(*number * 1000.0));
}

std::string string(const char* name) { return std::string(text_of(name).value_or("")); }

std::string link_of(std::string_view text) {
  if (text != "auto" && text != "gloo" && text != "mpi" && text != "tcp") {
    throw InvalidArgument(
        fmt::format("TUTTI_LINK is \"{}\": must be auto, gloo, mpi or tcp", text));
  }
  return std::string(text);
}

int lanes_of(int lanes) {
  if (lanes > kMaxLanes) {
    throw InvalidArgument(fmt::format("TUTTI_LANES is {}: must be 1 to {}", lanes, kMaxLanes));
  }
  return lanes;
}

/// "address:port", where an IPv6 address is in brackets.
std::optional<Environment::Hub> hub_address(const char* name) {
  const auto text = text_of(name);
  if (!text) return std::nullopt;
  const auto colon = text->rfind(':');
  const auto address = text->substr(0, colon == std::string_view::npos ? text->size() : colon);
  const auto port =
      colon == std::string_view::npos ? std::nullopt : parse_number<int>(text->substr(colon + 1));
  const bool in_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  constexpr int kMostPort = 65535;
  if (!port || *port < 1 || *port > kMostPort ||
      (!in_brackets && address.find_first_of(":[]") != std::string_view::npos))
    throw InvalidArgument(
        fmt::format("{} is \"{}\": must be an address and a port from 1 to {}, as 10.0.0.1:29600, "
                    "[::1]:29600 or :29600",
                    name, *text, kMostPort));
  return Environment::Hub{
      std::string(in_brackets ? address.substr(1, address.size() - 2) : address), *port};
}

/// "0,1,4" in ascending order; empty where it is not there, or in another form.
std::vector<int> rank_list(const char* name) {
  std::vector<int> ranks;
  auto rest = text_of(name).value_or("");
  while (!rest.empty()) {
    const auto end = std::min(rest.find(','), rest.size());
    const auto rank = parse_number<int>(rest.substr(0, end));
    if (!rank || *rank < 0) return {};
    ranks.push_back(*rank);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  std::ranges::sort(ranks);
  return ranks;
}

/// "2,1": how many workers each host has.
std::vector<int> counts(const char* name) {
  std::vector<int> numbers;
  const auto text = text_of(name).value_or("");
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(',', at), text.size());
    const auto number = parse_number<int>(text.substr(at, end - at));
    if (!number || *number < 1)
      throw InvalidArgument(fmt::format(
          "{} is \"{}\": must be whole numbers from 1, with commas between", name, text));
    numbers.push_back(*number);
    at = end + 1;
  }
  return numbers;
}

/// The first name of a list of Slurm's: "node[03-05,9]-x,other" begins with node03-x.
std::string first_of_list(std::string_view list) {
  std::string name;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      name += list.front();
      list.remove_prefix(1);
      continue;
    }
    const auto close = std::min(list.find(']'), list.size());
    const auto range = list.substr(1, close - 1);
    name += range.substr(0, range.find_first_of("-,"));
    list.remove_prefix(std::min(close + 1, list.size()));
  }
  return name;
}

/// A launcher whose `size` variable is there and above 1; its `rank` variable then has to be, too.
std::optional<Environment::Launcher> started_by(const char* name, const char* rank,
                                                const char* size) {
  const auto workers = integer(size, 1);
  if (workers.value_or(1) == 1) return {};
  const auto mine = integer(rank, 0);
  if (!mine)
    throw InvalidArgument(
        fmt::format("{} is not set although {} is {}: {} sets both", rank, size, *workers, name));
  if (*mine >= *workers)
    throw InvalidArgument(fmt::format("{} is {}: must be 0 to {}, as {} is {}", rank, *mine,
                                      *workers - 1, size, *workers));
  return Environment::Launcher{
      .name = name, .rank_variable = rank, .rank = *mine, .size = *workers};
}

/// How many workers are on this host; `size` names how many there are in all.
std::optional<int> workers_of_host(const char* name, const char* size, int workers) {
  const auto here = integer(name, 1);
  if (here.value_or(1) > workers)
    throw InvalidArgument(
        fmt::format("{} is {}: must be 1 to {}, as {} is {}", name, *here, workers, size, workers));
  return here;
}

/// The workers of a host are numbered one after the other.
void check_ranks_of_host(const Environment::Launcher& worker) {
  if (!worker.on_host || !worker.rank_on_host) return;
  if (*worker.rank_on_host >= *worker.on_host)
    throw InvalidArgument(
        fmt::format("LOCAL_RANK is {}: must be 0 to {}, as LOCAL_WORLD_SIZE is {}",
                    *worker.rank_on_host, *worker.on_host - 1, *worker.on_host));
  const int first = worker.rank - *worker.rank_on_host;
  const int last = first + *worker.on_host - 1;
  if (first < 0 || last >= worker.size)
    throw InvalidArgument(fmt::format(
        "LOCAL_RANK is {} of the {} of LOCAL_WORLD_SIZE, RANK {} of the {} of WORLD_SIZE: a host "
        "would have ranks from {} to {}",
        *worker.rank_on_host, *worker.on_host, worker.rank, worker.size, first, last));
}

std::optional<Environment::Launcher> innermost_launcher() {
  // WORLD_SIZE alone may be anybody's.
  if (text_of("RANK")) {
    if (auto it = started_by("torchrun", "RANK", "WORLD_SIZE")) {
      it->on_host = workers_of_host("LOCAL_WORLD_SIZE", "WORLD_SIZE", it->size);
      it->hosts = integer("GROUP_WORLD_SIZE", 1);
      it->host = integer("GROUP_RANK", 0);
      it->rank_on_host = integer("LOCAL_RANK", 0);
      it->address = string("MASTER_ADDR");
      it->port = integer("MASTER_PORT", 1);
      check_ranks_of_host(*it);
      if (it->on_host && it->rank_on_host) {
        it->host_ranks.resize(static_cast<std::size_t>(*it->on_host));
        std::iota(it->host_ranks.begin(), it->host_ranks.end(), it->rank - *it->rank_on_host);
      }
      it->restart = integer("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
      it->job = string("TORCHELASTIC_RUN_ID");
      return it;
    }
  }
  if (auto it = started_by("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) {
    it->on_host = workers_of_host("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE", it->size);
    it->rank_on_host = integer("OMPI_COMM_WORLD_LOCAL_RANK", 0);
    it->job = string("PMIX_NAMESPACE");
    return it;
  }
  if (auto it = started_by("mpiexec", "PMI_RANK", "PMI_SIZE")) {
    it->on_host = workers_of_host("MPI_LOCALNRANKS", "PMI_SIZE", it->size);
    it->rank_on_host = integer("MPI_LOCALRANKID", 0);
    return it;
  }
  // The script of an allocation has the other variables too, and is no task of a step.
  if (text_of("SLURM_STEP_ID")) {
    if (auto it = started_by("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")) {
      it->hosts = integer("SLURM_STEP_NUM_NODES", 1);
      it->host = integer("SLURM_NODEID", 0);
      it->rank_on_host = integer("SLURM_LOCALID", 0);
      it->host_ranks = rank_list("SLURM_GTIDS");
      it->address = first_of_list(string("SLURM_STEP_NODELIST"));
      if (it->hosts == 1) it->on_host = it->size;
      if (!it->host_ranks.empty()) it->on_host = static_cast<int>(it->host_ranks.size());
      it->job = string("SLURM_JOB_ID") + "." + string("SLURM_STEP_ID");
      return it;
    }
  }
  return {};
}

std::optional<Environment::Launcher> find_launcher() {
  auto launcher = innermost_launcher();
  if (!launcher) return {};
  // OpenMP allows a list, of which the first number is that of the outermost level.
  const auto list = text_of("OMP_NUM_THREADS").value_or("");
  launcher->threads = parse_number<int>(list.substr(0, list.find(',')));
  return launcher;
}

}  // namespace

Environment Environment::read() {
  Environment environment;
  environment.rank = integer("TUTTI_RANK", 0);
  environment.size = integer("TUTTI_SIZE", 1);
  environment.rendezvous_fd = integer("TUTTI_RENDEZVOUS_FD", 0);
  environment.threads = integer("TUTTI_THREADS", 1);
  environment.restart = integer("TUTTI_RESTART", 0);
  environment.hosts = counts("TUTTI_HOSTS");
  if (const auto text = text_of("TUTTI_RUN")) environment.run = *text;
  environment.deadline = seconds("TUTTI_DEADLINE");
  if (const auto text = text_of("TUTTI_PROFILE")) environment.profile = *text;
  if (const auto text = text_of("TUTTI_LOG")) environment.log_level = *text;
  environment.hub = hub_address("TUTTI_HUB");
  environment.token = string("TUTTI_TOKEN");
  environment.interface = string("TUTTI_INTERFACE");
  if (const auto text = text_of("TUTTI_LINK")) environment.link = link_of(*text);
  environment.lanes = lanes_of(integer("TUTTI_LANES", 1).value_or(kDefaultLanes));
  environment.mpi_library = string("TUTTI_MPI_LIBRARY");
  environment.started_by_mpi =
      text_of("OMPI_COMM_WORLD_SIZE") || text_of("PMI_SIZE") || text_of("SLURM_STEP_ID");
  for (const char* name : kOfLibraries)
    if (const auto text = text_of(name)) environment.libraries.emplace(name, *text);
  if (!environment.rank) environment.launcher = find_launcher();
  return environment;
}

std::span<const Environment::Variable> Environment::variables() { return kVariables; }

}  // namespace tutti
