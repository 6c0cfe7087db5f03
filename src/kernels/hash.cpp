#include "kernels/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include "base/check.h"

namespace tutti {

std::uint64_t digest(const void* data, std::size_t bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  TUTTI_CHECK(state_->context && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
              "OpenSSL offers no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::update(const void* data, std::size_t bytes) {
  TUTTI_CHECK(state_ != nullptr, "SHA-256 after its end");
  TUTTI_CHECK(EVP_DigestUpdate(state_->context, data, bytes) == 1, "SHA-256 of {} bytes", bytes);
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> hash{};
  TUTTI_CHECK(state_ != nullptr, "SHA-256 after its end");
  TUTTI_CHECK(EVP_DigestFinal_ex(state_->context, hash.data(), nullptr) == 1, "end of SHA-256");
  state_.reset();
  std::string text;
  for (const unsigned char byte : hash) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace tutti
