#pragma once

// What a Group handle points to: a Communicator, and what its members travel by.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tutti/group.h"

namespace tutti {

class Channels;
class HostLink;
class PostedPieces;

/// Ranks of all workers of the job.
std::vector<int> all_ranks(const Job& job);

class GroupState : public Communicator {
 public:
  GroupState(std::shared_ptr<JobState> job, std::vector<int> ranks, std::string name,
             const GroupOptions& options, std::function<void()> check = {});
  ~GroupState();

  /// See Group::connect.
  Channels& channels() const { return *channels_; }
  /// What the group's collectives and copies travel by; not of a group on one host.
  HostLink& link() const { return *link_; }
  /// The pieces that copy_to_hosts() has under way; not of a group on one host.
  PostedPieces& copies() const { return *copies_; }

 private:
  std::unique_ptr<Channels> channels_;
  std::unique_ptr<PostedPieces> copies_;
  std::unique_ptr<HostLink> link_;  ///< last, so that its operations end first
};

}  // namespace tutti
