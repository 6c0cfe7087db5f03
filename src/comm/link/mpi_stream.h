#pragma once

// One direction of one lane to one peer of a link over MPI: messages in the order in which they
// were posted, each preceded by its size, so that another size is an error and not garbage.
//
// Threads: one. Failure: of MPI, and of another size, by `Failed`; then the Done of the message.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "comm/link/link.h"
#include "mpi/mpi_functions.h"

namespace tutti {

class MpiStream {
 public:
  /// Hears of an error before the message's Done does, and may give it another text.
  using Failed = std::function<void(LinkError&)>;
  struct Place {
    void* communicator = nullptr;
    int self = 0;
    int peer = 0;
    int lane = 0;
    bool sends = false;
  };
  MpiStream(Place place, Failed failed);

  void post(std::byte* bytes, std::size_t size, Link::Done done);
  bool is_empty() const { return messages_.empty(); }
  /// Calls the Dones of what is complete. Whether anything has advanced.
  bool poll();
  /// Open messages fail. What MPI does not give back, it keeps.
  void end(const LinkError& error);

 private:
  using Request = MpiFunctions::Request;
  struct Message {
    std::byte* bytes = nullptr;
    std::uint64_t size = 0;
    Link::Done done;
    std::uint64_t header = 0;  ///< the size that the peer has
    bool has_header = false;
    std::vector<Request> requests = {};
    std::string failure = {};  ///< why it could not be posted
  };
  using Messages = std::list<Message>;

  void start(Message& message);
  void start_bytes(Message& message);
  Request post_part(void* bytes, std::size_t size, int tag);
  static bool is_complete(Message& message);
  std::optional<LinkError> read_header(Messages::iterator at);
  bool gives_back(Message& message) const;

  const Place place_;
  const Failed failed_;
  /// In a stream of receives only the first one waits for a header, so that those after it cannot
  /// take its bytes.
  Messages messages_;
};

}  // namespace tutti
