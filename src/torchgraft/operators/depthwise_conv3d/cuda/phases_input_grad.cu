// Input gradient of contiguous volumes with stride 2, for halves and float32: by phases (phases.cuh).
//
// A thread owns a run of eight neighbouring results of a row, and with them those in all phases of the height
// and, where all strides are 2, of the depth: up to 32 sums in registers. A block owns a part of one volume.
// Sources come through the caches: the window of a run is loaded once for all phases. The weights of a
// channel lie in shared memory, which all threads read at the same place.
//
// Runs begin at multiples of eight results, so that they are stored as vectors. Where rows are no whole
// vectors, a warp exchanges its results in shared memory, and neighbouring lanes store neighbouring results.
//
// Measured on an H200 for float32 (2,472,16x16x16), k 5: 104 us, 2.7 times the time of a copy; a thread for
// each result took up to 80 times that time. What should bound it are the instructions of a thread, of which
// a third are multiply-adds where rows are odd.
#include "phases.cuh"
#include "staging.cuh"

#include <torchgraft/packed.cuh>

namespace torchgraft::depthwise::volumes {
namespace {

constexpr int kThreads = 128;
constexpr int kRun = 8;
constexpr int kLanes = 32;

struct PhasesParameters {
  PhaseExtent depth, height;
  int source_columns, result_columns;
  int first_source;  // of the first run: that of its first result's quotient
  int items;         // of a volume
  bool stores_vectors;
  FastDivisor channels, parts, runs, row_items;

  // The distance of a phase of depth and height from the first one.
  template <typename Traits>
  __device__ int place_of(int phase) const {
    return (phase / Traits::kRowPhases * height.results + phase % Traits::kRowPhases) * result_columns;
  }
};

// kLag is the phase of the first result of a run.
template <typename T_, int kWide_, int kStride_, int kLag_, int kRowPhases_, int kPlanePhases_>
struct PhasesTraits {
  using T = T_;
  static constexpr int kWide = kWide_, kStride = kStride_, kLag = kLag_;
  static constexpr int kRowPhases = kRowPhases_, kPlanePhases = kPlanePhases_;
  static constexpr int kPhases = kPlanePhases * kRowPhases;  // of depth and height together
  // Sources in front of that of the first result's quotient, and all of them.
  static constexpr int kBefore = kWide > kLag ? (kWide - 1 - kLag) / kStride : 0;
  static constexpr int kSources = kBefore + (kRun - 1 + kLag) / kStride + 1;
  static constexpr int kCells = kRun / kStride;
  // Rows of weights begin where four are read at once.
  static constexpr int kPitch = round_up(kWide, 4);
  static constexpr int kWeights = kMostSide * kMostSide * kPitch;

  // The tap by which a source counts for a result of the run; outside of the kernel there is none.
  static constexpr int tap(int source, int result) { return kLag + result - kStride * (source - kBefore); }
  static constexpr bool meets(int source, int result) {
    return tap(source, result) >= 0 && tap(source, result) < kWide;
  }
};

template <typename Traits>
using PhasesSums = float[Traits::kPlanePhases][Traits::kRowPhases][kRun];

// The sources of a run, of one row, of which the first is `from`, in column `first`; zero where they lie
// outside. Only those in front of the first result's quotient may lie in front of the row.
template <typename Traits>
__device__ __forceinline__ void load_run(const typename Traits::T* from, int first, int columns,
                                         float (&values)[Traits::kSources]) {
  using T = typename Traits::T;
  T read[Traits::kSources];
#pragma unroll
  for (int i = 0; i < Traits::kSources; ++i) {
    read[i] = T{};
    if (i < columns - first && (i >= Traits::kBefore || first + i >= 0)) read[i] = from[i];
  }
#pragma unroll
  for (int i = 0; i < Traits::kSources; ++i) values[i] = widened(read[i]);
}

// Adds the sources of a row to the sums of one phase of depth and height.
template <typename Traits>
__device__ __forceinline__ void add_run(const float (&values)[Traits::kSources], const float* weights,
                                        float (&sums)[kRun]) {
  float taps[Traits::kPitch];
#pragma unroll
  for (int i = 0; i < Traits::kPitch; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + i);
    taps[i] = four.x;
    taps[i + 1] = four.y;
    taps[i + 2] = four.z;
    taps[i + 3] = four.w;
  }
#pragma unroll
  for (int i = 0; i < Traits::kSources; ++i) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (Traits::meets(i, j)) sums[j] = fmaf(values[i], taps[Traits::tap(i, j)], sums[j]);
    }
  }
}

// Adds every row of the sources that counts for a thread's results.
template <typename Traits>
__device__ __forceinline__ void add_rows(const typename Traits::T* volume, const float* weights,
                                         const PhasesParameters& parameters, const PhaseItem& deep,
                                         const PhaseItem& down, int first_column, PhasesSums<Traits>& sums) {
  const PhaseExtent &depth = parameters.depth, &height = parameters.height;
  const int columns = parameters.source_columns;
  int plane = deep.source;
#pragma unroll 1
  for (int plane_tap = deep.tap; plane_tap < depth.kernel && plane >= 0; plane_tap += depth.stride, --plane) {
    int row = down.source, place = (plane * height.sources + row) * columns + first_column;
    const float* of_row = weights + (plane_tap * height.kernel + down.tap) * Traits::kPitch;
#pragma unroll 1
    for (int row_tap = down.tap; row_tap < height.kernel && row >= 0;
         row_tap += height.stride, --row, place -= columns, of_row += height.stride * Traits::kPitch) {
      float values[Traits::kSources];
      load_run<Traits>(volume + place, first_column, columns, values);
#pragma unroll
      for (int i = 0; i < Traits::kPlanePhases; ++i) {
#pragma unroll
        for (int j = 0; j < Traits::kRowPhases; ++j) {
          if (plane_tap + i >= depth.kernel || row_tap + j >= height.kernel) continue;
          add_run<Traits>(values, of_row + (i * height.kernel + j) * Traits::kPitch, sums[i][j]);
        }
      }
    }
  }
}

// Where the results of a thread lie: the first one of all phases, the phases that lie inside, a bit each, and
// how many columns of a run do.
struct PhasesPlace {
  int first, count;
  unsigned phases;
};

// Stores runs as vectors.
template <typename Traits>
__device__ __forceinline__ void store_vectors(const PhasesSums<Traits>& sums,
                                              const PhasesParameters& parameters, const PhasesPlace& place,
                                              typename Traits::T* volume) {
  using T = typename Traits::T;
  constexpr int kVector = kVectorElements<T>;
#pragma unroll
  for (int phase = 0; phase < Traits::kPhases; ++phase) {
    if ((place.phases >> phase & 1) == 0) continue;
    T* const run = volume + place.first + parameters.place_of<Traits>(phase);
#pragma unroll
    for (int i = 0; i < kRun; i += kVector) {
      if (i >= place.count) continue;
      float piece[kVector];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        piece[j] = sums[phase / Traits::kRowPhases][phase % Traits::kRowPhases][i + j];
      }
      Packed<T, kVector>(piece).store(run + i);
    }
  }
}

// Stores runs one result after the other, neighbouring ones by neighbouring lanes: a warp exchanges them in
// `of_warp`, its part of shared memory. All its lanes come here together.
template <typename Traits>
__device__ __forceinline__ void store_exchanged(const PhasesSums<Traits>& sums,
                                                const PhasesParameters& parameters, const PhasesPlace& place,
                                                typename Traits::T* of_warp, typename Traits::T* volume) {
  using T = typename Traits::T;
  constexpr int kVector = kVectorElements<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, of_run = lane % kRun;
#pragma unroll
  for (int phase = 0; phase < Traits::kPhases; ++phase) {
#pragma unroll
    for (int i = 0; i < kRun; i += kVector) {
      Vector<T, kVector> piece;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        piece[j] = static_cast<T>(sums[phase / Traits::kRowPhases][phase % Traits::kRowPhases][i + j]);
      }
      *reinterpret_cast<Vector<T, kVector>*>(of_warp + (phase * kLanes + lane) * kRun + i) = piece;
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const int owner = i * (kLanes / kRun) + lane / kRun;
    const int first = __shfl_sync(0xffffffff, place.first, owner) + of_run;
    const int count = __shfl_sync(0xffffffff, place.count, owner);
    const unsigned all_phases = __shfl_sync(0xffffffff, place.phases, owner);
    const unsigned phases = of_run < count ? all_phases : 0;
#pragma unroll
    for (int phase = 0; phase < Traits::kPhases; ++phase) {
      if ((phases >> phase & 1) == 0) continue;
      volume[first + parameters.place_of<Traits>(phase)] = of_warp[(phase * kRun + i) * kLanes + lane];
    }
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kThreads)
    phases_input_grad(const typename Traits::T* __restrict__ source, Rounded<typename Traits::T> weight,
                      typename Traits::T* __restrict__ result,
                      const __grid_constant__ PhasesParameters parameters) {
  using T = typename Traits::T;
  __shared__ __align__(16) float weights[Traits::kWeights];
  __shared__ __align__(16) T staged[Traits::kPhases * kThreads * kRun];
  const PhaseExtent &depth = parameters.depth, &height = parameters.height;
  const int block = static_cast<int>(blockIdx.x), volume = parameters.parts.divide(block);
  const int part = block - volume * parameters.parts.divisor();
  const int channel = volume - parameters.channels.divide(volume) * parameters.channels.divisor();
  const int taps = depth.kernel * height.kernel * Traits::kWide;
  for (int i = static_cast<int>(threadIdx.x); i < taps; i += static_cast<int>(blockDim.x)) {
    const int row = i / Traits::kWide;
    weights[row * Traits::kPitch + i - row * Traits::kWide] =
        weight[static_cast<int64_t>(channel) * taps + i];
  }
  __syncthreads();

  // Threads behind the last item store with the others of their warp, but nothing of their own.
  const int item = part * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  const bool has_item = item < parameters.items;
  const int line = parameters.runs.divide(item), run = item - line * parameters.runs.divisor();
  const int of_depth = parameters.row_items.divide(line);
  const PhaseItem deep = PhaseItem::of<Traits::kPlanePhases>(depth, of_depth).within(depth);
  const PhaseItem down =
      PhaseItem::of<Traits::kRowPhases>(height, line - of_depth * parameters.row_items.divisor())
          .within(height);
  float sums[Traits::kPlanePhases][Traits::kRowPhases][kRun] = {};
  if (has_item) {
    const T* const sources =
        source + static_cast<int64_t>(volume) * depth.sources * height.sources * parameters.source_columns;
    add_rows<Traits>(sources, weights, parameters, deep, down,
                     parameters.first_source + run * Traits::kCells - Traits::kBefore, sums);
  }
  T* const results =
      result + static_cast<int64_t>(volume) * depth.results * height.results * parameters.result_columns;
  PhasesPlace place = {(deep.result * height.results + down.result) * parameters.result_columns + run * kRun,
                       min(parameters.result_columns - run * kRun, kRun), 0};
#pragma unroll
  for (int phase = 0; phase < Traits::kPhases; ++phase) {
    const int plane = deep.result + phase / Traits::kRowPhases,
              row = down.result + phase % Traits::kRowPhases;
    const bool is_there = has_item && is_inside(plane, depth.results) && is_inside(row, height.results);
    place.phases |= is_there ? 1u << phase : 0;
  }
  if (parameters.stores_vectors) {
    store_vectors<Traits>(sums, parameters, place, results);
  } else {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    store_exchanged<Traits>(sums, parameters, place, staged + warp * (Traits::kPhases * kLanes * kRun),
                            results);
  }
}

template <typename Traits>
void launch(const Correlation<typename Traits::T>& pass) {
  using T = typename Traits::T;
  const Geometry& geometry = pass.geometry;
  const Extent& width = geometry.width;
  PhasesParameters parameters = {};
  parameters.depth = PhaseExtent(geometry.depth);
  parameters.height = PhaseExtent(geometry.height);
  parameters.source_columns = static_cast<int>(width.output);
  parameters.result_columns = static_cast<int>(width.input);
  parameters.first_source = static_cast<int>(width.padding) / Traits::kStride;
  parameters.stores_vectors = width.input % kVectorElements<T> == 0 && is_aligned(pass.result, 16);
  const int runs = ceil_divide(parameters.result_columns, kRun);
  const int row_items = parameters.height.items(Traits::kRowPhases);
  parameters.items = runs * row_items * parameters.depth.items(Traits::kPlanePhases);
  // Blocks of small volumes are smaller: no warp is without work.
  const int threads = std::min(kThreads, round_up(parameters.items, kLanes));
  const int parts = ceil_divide(parameters.items, threads);
  parameters.channels = FastDivisor(static_cast<int>(geometry.channels));
  parameters.parts = FastDivisor(parts);
  parameters.runs = FastDivisor(runs);
  parameters.row_items = FastDivisor(row_items);
  const unsigned grid = grid_of(geometry.batch * geometry.channels * parts, pass.name());
  phases_input_grad<Traits>
      <<<grid, threads, 0, pass.stream>>>(pass.source, pass.weight, pass.result, parameters);
  check_launch(pass.name());
}

}  // namespace

template <typename T>
void launch_phases(const Correlation<T>& pass) {
  with_phases(pass.geometry, [&]<int kWide, int kStride, int kRowPhases>() {
    const auto launch_with = [&]<int kLag>() {
      // Planes are paired where all strides are 2, as networks have them.
      if constexpr (kStride == 2 && kRowPhases == 2) {
        if (pass.geometry.depth.stride == 2) {
          return launch<PhasesTraits<T, kWide, kStride, kLag, kRowPhases, 2>>(pass);
        }
      }
      launch<PhasesTraits<T, kWide, kStride, kLag, kRowPhases, 1>>(pass);
    };
    if constexpr (kStride == 2) {
      if (pass.geometry.width.padding % 2 != 0) return launch_with.template operator()<1>();
    }
    launch_with.template operator()<0>();
  });
}

template void launch_phases(const Correlation<float>&);
template void launch_phases(const Correlation<Half>&);
template void launch_phases(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::volumes
