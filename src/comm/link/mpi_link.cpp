#include "comm/link/mpi_link.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/helper_thread.h"
#include "base/number.h"
#include "comm/link/link_collectives.h"
#include "comm/link/lost_peers.h"
#include "comm/link/mpi_stream.h"
#include "mpi/mpi_library.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kLastWordTag = 0;
constexpr std::chrono::milliseconds kGrace{50};  // as in a backend link
constexpr std::chrono::milliseconds kIdle{1};    // between two looks for the end of a peer
constexpr int kSpins = 200;                      // looks before the thread sleeps a little

class MpiLink final : public Link {
 public:
  MpiLink(void* communicator, int self, int peers, int lanes);
  ~MpiLink() override;

  std::string description() const override {
    return fmt::format("mpi, {}, {} lanes", mpi_name(), lanes());
  }
  /// As by the destructor.
  void close();

 protected:
  void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
    post(true, lane, peer, const_cast<std::byte*>(bytes.data()), bytes.size(), std::move(done));
  }
  void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
    post(false, lane, peer, bytes.data(), bytes.size(), std::move(done));
  }

 private:
  struct Posted {
    MpiStream* stream = nullptr;
    std::byte* bytes = nullptr;
    std::size_t size = 0;
    Done done;
  };
  using LastWord = std::array<char, 128>;
  struct Peer {
    LastWord heard{};
    MpiFunctions::Request hearing{};
    bool must_end = false;  ///< at once
    std::optional<Clock::time_point> ends_at;
  };

  void post(bool is_send, int lane, int peer, std::byte* bytes, std::size_t size, Done done);
  MpiStream& stream(int peer, int lane, bool sends);
  void run();
  bool poll();
  void listen();
  void say(int peer, const std::string& text);
  void begin_to_lose(int peer, const std::string& text);
  void fail(LinkError& error);

  void* const communicator_;
  const MpiFunctions& mpi_ = mpi_functions();
  LostPeers lost_;
  std::vector<Peer> peers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Posted> posted_;
  /// By peer, lane and direction. Made under the mutex, used by the thread.
  std::map<std::tuple<int, int, bool>, MpiStream> streams_;
  bool is_closing_ = false;
  std::thread thread_;
};

/// The links that have not ended; the process' exit closes them.
class OpenLinks {
 public:
  static OpenLinks& all() {
    static auto* const all = new OpenLinks;
    return *all;
  }
  void insert(MpiLink* link) {
    const std::lock_guard lock(mutex_);
    if (!closes_at_exit_) std::atexit([] { all().close(); });
    closes_at_exit_ = true;
    links_.insert(link);
  }
  void erase(MpiLink* link) {
    const std::lock_guard lock(mutex_);
    links_.erase(link);
  }

 private:
  void close() {
    const std::lock_guard lock(mutex_);
    for (auto* const link : links_) link->close();
  }
  std::mutex mutex_;
  std::set<MpiLink*> links_;
  bool closes_at_exit_ = false;
};

MpiLink::MpiLink(void* communicator, int self, int peers, int lanes)
    : Link(self, peers, lanes), communicator_(communicator), lost_(peers), peers_(peers) {
  for (int peer = 0; peer < peers; ++peer) {
    auto& of = peers_[peer];
    of.hearing = mpi_.no_request;
    if (peer == self) continue;
    const int code = mpi_.receive(of.heard.data(), static_cast<int>(of.heard.size()), peer,
                                  kLastWordTag, communicator_, &of.hearing);
    if (code != 0) throw IoError(0, fmt::format("MPI_Irecv: {}", mpi_text(code)));
  }
  thread_ = start_helper_thread("tutti link", [this] { run(); });
  OpenLinks::all().insert(this);
}

MpiLink::~MpiLink() {
  OpenLinks::all().erase(this);
  close();
  // The communicator stays: to free it may wait for peers that have ended.
}

void MpiLink::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

MpiStream& MpiLink::stream(int peer, int lane, bool sends) {
  const auto [at, is_new] = streams_.try_emplace(
      {peer, lane, sends}, MpiStream::Place{communicator_, self(), peer, lane, sends},
      [this](LinkError& error) { fail(error); });
  return at->second;
}

void MpiLink::post(bool is_send, int lane, int peer, std::byte* bytes, std::size_t size,
                   Done done) {
  if (lost_.is_lost(peer)) {
    lost_.fail(peer, done);
    return;
  }
  std::unique_lock lock(mutex_);
  if (is_closing_) {
    lock.unlock();
    const LinkError error{LinkError::Kind::kClosed, peer, "this link has been closed"};
    done(&error);
    return;
  }
  posted_.push_back({&stream(peer, lane, is_send), bytes, size, std::move(done)});
  changed_.notify_all();
}

/// What has arrived is received.
void MpiLink::begin_to_lose(int peer, const std::string& text) {
  lost_.lose(peer, text);
  if (!peers_[peer].ends_at) peers_[peer].ends_at = Clock::now() + kGrace;
}

void MpiLink::fail(LinkError& error) {
  if (error.kind == LinkError::Kind::kMismatch) {
    if (lost_.lose(error.peer, error.text)) say(error.peer, error.text);
    peers_[error.peer].must_end = true;
  } else {
    begin_to_lose(error.peer, error.text);
    error.text = lost_.why(error.peer);
  }
}

void MpiLink::run() {
  for (int idle = 0;;) {
    std::deque<Posted> posted;
    {
      std::unique_lock lock(mutex_);
      const bool is_open =
          std::ranges::any_of(streams_, [](auto& s) { return !s.second.is_empty(); });
      if (!is_open && posted_.empty() && !is_closing_) changed_.wait_for(lock, kIdle);
      if (is_closing_) break;
      posted.swap(posted_);
    }
    for (auto& message : posted) {
      message.stream->post(message.bytes, message.size, std::move(message.done));
    }
    idle = poll() || !posted.empty() ? 0 : idle + 1;
    if (idle > kSpins) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    } else if (idle > 0) {
      std::this_thread::yield();
    }
  }
  for (int peer = 0; peer < peers(); ++peer) {
    if (peer == self()) continue;
    if (!lost_.is_lost(peer)) say(peer, fmt::format("peer {} has closed its link", self()));
    if (peers_[peer].hearing == mpi_.no_request) continue;
    mpi_.cancel(&peers_[peer].hearing);
    mpi_.wait(&peers_[peer].hearing);
  }
  for (auto& message : posted_) {
    message.stream->post(message.bytes, message.size, std::move(message.done));
  }
  for (auto& [key, stream] : streams_) {
    stream.end({LinkError::Kind::kClosed, std::get<0>(key), "this link has been closed"});
  }
}

/// Whether anything has advanced.
bool MpiLink::poll() {
  bool has_advanced = false;
  listen();
  std::vector<std::pair<int, MpiStream*>> streams;  // Dones may post to new ones meanwhile
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, stream] : streams_) streams.emplace_back(std::get<0>(key), &stream);
  }
  for (auto& [peer, stream] : streams) {
    has_advanced |= stream->poll();
    auto& of = peers_[peer];
    if (of.must_end || (of.ends_at && Clock::now() >= *of.ends_at)) {
      stream->end({LinkError::Kind::kLost, peer, lost_.why(peer)});
    }
  }
  return has_advanced;
}

void MpiLink::listen() {
  for (int peer = 0; peer < peers(); ++peer) {
    auto& of = peers_[peer];
    if (of.hearing == mpi_.no_request) continue;
    bool is_heard = false;
    if (const int code = mpi_.test(&of.hearing, 1, &is_heard); code != 0) {
      of.hearing = mpi_.no_request;
      begin_to_lose(peer,
                    fmt::format("the connection to peer {} has failed: {}", peer, mpi_text(code)));
    } else if (is_heard) {
      of.heard.back() = 0;
      begin_to_lose(peer, of.heard.data());
    }
  }
}

/// Small enough to leave at once; a peer that is gone does not hear it.
void MpiLink::say(int peer, const std::string& text) {
  LastWord word{};
  text.copy(word.data(), word.size() - 1);
  auto request = mpi_.no_request;
  // MPI reads it as long as the request is open.
  auto* const kept = new LastWord(word);
  bool is_sent = mpi_.send(kept->data(), static_cast<int>(kept->size()), peer, kLastWordTag,
                           communicator_, &request) != 0;
  for (const auto end = Clock::now() + kGrace; !is_sent && Clock::now() < end;) {
    mpi_.test(&request, 1, &is_sent);
    std::this_thread::yield();
  }
  if (is_sent) delete kept;
}

}  // namespace

std::unique_ptr<Link> make_mpi_link(const MpiOptions& options) {
  const auto& mpi = mpi_functions();
  const int rank = mpi.rank();
  const auto own = std::ranges::find(options.ranks, rank);
  if (own == options.ranks.end()) {
    throw InvalidArgument(fmt::format("MPI's rank {} is not among the peers {}", rank,
                                      fmt::join(options.ranks, " ")));
  }
  const int peers = static_cast<int>(options.ranks.size());
  void* communicator = nullptr;
  if (const int code =
          mpi.make_communicator(options.ranks.data(), peers, options.tag, &communicator)) {
    throw IoError(0, fmt::format("MPI cannot make a communicator: {}", mpi_text(code)));
  }
  auto link = std::make_unique<MpiLink>(communicator, static_cast<int>(own - options.ranks.begin()),
                                        peers, options.lanes);
  self_test(*link, options.deadline);
  return link;
}

std::vector<int> mpi_ranks_of(const std::vector<std::string>& texts) {
  std::vector<int> ranks;
  for (const auto& text : texts) {
    const auto rank = parse_number<int>(text);
    if (!rank || *rank < 0) {
      throw IoError(0, fmt::format("a link over MPI: peer {} gives \"{}\" as its rank in MPI; run "
                                   "the same build of Tutti on all hosts",
                                   ranks.size(), text));
    }
    ranks.push_back(*rank);
  }
  return ranks;
}

LinkEngine mpi_link_engine() {
  return {"mpi",
          [](const LinkRequest& request) {
            auto ranks = mpi_ranks_of(request.exchange(std::to_string(mpi_functions().rank())));
            constexpr std::size_t kTags = 32768;  // as many as every MPI has
            const auto tag = static_cast<int>(std::hash<std::string>{}(request.name) % kTags);
            return make_mpi_link({.ranks = std::move(ranks),
                                  .lanes = request.lanes,
                                  .tag = tag,
                                  .deadline = request.deadline});
          },
          "TUTTI_LINK is mpi"};
}

}  // namespace tutti
