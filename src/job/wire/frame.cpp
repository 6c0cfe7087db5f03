#include "job/wire/frame.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tutti {
namespace {

/// Limits of one call.
constexpr std::size_t kMaxPieces = 1023;
constexpr std::size_t kPiecesOfFrame = 3;
constexpr std::size_t kControlBytes = CMSG_SPACE(kMaxFrameDescriptors * sizeof(int));

/// Takes over the descriptors that came with a message.
void collect(const msghdr& message, std::vector<FileDescriptor>& to) {
  for (const cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(part))) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      to.emplace_back(fd);
    }
  }
}

#if defined(__SANITIZE_THREAD__)
/// The thread sanitizer does not follow what passes through duplicates of a socket.
std::atomic<unsigned> passed_on{0};
void note_sent() { passed_on.fetch_add(1, std::memory_order_release); }
void note_received() { static_cast<void>(passed_on.load(std::memory_order_acquire)); }
#else
void note_sent() {}
void note_received() {}
#endif

bool is_sensible(const FrameHeader& header) {
  return header.magic == FrameHeader::kMagic && header.kind >= FrameHeader::give &&
         header.kind <= FrameHeader::failed && header.text_bytes <= kMaxFrameText &&
         header.bytes <= kMaxFrameBytes && header.descriptors <= kMaxFrameDescriptors;
}

}  // namespace

FrameStatus FrameReader::read_into(int socket, char* to, std::size_t bytes) {
  while (bytes > 0) {
    alignas(cmsghdr) char control[kControlBytes];
    iovec piece{to, bytes};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return FrameStatus::again;
    if (got <= 0) return FrameStatus::closed;
    note_received();
    collect(message, frame_.parcel.descriptors);
    if ((message.msg_flags & MSG_CTRUNC) != 0) incomplete_ = true;
    to += got;
    bytes -= static_cast<std::size_t>(got);
    got_ += static_cast<std::size_t>(got);
  }
  return FrameStatus::done;
}

FrameStatus FrameReader::read(int socket, Frame& frame) {
  constexpr std::size_t kHeader = sizeof(FrameHeader);
  if (got_ < kHeader) {
    const FrameStatus status =
        read_into(socket, reinterpret_cast<char*>(&frame_.header) + got_, kHeader - got_);
    // The rest of a header without the mark of one may never come.
    if (got_ >= sizeof frame_.header.magic && frame_.header.magic != FrameHeader::kMagic)
      return FrameStatus::nonsense;
    if (status != FrameStatus::done) return status;
    if (!is_sensible(frame_.header)) return FrameStatus::nonsense;
    frame_.text.resize(frame_.header.text_bytes);
    frame_.parcel.bytes.resize(frame_.header.bytes);
  }
  std::size_t at = got_ - kHeader;
  if (at < frame_.text.size()) {
    const FrameStatus status = read_into(socket, frame_.text.data() + at, frame_.text.size() - at);
    if (status != FrameStatus::done) return status;
  }
  at = got_ - kHeader - frame_.text.size();
  const FrameStatus status =
      read_into(socket, frame_.parcel.bytes.data() + at, frame_.parcel.bytes.size() - at);
  if (status != FrameStatus::done) return status;
  got_ = 0;
  frame = std::exchange(frame_, Frame{});
  if (std::exchange(incomplete_, false)) return FrameStatus::descriptors;
  if (frame.parcel.descriptors.size() != frame.header.descriptors) return FrameStatus::nonsense;
  return FrameStatus::done;
}

void FrameWriter::push(FrameHeader header, std::string text, const Parcel* parcel,
                       std::shared_ptr<const void> owner) {
  header.text_bytes = static_cast<std::uint32_t>(text.size());
  header.bytes = parcel == nullptr ? 0 : parcel->bytes.size();
  header.descriptors =
      static_cast<std::uint32_t>(parcel == nullptr ? 0 : parcel->descriptors.size());
  TUTTI_CHECK(is_sensible(header), "a frame of {} bytes of text, {} bytes and {} descriptors",
              header.text_bytes, header.bytes, header.descriptors);
  queue_.push_back({header, std::move(text), parcel, std::move(owner)});
  bytes_ += queue_.back().bytes();
}

FrameHeader* FrameWriter::last() {
  return queue_.empty() || queue_.back().sent > 0 ? nullptr : &queue_.back().header;
}

/// Takes off what was sent.
void FrameWriter::note(std::size_t sent) {
  ++writes_;
  while (sent > 0) {
    Item& item = queue_.front();
    const std::size_t taken = std::min(sent, item.bytes() - item.sent);
    item.sent += taken;
    sent -= taken;
    if (item.sent < item.bytes()) return;
    bytes_ -= item.bytes();
    queue_.pop_front();
  }
}

FrameStatus FrameWriter::write(int socket) {
  while (!queue_.empty()) {
    iovec pieces[kMaxPieces];
    std::size_t count = 0;
    const Parcel* carried = nullptr;
    // Descriptors come with the first byte of their frame, which has a call of its own.
    for (const Item& item : queue_) {
      const bool carries = item.sent == 0 && item.header.descriptors > 0;
      if (count + kPiecesOfFrame > kMaxPieces || (carries && count > 0)) break;
      std::size_t skip = item.sent;
      const auto add = [&](const void* data, std::size_t bytes) {
        const std::size_t skipped = std::min(skip, bytes);
        skip -= skipped;
        if (bytes > skipped)
          pieces[count++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped,
                             bytes - skipped};
      };
      add(&item.header, sizeof item.header);
      add(item.text.data(), item.text.size());
      if (item.parcel != nullptr) add(item.parcel->bytes.data(), item.parcel->bytes.size());
      if (carries) {
        carried = item.parcel;
        break;
      }
    }
    alignas(cmsghdr) char control[kControlBytes] = {};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    if (carried != nullptr) {
      const std::size_t descriptors = carried->descriptors.size();
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
      for (std::size_t i = 0; i < descriptors; ++i) {
        const int fd = carried->descriptors[i].get();
        std::memcpy(CMSG_DATA(part) + i * sizeof(int), &fd, sizeof fd);
      }
    }
    note_sent();
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return FrameStatus::again;
    if (sent < 0 && (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM))
      return FrameStatus::crowded;
    if (sent < 0) return FrameStatus::closed;
    note(static_cast<std::size_t>(sent));
  }
  return FrameStatus::done;
}

bool is_own_stream(int socket) noexcept {
  int type = 0;
  int domain = 0;
  socklen_t bytes = sizeof type;
  if (::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM)
    return false;
  bytes = sizeof domain;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX)
    return false;
  ucred peer{};
  bytes = sizeof peer;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == ::geteuid();
}

}  // namespace tutti
