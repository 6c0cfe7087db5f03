#pragma once

// The ways for messages between pairs of a group's members: for each direction a group of the two,
// in which a message is an operation. So messages of one direction are in the order of their calls,
// whatever goes the other way or between other members.
//
// Threads: as Group. Failure: that of groups. What fails in one direction ends that one alone; what
// fails while ways are made ends the group that they are of.

#include <map>
#include <memory>
#include <span>
#include <utility>

namespace tutti {

class GroupState;

class Channels {
 public:
  /// Keeps a reference.
  explicit Channels(const GroupState& group) : group_(group) {}

  /// InvalidArgument where one is not two members.
  void check(std::span<const std::pair<int, int>> pairs) const;
  /// Makes those that this member is one of and has not, in the order of the list. Where there
  /// are links between hosts they are made at once: later a member may wait for one while another
  /// waits for this member.
  void connect(std::span<const std::pair<int, int>> pairs);
  /// The way from one member to another, one of whom is this one. InvalidArgument where there is
  /// none.
  const std::shared_ptr<GroupState>& way(int from, int to) const;

 private:
  std::shared_ptr<GroupState> make(int from, int to) const;

  const GroupState& group_;
  std::map<std::pair<int, int>, std::shared_ptr<GroupState>> ways_;  ///< from, to
};

}  // namespace tutti
