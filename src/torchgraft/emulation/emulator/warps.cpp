// Warps: what the lanes of a warp execute together.
//
// Each instruction of a warp is a meeting. Its first lane opens the meeting, every lane leaves its operand
// there and waits, and the last one executes the instruction for all of them. Lanes that have returned are
// not waited for.

#include <algorithm>

#include "machine.h"

namespace emulation {
namespace {

Meeting* make_meeting() {
  Machine& m = machine();
  if (m.meetings == nullptr) {
    m.meetings = static_cast<Meeting*>(map_memory(Machine::kMostMeetings * sizeof(Meeting)));
  }
  if (m.made_meetings == Machine::kMostMeetings) fail("too many meetings of warps");
  return new (m.meetings + m.made_meetings++) Meeting;
}

// The open meeting that a lane comes to: it must be for the same instruction and lanes. Null: there is none.
Meeting* find_meeting(const Warp& warp, const char* instruction, unsigned lanes, unsigned self) {
  Meeting* found = nullptr;
  for (Meeting* each : warp.open) {
    const bool is_same = each->lanes == lanes && (each->here & self) == 0;
    if (is_same && std::strcmp(each->instruction, instruction) == 0) found = each;
  }
  return found;
}

Meeting* open_meeting(Warp& warp) {
  if (warp.unused.empty()) {
    warp.all.push_back(make_meeting());
    warp.unused.push_back(warp.all.back());
  }
  Meeting* meeting = warp.unused.back();
  warp.unused.pop_back();
  meeting->here = meeting->leaving = 0;
  meeting->complete = false;
  warp.open.push_back(meeting);
  return meeting;
}

void complete_if_all_are_there(Warp& warp, Meeting& meeting) {
  const unsigned missing = meeting.lanes & ~meeting.here;
  if ((missing & ~warp.finished) != 0) return;
  if (missing != 0 && meeting.aligned) {
    fail(std::string(meeting.instruction) + ": lanes of the warp have returned");
  }
  warp.open.erase(std::find(warp.open.begin(), warp.open.end(), &meeting));
  if (meeting.execute != nullptr) {
    watched.together = meeting.place;
    meeting.execute(meeting);
    settle_write();
    watched.together = nullptr;
  }
  if (meeting.orders && (meeting.here | warp.finished) == kAllLanes) ++warp.epoch;
  meeting.complete = true;
  meeting.leaving = meeting.here;
  for (Fibre* fibre : warp.lanes) {
    if (fibre->meeting == &meeting) wake(*fibre);
  }
}

}  // namespace

void leave_warp(Fibre& fibre) {
  Warp& warp = *fibre.warp;
  warp.finished |= 1u << fibre.lane;
  const std::vector<Meeting*> open = warp.open;
  for (Meeting* meeting : open) complete_if_all_are_there(warp, *meeting);
}

int lane() { return running().lane; }

Meeting& meet(const char* instruction, unsigned lanes, const void* operand, size_t bytes, Execute execute,
              bool aligned) {
  Fibre& fibre = running();
  Warp& warp = *fibre.warp;
  const unsigned self = 1u << fibre.lane;
  if ((lanes & self) == 0) fail(std::string(instruction) + ": the lane is not in its mask");
  Meeting* meeting = find_meeting(warp, instruction, lanes, self);
  if (meeting == nullptr) {
    meeting = open_meeting(warp);
    meeting->instruction = instruction;
    meeting->lanes = lanes;
    meeting->execute = execute;
    meeting->aligned = aligned;
    meeting->place = __builtin_return_address(0);
    meeting->orders = execute == nullptr && bytes == 0;
  }
  meeting->here |= self;
  if (bytes > 0) std::memcpy(meeting->operands[fibre.lane], operand, bytes);
  complete_if_all_are_there(warp, *meeting);
  fibre.meeting = meeting;
  if (!meeting->complete) wait(instruction);
  fibre.meeting = nullptr;
  return *meeting;
}

void part(Meeting& meeting) {
  Fibre& fibre = running();
  meeting.leaving &= ~(1u << fibre.lane);
  if (meeting.leaving == 0) fibre.warp->unused.push_back(&meeting);
}

}  // namespace emulation
