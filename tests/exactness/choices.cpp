#include "exactness/choices.h"

#include <algorithm>
#include <stdexcept>

namespace tutti::test::exact {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t number_of(std::uint64_t seed, std::uint64_t a, std::uint64_t b,
                        std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return mix(mix(mix(mix(seed) ^ a) ^ b) ^ hash);
}

Choices::Choices(std::uint64_t seed, std::uint64_t number, Fixed fixed)
    : seed_(seed), number_(number), fixed_(std::move(fixed)) {}

std::uint64_t Choices::draw(const std::string& name) const {
  return number_of(seed_, number_, 0, name);
}

std::string Choices::of(const std::string& name, const std::vector<std::string>& options) {
  auto value = options[draw(name) % options.size()];
  if (const auto fixed = fixed_.find(name); fixed != fixed_.end()) {
    value = fixed->second;
    if (std::find(options.begin(), options.end(), value) == options.end()) {
      throw std::invalid_argument(name + "=" + value + ": there is no such option here");
    }
  }
  note(name, value, options.front());
  return value;
}

std::int64_t Choices::between(const std::string& name, std::int64_t plain, std::int64_t most) {
  const auto range = static_cast<std::uint64_t>(most - plain) + 1;
  auto value = plain + static_cast<std::int64_t>(draw(name) % range);
  if (const auto fixed = fixed_.find(name); fixed != fixed_.end()) {
    value = std::stoll(fixed->second);
    if (value < plain || value > most) {
      throw std::invalid_argument(name + "=" + fixed->second + ": must be from " +
                                  std::to_string(plain) + " to " + std::to_string(most));
    }
  }
  note(name, std::to_string(value), std::to_string(plain));
  return value;
}

bool Choices::chance(const std::string& name, std::uint64_t percent) {
  bool value = draw(name) % 100 < percent;
  if (const auto fixed = fixed_.find(name); fixed != fixed_.end()) value = fixed->second == "yes";
  note(name, value ? "yes" : "no", "no");
  return value;
}

void Choices::note(const std::string& name, std::string value, std::string plain) {
  if (!made_.emplace(name, Choice{std::move(value), std::move(plain)}).second) {
    throw std::logic_error("the choice \"" + name + "\" is made twice");
  }
  order_.push_back(name);
}

const std::string& Choices::operator[](const std::string& name) const {
  const auto made = made_.find(name);
  if (made == made_.end()) throw std::invalid_argument("there is no choice \"" + name + "\"");
  return made->second.value;
}

std::int64_t Choices::number(const std::string& name) const { return std::stoll((*this)[name]); }

const std::string& Choices::plain(const std::string& name) const { return made_.at(name).plain; }

std::vector<std::string> Choices::unusual() const {
  std::vector<std::string> names;
  for (const auto& name : order_) {
    if (made_.at(name).value != made_.at(name).plain) names.push_back(name);
  }
  return names;
}

std::string Choices::text() const {
  std::string text;
  for (const auto& name : unusual()) text += (text.empty() ? "" : " ") + name + "=" + (*this)[name];
  return text;
}

void Choices::require_all_used() const {
  for (const auto& [name, value] : fixed_) static_cast<void>((*this)[name]);
}

}  // namespace tutti::test::exact
