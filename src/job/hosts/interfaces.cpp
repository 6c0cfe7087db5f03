#include "job/hosts/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/file_descriptor.h"
#include "tutti/error.h"

namespace tutti {
namespace {

struct InterfaceAddress {
  std::string interface;
  std::string address;
  int preference;  ///< 0 IPv4, 1 IPv6, 2 IPv6 of the link alone
};

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0)
    throw IoError(errno, fmt::format("cannot list the network interfaces of this host: {}",
                                     error_text(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const bool is_6 = family == AF_INET6;
    char text[NI_MAXHOST] = "";
    const auto bytes = is_6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (::getnameinfo(each->ifa_addr, static_cast<socklen_t>(bytes), text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) != 0)
      continue;
    int preference = is_6 ? 1 : 0;
    if (is_6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(each->ifa_addr)->sin6_addr))
      preference = 2;
    all.push_back({each->ifa_name, text, preference});
  }
  return all;
}

}  // namespace

std::string address_of_interface(const std::string& name) {
  auto all = interface_addresses();
  std::erase_if(all, [&](const InterfaceAddress& each) { return each.interface != name; });
  if (all.empty())
    throw InvalidArgument(
        fmt::format("there is no interface \"{}\" with an address that is up; "
                    "there are: {}",
                    name, interfaces_text()));
  return std::ranges::min_element(all, {}, &InterfaceAddress::preference)->address;
}

std::string address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(peer.c_str(), "9", &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* first) {
    if (first != nullptr) ::freeaddrinfo(first);
  });
  for (const addrinfo* each = error == 0 ? found : nullptr; each != nullptr; each = each->ai_next) {
    const FileDescriptor socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t bytes = sizeof own;
    char text[NI_MAXHOST] = "";
    if (::connect(socket.get(), each->ai_addr, each->ai_addrlen) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &bytes) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&own), bytes, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0)
      return text;
  }
  throw InvalidArgument(fmt::format("this host has no way to \"{}\" ({})", peer,
                                    error != 0 ? ::gai_strerror(error) : error_text(errno)));
}

std::string interfaces_text() {
  std::vector<std::string> texts;
  for (const auto& each : interface_addresses())
    texts.push_back(fmt::format("{} {}", each.interface, each.address));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace tutti
