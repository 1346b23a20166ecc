// Rounds of work in shares, on threads that stay from the first round to the last.
//
// Each thread has shares of its own, which keeps what they read in its own cache. Nothing depends on it: a
// thread that waits too long for a share that nobody has begun does it itself, so that rounds end however
// many threads come, and whenever.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "cpu_products.h"

namespace torchgraft {

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
        // Shares that are left were begun by a thread that may want this one's core.
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

// The rounds of a recurrence: in each all rows of the batch are multiplied by all weights between units.
struct RoundsOf {
  int64_t rounds;
  int64_t rows;
  int64_t units;
  int64_t panel;  // units of the widest panel
  int64_t weights;
  int64_t weight_bytes;
};

// How many shares of the units the threads have; 1 where they had better share out the rows of the batch.
//
// Threads that share out units meet each round, and each reads its share of the weights from its own cache.
// Threads that share out rows never meet, and each reads all weights each round: that is slow where they do
// not fit a cache, and where rows are so few that a round is mostly reading.
inline int64_t unit_shares(const RoundsOf& work, int64_t panels) {
  constexpr int64_t kCacheBytes = 1 << 20;
  constexpr int64_t kFewRows = 8;  // a thread
  // Products of a share and a round: they take some microseconds, and a meeting some hundred nanoseconds.
  constexpr int64_t kProducts = 1 << 16;
  const int64_t threads = torch::stable::get_num_threads();
  const bool rows_are_few = work.rows < kFewRows * threads;
  const bool weights_are_many = work.weight_bytes > kCacheBytes;
  if (!rows_are_few && !weights_are_many) return 1;
  return std::min({threads, panels, work.weights * work.rows / kProducts});
}

// Calls `run(share, begin, end)` with shares that together are all rows and units, and rounds that together
// are all.
template <typename Run>
void run_rounds(const RoundsOf& work, const Run& run) {
  using cpu_products::Share;
  const int64_t panels = (work.units + work.panel - 1) / work.panel;
  const int64_t shares = unit_shares(work, panels);
  if (shares <= 1) {
    const int64_t products = work.rounds * work.weights;
    parallel_for(0, work.rows, std::max<int64_t>(1, cpu_products::kProductsGrain / products),
                 [&](int64_t begin, int64_t end) { run(Share{begin, end, 0, work.units}, 0, work.rounds); });
    return;
  }
  const auto first_unit = [&](int64_t share) {
    return std::min(work.units, panels * share / shares * work.panel);
  };
  Rounds together(shares, work.rounds);
  parallel_for(0, shares, 1, [&](int64_t begin, int64_t end) {
    together.take_part(begin, end, [&](int64_t share, int64_t round) {
      run(Share{0, work.rows, first_unit(share), first_unit(share + 1)}, round, round + 1);
    });
  });
}

// The least weights that a thread packs.
inline constexpr int64_t kPackedGrain = 1 << 16;

// Calls `pack(begin, end)` with ranges of the units, of whole panels, that together are all.
template <typename Pack>
void pack_units(const RoundsOf& work, const Pack& pack) {
  const int64_t panels = (work.units + work.panel - 1) / work.panel;
  const int64_t weights = std::max<int64_t>(1, work.weights / panels);
  parallel_for(0, panels, std::max<int64_t>(1, kPackedGrain / weights), [&](int64_t begin, int64_t end) {
    pack(begin * work.panel, std::min(work.units, end * work.panel));
  });
}

}  // namespace torchgraft
