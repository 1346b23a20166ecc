// Rounds of work in shares, on threads that stay from the first round to the last.
//
// Each thread has shares of its own, which keeps what they read in its own cache. Nothing depends on it: a
// thread that waits too long for a share that nobody has begun does it itself, so that rounds end however
// many threads come, and whenever.
#pragma once

#include <torchgraft/cpu.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace torchgraft::lltm::cpu {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Rounds {
 public:
  Rounds(int64_t shares, int64_t rounds) : rounds_(rounds), begun_(shares) {}

  // Takes part with the shares [begin, end): `run(share, round)` of each share once a round, after all of the
  // round before. To be called by every thread that takes part, and by one at least.
  template <typename Run>
  void take_part(int64_t begin, int64_t end, const Run& run) {
    const int64_t shares = static_cast<int64_t>(begun_.size());
    for (int64_t round = 0; round < rounds_; ++round) {
      for (int64_t share = begin; share < end; ++share) try_share(share, round, run);
      const int64_t all = (round + 1) * shares;
      for (int64_t waited = 0; done_.load(std::memory_order_acquire) < all; ++waited) {
        if (waited < kPatience) {
          pause();
          continue;
        }
        for (int64_t share = 0; share < shares; ++share) try_share(share, round, run);
        // What is left was begun by a thread that may want this one's core.
        std::this_thread::yield();
      }
    }
  }

 private:
  // Some tens of microseconds: far more than threads that run drift apart, far less than one that sleeps.
  static constexpr int64_t kPatience = 1 << 10;

  // On a cache line of its own: every thread writes its own shares' each round.
  struct alignas(64) Begun {
    std::atomic<int64_t> rounds{0};
  };

  template <typename Run>
  void try_share(int64_t share, int64_t round, const Run& run) {
    int64_t expected = round;
    if (begun_[share].rounds.compare_exchange_strong(expected, round + 1, std::memory_order_relaxed)) {
      run(share, round);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  const int64_t rounds_;
  std::vector<Begun> begun_;
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace torchgraft::lltm::cpu
