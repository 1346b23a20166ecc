// Fibres: how a thread of the device begins, waits, continues, finishes, and fails.
//
// A fibre runs until it must wait for others. Then it goes back to the scheduler, which enters another one.
// Nothing else runs meanwhile, so that the emulator needs no locks.

#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "machine.h"

namespace emulation {
namespace {

// Tells races.cpp whose accesses it sees from now on.
void watch_fibre(const Fibre& fibre) {
  const Machine& m = machine();
  watched.on = true;
  watched.arena = reinterpret_cast<const char*>(fibre.block->arena);
  watched.arena_bytes = kArenaBytes;
  watched.stack = fibre.stack;
  watched.stack_bytes = kStackBytes;
  watched.meetings = reinterpret_cast<const char*>(m.meetings);
  watched.meeting_bytes = m.meetings == nullptr ? 0 : Machine::kMostMeetings * sizeof(Meeting);
  watched.block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  watched.thread = fibre.rank;
  watched.epoch = &fibre.block->epoch;
  watched.warp_epoch = &fibre.warp->epoch;
}

void finish_fibre() {
  Fibre& fibre = running();
  wait_for_all_copies();
  fibre.state = State::finished;
  ++fibre.block->finished;
  leave_warp(fibre);
}

// The first function on the stack of a fibre.
void fibre_entry() {
  Machine& m = machine();
  sanitizer::after_switch(nullptr, &m.scheduler_bottom, &m.scheduler_bytes);
  (*m.body)();
  finish_fibre();
  leave_fibre(true);
  std::abort();
}

}  // namespace

void begin_fibre(Fibre& fibre) {
  fibre.state = State::ready;
  fibre.meeting = nullptr;
  fibre.copies.clear();
  fibre.copies.emplace_back();
  prepare_context(fibre.context, fibre.stack, fibre_entry);
}

void enter_fibre(Fibre& fibre) {
  Machine& m = machine();
  m.running = &fibre;
  threadIdx = fibre.thread;
  blockIdx = fibre.block->index;
  watch_fibre(fibre);
  sanitizer::before_switch(&m.sanitizer_stack, fibre.stack, kStackBytes);
  switch_context(m.scheduler, fibre.context);
  sanitizer::after_switch(m.sanitizer_stack);
  m.running = nullptr;
  watched.on = false;
}

void leave_fibre(bool for_good) {
  settle_write();
  Machine& m = machine();
  Fibre& fibre = *m.running;
  sanitizer::before_switch(for_good ? nullptr : &fibre.sanitizer_stack, m.scheduler_bottom,
                           m.scheduler_bytes);
  switch_context(fibre.context, m.scheduler);
  sanitizer::after_switch(fibre.sanitizer_stack);
}

void wait(const char* what) {
  Fibre& fibre = running();
  fibre.state = State::waiting;
  fibre.waits_for = what;
  leave_fibre(false);
}

void wake_all(Block& block, const char* what) {
  for (Fibre* fibre : block.fibres) {
    if (fibre->state == State::waiting && fibre->waits_for == what) wake(*fibre);
  }
}

void pause() {
  machine().paused = true;
  leave_fibre(false);
}

void fail(const std::string& message) {
  Machine& m = machine();
  if (m.running == nullptr) throw std::runtime_error("emulation: " + message);
  m.failed = true;
  const uint3& block = m.running->block->index;
  const uint3& thread = m.running->thread;
  std::ostringstream text;
  text << message << " (block " << block.x << ", " << block.y << ", " << block.z << ", thread " << thread.x
       << ", " << thread.y << ", " << thread.z << ")";
  m.failure = text.str();
  leave_fibre(false);
  std::abort();
}

}  // namespace emulation
