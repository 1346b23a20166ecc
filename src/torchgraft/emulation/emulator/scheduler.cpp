// The scheduler: the order in which threads run.
//
// A warp runs as far as it can before the next one does, so that warps are far apart and a barrier that is
// missing between them shows. With a seed, warps and lanes run in an order that is drawn again each time.

#include <algorithm>
#include <map>
#include <sstream>

#include "machine.h"

namespace emulation {
namespace {

// Runs each lane of a warp that is ready, once. Whether there was one.
bool run_ready_lanes(const std::vector<Fibre*>& lanes) {
  bool ran = false;
  for (Fibre* fibre : lanes) {
    if (fibre->state != State::ready) continue;
    enter_fibre(*fibre);
    ran = true;
    if (machine().failed) break;
  }
  return ran;
}

bool run_lanes_in_turn(const Warp& warp) {
  Machine& m = machine();
  if (!m.shuffled) return run_ready_lanes(warp.lanes);
  std::vector<Fibre*> lanes = warp.lanes;
  std::shuffle(lanes.begin(), lanes.end(), m.random);
  return run_ready_lanes(lanes);
}

// Runs a warp until all its lanes wait, or one of them pauses. Whether any lane ran.
bool run_warp(const Warp& warp) {
  Machine& m = machine();
  bool ran = false;
  while (true) {
    const bool moved = run_lanes_in_turn(warp);
    ran |= moved;
    if (m.failed) return ran;
    if (std::exchange(m.paused, false) || (m.shuffled && m.random() % 4 == 0) || !moved) return ran;
  }
}

size_t count_unfinished(const std::vector<Block*>& blocks) {
  size_t left = 0;
  for (const Block* block : blocks) left += block->fibres.size() - static_cast<size_t>(block->finished);
  return left;
}

std::string describe(const Fibre& fibre) {
  std::ostringstream text;
  text << fibre.waits_for;
  if (fibre.meeting != nullptr) text << " of lanes 0x" << std::hex << fibre.meeting->lanes;
  return text.str();
}

// Which threads wait for what, for a person to read.
std::string describe_waiting(const std::vector<Block*>& blocks) {
  std::map<std::string, int> groups;
  std::ostringstream first;
  int finished = 0, shown = 0;
  for (const Block* block : blocks) {
    for (const Fibre* fibre : block->fibres) {
      if (fibre->state == State::finished) {
        ++finished;
        continue;
      }
      const std::string what = describe(*fibre);
      ++groups[what];
      if (shown++ >= 3) continue;
      const uint3& thread = fibre->thread;
      first << " thread (" << thread.x << ", " << thread.y << ", " << thread.z << ") at " << what << ";";
    }
  }
  std::ostringstream text;
  text << "threads wait for each other in vain:";
  for (const auto& [what, count] : groups) text << " " << count << " at " << what << ",";
  text << " " << finished << " have returned; the first of those that wait:" << first.str();
  return text.str();
}

}  // namespace

void run_blocks(const std::vector<Block*>& blocks) {
  Machine& m = machine();
  std::vector<const Warp*> warps;
  for (const Block* block : blocks) {
    for (const Warp& warp : block->warps) warps.push_back(&warp);
  }
  while (count_unfinished(blocks) > 0) {
    bool ran = false;
    if (m.shuffled) std::shuffle(warps.begin(), warps.end(), m.random);
    for (const Warp* warp : warps) {
      ran |= run_warp(*warp);
      if (m.failed) return;
    }
    if (ran) continue;
    m.failed = true;
    m.failure = describe_waiting(blocks);
    return;
  }
}

}  // namespace emulation
