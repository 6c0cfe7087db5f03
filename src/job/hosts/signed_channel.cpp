#include "job/hosts/signed_channel.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::uint32_t kOpeningMagic = 0x48545554;  // "TUTH"
constexpr std::uint32_t kMessageMagic = 0x4d545554;  // "TUTM"
constexpr std::uint32_t kChannelVersion = 1;
/// Carries no proof: one who has another token could not check it.
constexpr std::uint32_t kOtherTokenKind = 0xffffffff;

template <class Bytes>
std::array<unsigned char, 32> hmac(const Bytes& key, const std::string& text) {
  std::array<unsigned char, 32> digest{};
  unsigned int bytes = 0;
  const auto* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &bytes);
  TUTTI_CHECK(made != nullptr && bytes == digest.size(), "OpenSSL made no HMAC-SHA256");
  return digest;
}

}  // namespace

SignedChannel::SignedChannel(FileDescriptor socket, Side side, std::string token)
    : socket_(std::move(socket)), side_(side), token_(std::move(token)) {
  static_assert(sizeof(Opening) == 40 && sizeof(Header) == 48);
  if (side_ == Side::host) open();
}

void SignedChannel::open() {
  mine_.magic = kOpeningMagic;
  mine_.version = kChannelVersion;
  if (RAND_bytes(mine_.random.data(), static_cast<int>(mine_.random.size())) != 1)
    throw Error("the system has no random numbers with which hosts could prove who they are");
  append(unsent_, mine_);
}

void SignedChannel::derive_key() {
  const bool is_hub = side_ == Side::hub;
  std::string text = "tutti hosts";
  append(text, is_hub ? theirs_ : mine_);
  append(text, is_hub ? mine_ : theirs_);
  key_ = hmac(token_, text);
  has_key_ = true;
}

SignedChannel::Digest SignedChannel::proof(Side from, std::uint64_t number, const Header& header,
                                           const std::string& content) const {
  std::string text;
  text.reserve(content.size() + 32);
  append(text, from);
  append(text, number);
  append(text, header.kind);
  append(text, header.bytes);
  text += content;
  return hmac(key_, text);
}

SignedChannel::Status SignedChannel::read_into(void* to, std::size_t bytes, std::size_t& got) {
  while (got < bytes) {
    const ssize_t now =
        ::recv(socket_.get(), static_cast<char*>(to) + got, bytes - got, MSG_DONTWAIT);
    if (now < 0 && errno == EINTR) continue;
    if (now < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::again;
    if (now <= 0) return Status::closed;
    got += static_cast<std::size_t>(now);
  }
  return Status::done;
}

SignedChannel::Status SignedChannel::read_opening() {
  const Status status = read_into(&theirs_, sizeof theirs_, got_opening_);
  // The rest of what does not begin like an opening may never come.
  if (got_opening_ >= sizeof theirs_.magic && theirs_.magic != kOpeningMagic)
    return Status::nonsense;
  if (status != Status::done) return status;
  if (side_ == Side::hub) {
    open();  // also to another version, so that it can tell
    write();
  }
  if (theirs_.version != kChannelVersion) return Status::other_version;
  derive_key();
  return Status::done;
}

SignedChannel::Status SignedChannel::read(SignedMessage& message) {
  if (!has_key_) {
    const Status status = read_opening();
    if (status != Status::done) return status;
  }
  Status status = read_into(&header_, sizeof header_, got_header_);
  if (got_header_ >= sizeof header_.magic && header_.magic != kMessageMagic)
    return Status::nonsense;
  if (status != Status::done) return status;
  if (header_.bytes > (is_proved() ? kMaxSignedBytes : kMaxUnprovedBytes)) return Status::nonsense;
  if (side_ == Side::host && header_.kind == kOtherTokenKind && !is_proved())
    return Status::other_token;
  content_.resize(header_.bytes);
  status = read_into(content_.data(), content_.size(), got_content_);
  if (status != Status::done) return status;
  const Side other = side_ == Side::hub ? Side::host : Side::hub;
  const Digest expected = proof(other, received_, header_, content_);
  if (CRYPTO_memcmp(expected.data(), header_.proof.data(), expected.size()) != 0) {
    say_other_token();
    return Status::other_token;
  }
  ++received_;
  message = {header_.kind, std::move(content_)};
  content_.clear();
  got_header_ = 0;
  got_content_ = 0;
  return Status::done;
}

/// One attempt only: who it is for has nothing else coming.
void SignedChannel::say_other_token() {
  if (side_ != Side::hub) return;
  Header header;
  header.magic = kMessageMagic;
  header.kind = kOtherTokenKind;
  append(unsent_, header);
  write();
}

void SignedChannel::push(std::uint32_t kind, std::string content) {
  TUTTI_CHECK(content.size() <= kMaxSignedBytes && kind != kOtherTokenKind,
              "a message of kind {} and {} bytes", kind, content.size());
  waiting_.push_back({kind, std::move(content)});
}

SignedChannel::Status SignedChannel::write() {
  while (has_key_ && !waiting_.empty()) {
    const SignedMessage& next = waiting_.front();
    Header header{kMessageMagic, next.kind, next.content.size(), {}};
    header.proof = proof(side_, pushed_++, header, next.content);
    append(unsent_, header);
    unsent_ += next.content;
    waiting_.pop_front();
  }
  while (!unsent_.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::again;
    if (sent < 0) return Status::closed;
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
  return Status::done;
}

}  // namespace tutti
