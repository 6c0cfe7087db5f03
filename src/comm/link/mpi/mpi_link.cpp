#include "comm/link/mpi/mpi_link.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/helper_thread.h"
#include "comm/link/link_collectives.h"
#include "comm/link/lost_peers.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMaxPiece = std::size_t{1} << 30;  // counts of MPI are ints
constexpr std::chrono::milliseconds kGrace{50};          // as in a backend link
constexpr std::chrono::milliseconds kIdle{1};            // between two looks for the end of a peer
constexpr int kSpins = 200;                              // looks before the thread sleeps a little

std::atomic<bool> peer_was_lost{false};

std::string text_of(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

void require(int code, const char* call) {
  if (code != MPI_SUCCESS) throw IoError(0, fmt::format("{}: {}", call, text_of(code)));
}

void start_mpi() {
  int is_there = 0;
  MPI_Initialized(&is_there);
  int level = MPI_THREAD_SINGLE;
  if (is_there != 0) {
    MPI_Query_thread(&level);
  } else {
    require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    std::atexit([] {
      int is_over = 0;
      MPI_Finalized(&is_over);
      if (is_over == 0 && !peer_was_lost) MPI_Finalize();
    });
  }
  if (level < MPI_THREAD_MULTIPLE) {
    throw Unsupported(
        "the link over MPI needs MPI_THREAD_MULTIPLE: initialise MPI so, or leave it to Tutti");
  }
}

std::string library_name() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<std::size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

class MpiLink final : public Link {
 public:
  MpiLink(MPI_Comm comm, int self, int peers, int lanes);
  ~MpiLink() override;

  std::string description() const override {
    return fmt::format("mpi, {}, {} lanes", library_name(), lanes());
  }
  void lose(int peer, const std::string& text) override;
  void on_lost(LostHandler handler) override { lost_.set_handler(std::move(handler)); }

 protected:
  void post_send(int lane, int peer, std::span<const std::byte> bytes, Done done) override {
    post(true, lane, peer, const_cast<std::byte*>(bytes.data()), bytes.size(), std::move(done));
  }
  void post_receive(int lane, int peer, std::span<std::byte> bytes, Done done) override {
    post(false, lane, peer, bytes.data(), bytes.size(), std::move(done));
  }

 private:
  struct Message {
    bool is_send = false;
    int lane = 0;
    int peer = 0;
    std::byte* bytes = nullptr;
    std::uint64_t size = 0;
    Done done;
    std::uint64_t header = 0;  ///< the size that the peer has
    bool has_header = false;
    std::vector<MPI_Request> requests = {};
  };
  /// One direction of a lane. Of receives only the first one waits for a header, so that those
  /// after it cannot take its bytes.
  using Stream = std::list<Message>;
  using LastWord = std::array<char, 128>;
  struct Peer {
    LastWord heard{};
    MPI_Request hearing = MPI_REQUEST_NULL;
    std::atomic<bool> must_end{false};  ///< at once
    std::optional<Clock::time_point> ends_at;
  };

  void post(bool is_send, int lane, int peer, std::byte* bytes, std::size_t size, Done done);
  void run();
  bool poll();
  void start(Message& message);
  void start_bytes(Message& message);
  bool poll_stream(Stream& stream);
  static bool gives_back(Message& message);
  void end_stream(Stream& stream, const LinkError& error);
  void listen();
  void say(int peer, const std::string& text);
  void begin_to_lose(int peer, const std::string& text);
  static bool is_done(std::vector<MPI_Request>& requests);

  int header_tag(int lane) const { return 2 * lane + 1; }
  int bytes_tag(int lane) const { return 2 * lane + 2; }

  MPI_Comm comm_;
  LostPeers lost_;
  std::vector<Peer> peers_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> posted_;
  bool is_closing_ = false;

  /// The thread's own: by peer, lane and direction.
  std::map<std::tuple<int, int, bool>, Stream> streams_;
  std::thread thread_;
};

MpiLink::MpiLink(MPI_Comm comm, int self, int peers, int lanes)
    : Link(self, peers, lanes), comm_(comm), lost_(peers), peers_(peers) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  for (int peer = 0; peer < peers; ++peer) {
    if (peer == self) continue;
    auto& heard = peers_[peer].heard;
    require(MPI_Irecv(heard.data(), static_cast<int>(heard.size()), MPI_CHAR, peer, 0, comm_,
                      &peers_[peer].hearing),
            "MPI_Irecv");
  }
  thread_ = start_helper_thread("tutti link", [this] { run(); });
}

MpiLink::~MpiLink() {
  on_lost({});
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    changed_.notify_all();
  }
  thread_.join();
  // The communicator stays: to free it may wait for peers that have ended.
}

void MpiLink::post(bool is_send, int lane, int peer, std::byte* bytes, std::size_t size,
                   Done done) {
  if (lost_.is_lost(peer)) {
    const LinkError error{LinkError::Kind::kLost, peer, lost_.why(peer)};
    done(&error);
    return;
  }
  std::unique_lock lock(mutex_);
  if (is_closing_) {
    lock.unlock();
    const LinkError error{LinkError::Kind::kClosed, peer, "this link has been closed"};
    done(&error);
    return;
  }
  posted_.push_back({is_send, lane, peer, bytes, size, std::move(done)});
  changed_.notify_all();
}

void MpiLink::lose(int peer, const std::string& text) {
  TUTTI_CHECK(peer >= 0 && peer < peers() && peer != self(), "peer {} of {}", peer, peers());
  peer_was_lost = true;
  lost_.lose(peer, text);
  peers_[peer].must_end = true;
}

/// What has arrived is received.
void MpiLink::begin_to_lose(int peer, const std::string& text) {
  lost_.lose(peer, text);
  peers_[peer].ends_at = Clock::now() + kGrace;
}

void MpiLink::run() {
  for (int idle = 0;;) {
    std::deque<Message> posted;
    {
      std::unique_lock lock(mutex_);
      const bool is_open = std::ranges::any_of(streams_, [](auto& s) { return !s.second.empty(); });
      if (!is_open && posted_.empty() && !is_closing_) changed_.wait_for(lock, kIdle);
      if (is_closing_) break;
      posted.swap(posted_);
    }
    for (auto& message : posted) {
      auto& stream = streams_[{message.peer, message.lane, message.is_send}];
      const bool is_next = stream.empty() || stream.back().has_header;
      stream.push_back(std::move(message));
      if (is_next) start(stream.back());
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
    if (peers_[peer].hearing == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&peers_[peer].hearing);
    MPI_Wait(&peers_[peer].hearing, MPI_STATUS_IGNORE);
  }
  for (auto& message : posted_) {
    streams_[{message.peer, message.lane, message.is_send}].push_back(std::move(message));
  }
  for (auto& [key, stream] : streams_) {
    end_stream(stream, {LinkError::Kind::kClosed, std::get<0>(key), "this link has been closed"});
  }
}

/// Whether anything has advanced.
bool MpiLink::poll() {
  bool has_advanced = false;
  listen();
  for (auto& [key, stream] : streams_) {
    has_advanced |= poll_stream(stream);
    const auto peer = std::get<0>(key);
    auto& of = peers_[peer];
    if (of.must_end || (of.ends_at && Clock::now() >= *of.ends_at)) {
      end_stream(stream, {LinkError::Kind::kLost, peer, lost_.why(peer)});
    }
  }
  return has_advanced;
}

void MpiLink::listen() {
  for (int peer = 0; peer < peers(); ++peer) {
    auto& of = peers_[peer];
    if (of.hearing == MPI_REQUEST_NULL) continue;
    int is_heard = 0;
    const int code = MPI_Test(&of.hearing, &is_heard, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) {
      of.hearing = MPI_REQUEST_NULL;
      begin_to_lose(peer,
                    fmt::format("the connection to peer {} has failed: {}", peer, text_of(code)));
    } else if (is_heard != 0) {
      of.heard.back() = 0;
      begin_to_lose(peer, of.heard.data());
    }
  }
}

/// Small enough to leave at once; a peer that is gone does not hear it.
void MpiLink::say(int peer, const std::string& text) {
  LastWord word{};
  text.copy(word.data(), word.size() - 1);
  MPI_Request request = MPI_REQUEST_NULL;
  // MPI reads it as long as the request is open.
  auto* const kept = new LastWord(word);
  if (MPI_Isend(kept->data(), static_cast<int>(kept->size()), MPI_CHAR, peer, 0, comm_, &request) !=
      MPI_SUCCESS) {
    delete kept;
    return;
  }
  const auto end = Clock::now() + kGrace;
  for (int is_sent = 0; Clock::now() < end;) {
    MPI_Test(&request, &is_sent, MPI_STATUS_IGNORE);
    if (is_sent != 0) {
      delete kept;
      return;
    }
    std::this_thread::yield();
  }
}

void MpiLink::start(Message& message) {
  if (message.is_send) {
    message.header = message.size;
    message.has_header = true;
  }
  auto& request = message.requests.emplace_back(MPI_REQUEST_NULL);
  const int tag = header_tag(message.lane);
  if (message.is_send) {
    MPI_Isend(&message.header, sizeof message.header, MPI_BYTE, message.peer, tag, comm_, &request);
    start_bytes(message);
  } else {
    MPI_Irecv(&message.header, sizeof message.header, MPI_BYTE, message.peer, tag, comm_, &request);
  }
}

void MpiLink::start_bytes(Message& message) {
  const int tag = bytes_tag(message.lane);
  for (std::uint64_t at = 0; at < message.size; at += kMaxPiece) {
    const int piece = static_cast<int>(std::min<std::uint64_t>(kMaxPiece, message.size - at));
    auto& request = message.requests.emplace_back(MPI_REQUEST_NULL);
    message.is_send
        ? MPI_Isend(message.bytes + at, piece, MPI_BYTE, message.peer, tag, comm_, &request)
        : MPI_Irecv(message.bytes + at, piece, MPI_BYTE, message.peer, tag, comm_, &request);
  }
}

bool MpiLink::is_done(std::vector<MPI_Request>& requests) {
  int is_done = 0;
  require(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &is_done,
                      MPI_STATUSES_IGNORE),
          "MPI_Testall");
  return is_done != 0;
}

/// Calls the Dones of what is complete; receives whose size is known take their bytes.
bool MpiLink::poll_stream(Stream& stream) {
  bool has_advanced = false;
  for (auto at = stream.begin(); at != stream.end();) {
    auto& message = *at;
    if (message.requests.empty()) break;  // waits for the header of the one before
    std::optional<LinkError> error;
    bool is_complete = false;
    try {
      if (!is_done(message.requests)) {
        if (!message.has_header) break;
        ++at;
        continue;
      }
      is_complete = message.has_header || message.size == 0;
    } catch (const Error& failure) {
      begin_to_lose(message.peer, fmt::format("the connection to peer {} has failed: {}",
                                              message.peer, failure.what()));
      error = {LinkError::Kind::kLost, message.peer, lost_.why(message.peer)};
    }
    has_advanced = true;
    if (!error && !message.has_header) {
      if (message.header != message.size) {
        error = {LinkError::Kind::kMismatch, message.peer,
                 fmt::format("peer {} has sent {} bytes on lane {} where peer {} receives {}",
                             message.peer, message.header, message.lane, self(), message.size)};
        if (lost_.lose(message.peer, error->text)) say(message.peer, error->text);
        peers_[message.peer].must_end = true;
      } else {
        message.has_header = true;
        start_bytes(message);
        if (const auto next = std::next(at); next != stream.end()) start(*next);
      }
    }
    if (!error && !is_complete) {
      ++at;
      continue;
    }
    const auto done = std::move(message.done);
    at = stream.erase(at);
    done(error ? &*error : nullptr);
    if (error) break;
  }
  return has_advanced;
}

/// Receives are cancelled. What MPI does not give back, it keeps: a send, or half a message.
bool MpiLink::gives_back(Message& message) {
  for (auto& request : message.requests) {
    if (request != MPI_REQUEST_NULL && !message.is_send) MPI_Cancel(&request);
  }
  const auto end = Clock::now() + (message.is_send ? std::chrono::milliseconds(0) : kGrace);
  int is_over = 0;
  do {
    MPI_Testall(static_cast<int>(message.requests.size()), message.requests.data(), &is_over,
                MPI_STATUSES_IGNORE);
  } while (is_over == 0 && Clock::now() < end);
  return is_over != 0;
}

void MpiLink::end_stream(Stream& stream, const LinkError& error) {
  while (!stream.empty()) {
    Stream ended;
    ended.splice(ended.begin(), stream, stream.begin());
    const auto done = std::move(ended.front().done);
    // MPI may still read or write the header.
    if (!gives_back(ended.front())) new Stream(std::move(ended));
    done(&error);
  }
}

}  // namespace

std::unique_ptr<Link> make_mpi_link(const MpiOptions& options) {
  start_mpi();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (std::ranges::find(options.ranks, rank) == options.ranks.end()) {
    throw InvalidArgument(fmt::format("MPI's rank {} is not among the peers {}", rank,
                                      fmt::join(options.ranks, " ")));
  }
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  require(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  require(
      MPI_Group_incl(world, static_cast<int>(options.ranks.size()), options.ranks.data(), &group),
      "MPI_Group_incl");
  require(MPI_Comm_create_group(MPI_COMM_WORLD, group, options.tag, &comm),
          "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  int self = 0;
  MPI_Comm_rank(comm, &self);
  auto link =
      std::make_unique<MpiLink>(comm, self, static_cast<int>(options.ranks.size()), options.lanes);
  self_test(*link, options.deadline);
  return link;
}

}  // namespace tutti
