#pragma once

// The ways for messages between pairs of a group's members: for each direction a group of the two,
// in which a message is an operation. So messages of one direction are in the order of their calls,
// whatever goes the other way or between other members.
//
// Threads: as Group. Failure: that of groups. What fails in one direction ends that one alone; what
// fails while ways are made ends the group that they are of.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

class Communicator;
class GroupState;

class Channels {
 public:
  /// Makes the group of a way, with its link where it needs one; `check`: see LocalGroup.
  using Make = std::function<std::shared_ptr<GroupState>(std::vector<int> ranks, std::string name,
                                                         const std::function<void()>& check)>;
  /// Keeps a reference.
  Channels(const Communicator& group, Make make) : group_(group), make_(std::move(make)) {}

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
  std::shared_ptr<GroupState> new_way(int from, int to) const;

  const Communicator& group_;
  Make make_;
  std::map<std::pair<int, int>, std::shared_ptr<GroupState>> ways_;  ///< from, to
};

}  // namespace tutti
