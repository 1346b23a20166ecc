// Forward pass of stride 1 and 2 and input gradient of stride 1 of NHWC halves on tensor cores, kernels of up
// to 7 x 7 taps: nothing is converted or transposed, and warps slide down the image.
//
// A block owns some channels of a stretch of columns, or of several whole images side by side. Their rows are
// one sequence, cut into as many ranges as blocks are resident at once, and come eight bytes a copy into a
// ring of rows in shared memory, asynchronously and some rows ahead. A warp owns four channels of kTiles x 16
// pairs. It multiplies a source row, read once, into every row of results that the row reaches: their sums
// stay in registers. Finished rows go through shared memory, and a thread stores sixteen bytes of each.
// Measured on an H200, 128 x 96 x 56 x 56: 44 us for k = 5 and 71 us for k = 7.
//
// The product m16n8k16 (and m16n8k8) of a source row gives, for four channels c, 16 pairs of neighbouring
// results:
//   A[m][(j, c)] = source pixel j of the window of pair m, channel c
//   B[(j, c)][(r, c')] = c == c' ? tap[j - r * stride] : 0
// A window of a pair, k + stride pixels wide, is ceil((k + stride) / 2) slices eight deep: one product of
// sixteen for k = 3, one and a half for k = 5, two for k = 7, each for 128 results and one kernel row. Three
// quarters of the multiplications are with zeros; tensor cores have the time for them. A comes by ldmatrix as
// it lies, since shared memory holds [four channels][column][channel of four]: a row of a matrix is two
// pixels of four channels, sixteen bytes, wherever it lies, so that pairs may be of several images. B stays
// in a warp's registers.
//
// Budget, H200, microseconds: for the memory, and for products at 600 TFLOP/s, those with zeros included.
//   128,32,112x112,k3     51     9      128,144,56x56,k3    57    11
//   128,96,112x112,k3,s2  91    12      128,240,28x28,k5    24    12
//   128,96,56x56,k7       38    33      128,768,7x7,k7       5     4
// Shared memory: for k = 3, 5, 7 a result takes 2 bytes as it comes, 4, 6 or 8 by ldmatrix and 6 as it
// leaves; there is time for 28. Instructions: a warp issues 50 to 75 for 128 results; there is time for 114.
//
// Measured, forward: 64 and 87 for k = 3 with stride 1, where slide_correlate takes 66 and 88: the first is
// bound by memory, the second is not, as 144 channels are cut into slices whose pixels are few sectors.
// slide_columns takes 72 for the second and is chosen for 3 x 3 taps with stride 1; of three taps, kernels as
// 1 x 3 are left here. With stride 2 it takes 120, and slide_correlate, which takes 115, is chosen. 44 for
// k = 5 and 71 for k = 7, 56 x 56, where band matrices took 84 and 118; 22 for 7 x 7, as before.
//
// A dilation makes several dense convolutions of a pass, its phases (phases.h). Each has blocks of its own,
// whose pixels, rows and images lie further apart; nothing else differs.
//
// A product with zero is NaN where the source is infinite: results that are NaN are computed again at the
// end, tap by tap.
#pragma once

#include "../index.cuh"
#include "correlate_mma_block.cuh"

namespace torchgraft::depthwise::cuda {

constexpr int kHalfBytes = sizeof(HalfBits);

// A block's rows of sources on their way into the ring in shared memory, and the part of a thread in it: four
// channels of every so many-th column that lies in an image.
template <typename Shape, typename Phase>
class SlideCorrelateMmaCopies {
 public:
  __device__ __forceinline__ SlideCorrelateMmaCopies(const Phase& parameters,
                                                     const SlideCorrelateMmaBlock& block,
                                                     const HalfBits* source, HalfBits* shared, int row_bytes)
      : parameters_(parameters),
        source_(source),
        steps_(source_elements(parameters)),
        row_bytes_(row_bytes),
        rows_(parameters, block.range) {
    const uint32_t ring = shared_address(shared);
    const int quads = parameters.octets * 2;
    const int thread = static_cast<int>(threadIdx.x);
    const int quad = thread % quads;
    const int channel = block.first_channel + quad * kQuad;
    const int first_column = block.tile * parameters.pairs * 2 * Shape::kStride - parameters.padding_x;
    const int first_copied = max(0, first_column);
    const int copied = min(parameters.source_width, first_column + parameters.columns) - first_copied;
#pragma unroll
    for (int turn = 0; turn < Shape::kLoadTurns; ++turn) {
      const int pixel = (thread + turn * static_cast<int>(blockDim.x)) / quads;
      const int image = copied > 0 ? pixel / copied : 0;
      const int column = pixel - image * copied + first_copied;
      const bool valid = copied > 0 && image < parameters.images && channel < parameters.channels;
      from_[turn] = valid ? image * steps_.image + column * steps_.column + channel : UINT32_MAX;
      to_[turn] = ring + quad * parameters.quad_bytes +
                  (image * parameters.columns + column - first_column) * (kQuad * kHalfBytes);
    }
    // Columns outside the image stay zero, for no copy touches them.
    clear_halves(shared, Shape::kStages * row_bytes / kHalfBytes);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < Shape::kStages - 1; ++i) copy_row();
  }

  // Begins to copy the next row, if there is one, into the next place of the ring.
  __device__ __forceinline__ void copy_row() {
    if (rows_left_ <= 0) enter_share();
    if (rows_left_ > 0) {
#pragma unroll
      for (int turn = 0; turn < Shape::kLoadTurns; ++turn) {
        if (from_[turn] < elements_) {
#if __CUDA_ARCH__ >= 800
          ptx::cp_async_ca<kQuad * kHalfBytes>(to_[turn] + stage_, row_ + from_[turn]);
#else
          __trap();
#endif
        }
      }
      --rows_left_;
      row_ += steps_.row;
    }
    commit_copies();
    stage_ = stage_ + row_bytes_ == Shape::kStages * row_bytes_ ? 0 : stage_ + row_bytes_;
  }

 private:
  __device__ __forceinline__ void enter_share() {
    while (rows_left_ <= 0 && rows_.template enter<Shape::kStride>(parameters_)) {
      rows_left_ = rows_.end - rows_.begin;
    }
    const int64_t image = static_cast<int64_t>(rows_.group) * parameters_.images;
    row_ = source_ + source_row(parameters_, steps_, image, rows_.begin);
    elements_ = rows_.images(parameters_) * steps_.image;
  }

  const Phase& parameters_;
  const HalfBits* source_;
  PixelSteps steps_;
  int row_bytes_;
  unsigned from_[Shape::kLoadTurns];  // the largest number: nothing
  uint32_t to_[Shape::kLoadTurns];
  SlideCorrelateMmaRows rows_;
  int rows_left_ = 0;  // of the share
  const HalfBits* row_ = nullptr;
  unsigned elements_ = 0;  // of the group's images
  int stage_ = 0;
};

// The addresses in the ring of a lane's rows of matrices: matrix lane / 8 is eight pairs, or the other eight,
// of this slice of the window or the next.
template <typename Shape>
struct SlideCorrelateMmaPixels {
  uint32_t addresses[Shape::kTiles];

  // `first_pair` is the first pair of results of the warp and `quad` its four channels.
  __device__ __forceinline__ SlideCorrelateMmaPixels(const SlideCorrelateMmaParameters& parameters,
                                                     uint32_t ring, int first_pair, int quad) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < Shape::kTiles; ++i) {
      const int pair = first_pair + i * 16 + lane % 16;
      const int image = pair / parameters.pairs;
      const int column = (pair - image * parameters.pairs) * 2 * Shape::kStride;
      const int place = image < parameters.images ? image * parameters.columns + column : 0;
      addresses[i] = ring + quad * parameters.quad_bytes + place * (kQuad * kHalfBytes) + lane / 16 * 16;
    }
  }
};

// A finished row of results on its way out. Warps write their sums to one of two buffers in shared memory:
// pixels of the block's channels, an odd number of pieces of sixteen bytes apart. After the next barrier each
// thread stores eight channels of one pixel.
template <typename T, typename Shape, typename Phase>
class SlideCorrelateMmaResults {
  using Math = HalfMath<T>;

 public:
  // `buffers` is where the buffers begin in shared memory, `first_pair` the first pair of results of the warp
  // and `quad` its four channels.
  __device__ __forceinline__ SlideCorrelateMmaResults(const Phase& parameters,
                                                      const SlideCorrelateMmaBlock& block, HalfBits* result,
                                                      const HalfBits* shared, int buffers, int first_pair,
                                                      int quad)
      : parameters_(parameters),
        result_(result),
        steps_(result_elements(parameters)),
        slot_bytes_((parameters.octets | 1) * (kOctet * kHalfBytes)) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;
    const int q = lane % 4;
    const int quads = parameters.octets * 2;
    const int slots = static_cast<int>(blockDim.x) / quads * Shape::kTiles;
    // Without keep and kept_shared, every step would compute these addresses again.
    ptx::keep(slot_bytes_);
    sums_to_ = shared_address(shared) + buffers + ((first_pair + g) * 2 + q / 2) * slot_bytes_ +
               (quad * kQuad + q % 2 * 2) * kHalfBytes;
    const SlideCorrelateMmaPlace place(parameters, block);
    store_to_ = place.is_inside(parameters)
                    ? place.image * steps_.image + place.column * steps_.column + place.channel
                    : UINT32_MAX;
    store_from_ = kept_shared(reinterpret_cast<const unsigned char*>(shared) + buffers +
                              place.slot * slot_bytes_ + (place.channel - block.first_channel) * kHalfBytes);
    buffer_bytes_ = slots * slot_bytes_;
  }

  __device__ __forceinline__ bool has_row() const { return waits_; }

  // The next finished row is the first of a share.
  __device__ __forceinline__ void enter(const SlideCorrelateMmaRows& rows) {
    const int64_t image = static_cast<int64_t>(rows.group) * parameters_.images;
    row_ = result_ + result_row(parameters_, steps_, image, rows.first);
    elements_ = rows.images(parameters_) * steps_.image;
  }
  // The next finished row follows the last one.
  __device__ __forceinline__ void advance() { row_ += steps_.row; }

  // Writes the warp's sums of a row to shared memory.
  __device__ __forceinline__ void gather(const float (&sums)[Shape::kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < Shape::kTiles; ++i) {
      const uint32_t to = sums_to_ + buffer_ + i * 32 * slot_bytes_;
      ptx::store_shared(to, Math::pack(sums[i][0], sums[i][1]));
      ptx::store_shared(to + 16 * slot_bytes_, Math::pack(sums[i][2], sums[i][3]));
    }
  }
  __device__ __forceinline__ void finish_row() {
    waits_ = true;
    buffer_ = buffer_bytes_ - buffer_;
  }

  // Stores the row that waits, if one does. All threads have passed a barrier since it was finished.
  __device__ __forceinline__ void store() {
    if (waits_ && store_to_ < elements_) {
      const uint4 piece = *reinterpret_cast<const uint4*>(store_from_ + (buffer_bytes_ - buffer_));
      largest_ = Math::max_nan(
          largest_, Math::max_nan(Math::max_nan(piece.x, piece.y), Math::max_nan(piece.z, piece.w)));
      *reinterpret_cast<uint4*>(row_ + store_to_) = piece;
    }
    waits_ = false;
  }

  // Whether the thread has stored a NaN.
  __device__ __forceinline__ bool has_nan() const {
    return Math::is_nan(largest_ & 0xffff) || Math::is_nan(largest_ >> 16);
  }

 private:
  const Phase& parameters_;
  HalfBits* result_;
  PixelSteps steps_;
  uint32_t slot_bytes_;
  uint32_t sums_to_;
  unsigned store_to_;
  const unsigned char* store_from_;
  uint32_t largest_ = 0;  // of each half of what was stored
  HalfBits* row_ = nullptr;
  unsigned elements_ = 0;  // of the group's images
  bool waits_ = false;     // a row, to be stored
  int buffer_ = 0;         // where the next row goes
  int buffer_bytes_;
};

// The taps of a warp's channels, as the operand B of its products, and their bias.
template <typename T, typename Shape>
struct SlideCorrelateMmaTaps {
  uint32_t band[Shape::kKernel][Shape::kSlices];
  float start[4];

  // `first_channel` is the first of the warp's four. A lane's column of B is channel lane / 4 % 4 of result
  // lane / 16 of a pair.
  template <typename Number>
  __device__ __forceinline__ SlideCorrelateMmaTaps(const SlideCorrelateMmaParameters& parameters,
                                                   const Number* weight, const Rounded<T>& bias,
                                                   int first_channel) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int g = lane / 4;  // as the layout of a product's operands names them
    const int q = lane % 4;
    const int channel = first_channel + g % 4;
    const int taps = parameters.kernel_height * parameters.kernel_width;
    const Number* channel_weight = weight + static_cast<int64_t>(channel) * taps;
    const bool mine = channel < parameters.channels && g % 4 / 2 == q % 2;
#pragma unroll
    for (int row = 0; row < Shape::kKernel; ++row) {
#pragma unroll
      for (int i = 0; i < Shape::kSlices; ++i) {
        const int column = 2 * i + q / 2 - g / 4 * Shape::kStride;
        uint32_t value = 0;
        if (mine && row < parameters.kernel_height && column >= 0 && column < parameters.kernel_width) {
          const int tap = row * parameters.kernel_width + column;
          value = bits_of(read_rounded<T>(channel_weight + (parameters.flipped ? taps - 1 - tap : tap)));
        }
        band[row][i] = value << (g % 2 * 16);
      }
    }
    const int own_channel = first_channel + q % 2 * 2;
    float pair[2];
    bias.widen(own_channel < parameters.channels, own_channel, pair);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      start[i] = pair[i % 2];
      // Products need four registers in a row, and would else get copies of the two that are alike.
      ptx::keep(start[i]);
    }
  }
};

// The warps of a block slide down its columns. `Phase` is the type of the parameters of the dense convolution
// that the block belongs to.
template <typename T, typename Shape, typename Phase>
class SlideCorrelateMma {
  static constexpr int kKernel = Shape::kKernel;
  static constexpr int kStride = Shape::kStride;
  static constexpr int kTiles = Shape::kTiles;
  static constexpr int kSlices = Shape::kSlices;
  static constexpr int kWarm = Shape::kWarm;
  static constexpr int kStages = Shape::kStages;

 public:
  template <typename Number>
  __device__ __forceinline__ SlideCorrelateMma(const HalfBits* source, const Number* weight,
                                               const Rounded<T>& bias, HalfBits* result,
                                               const Phase& parameters, const SlideCorrelateMmaBlock& block)
      : parameters_(parameters),
        quads_(parameters.octets * 2),
        lane_(static_cast<int>(threadIdx.x) % 32),
        column_warp_(static_cast<int>(threadIdx.x) / 32 / quads_),
        quad_(static_cast<int>(threadIdx.x) / 32 - column_warp_ * quads_),
        taps_(parameters, weight, bias, block.first_channel + quad_ * kQuad),
        row_bytes_(quads_ * parameters.quad_bytes),
        shared_(shared_memory<HalfBits>()),
        copies_(parameters, block, source, shared_, row_bytes_),
        pixels_(parameters, shared_address(shared_), column_warp_ * kTiles * 16, quad_),
        results_(parameters, block, result, shared_, kStages * row_bytes_, column_warp_ * kTiles * 16, quad_),
        rows_(parameters, block.range) {}

  // Computes the block's results; returns whether the thread has stored a NaN.
  __device__ __forceinline__ bool run() {
    ended_ = !rows_.template enter<kStride>(parameters_);
#pragma unroll 1
    while (!ended_) {
      with_phases<kWarm + 1>([&] { return !ended_; }, [&](auto turn) { take_step<turn>(); });
    }
    __syncthreads();
    results_.store();
    return results_.has_nan();
  }

 private:
  // Takes the source rows of a step, ends a row of results and begins another. kTurn, the step's number
  // modulo the rows of results under way, tells which sums belong to which row.
  template <int kTurn>
  __device__ __forceinline__ void take_step() {
    start_row<(kTurn + kWarm) % (kWarm + 1)>();
    const int source_y = (rows_.first + step_) * kStride - parameters_.padding_y;
    const bool holds_all = step_ >= kWarm && step_ < rows_.count;
#pragma unroll
    for (int i = 0; i < kStride; ++i) {
      if (source_y + i < rows_.begin || source_y + i >= rows_.end) continue;
      wait_for_copies<kStages - 2>();
      __syncthreads();
      copies_.copy_row();
      results_.store();
      if (holds_all) {
        multiply<kTurn, true>(i);
      } else {
        multiply<kTurn, false>(i);
      }
      stage_ = stage_ + row_bytes_ == kStages * row_bytes_ ? 0 : stage_ + row_bytes_;
    }
    if (step_ >= kWarm) finish_row<kTurn>();
    if (++step_ == rows_.count + kWarm) {
      step_ = 0;
      ended_ = !rows_.template enter<kStride>(parameters_);
    }
  }

  template <int kNewest>
  __device__ __forceinline__ void start_row() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums_[kNewest][i][k] = taps_.start[k];
    }
  }

  // Whether the row of results `ahead` after the one that ends in this step belongs to the share.
  __device__ __forceinline__ bool holds(int ahead) const {
    return static_cast<unsigned>(step_ - kWarm + ahead) < static_cast<unsigned>(rows_.count);
  }

  // Multiplies source row `i` of the step into every row of results that it reaches; without kAll, only into
  // those of the share.
  template <int kTurn, bool kAll>
  __device__ __forceinline__ void multiply(int i) {
#pragma unroll
    for (int first = 0; first < kSlices; first += 2) {
      uint32_t wide[kTiles][4];
      uint32_t narrow[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint32_t address = pixels_.addresses[t] + stage_ + first * 16;
        if (first + 1 < kSlices) {
          ptx::ldmatrix(wide[t], address);
        } else {
          ptx::ldmatrix(narrow[t], address);
        }
      }
#pragma unroll
      for (int ahead = 0; ahead <= kWarm; ++ahead) {
        const int row = (kWarm - ahead) * kStride + i;
        if (row >= kKernel) continue;
        if (!kAll && !holds(ahead)) continue;
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          float (&unit)[4] = sums_[(kTurn + ahead) % (kWarm + 1)][t];
          if (first + 1 < kSlices) {
            multiply_add<T>(unit, wide[t], taps_.band[row][first], taps_.band[row][first + 1], unit);
          } else {
            multiply_add<T>(unit, narrow[t][0], narrow[t][1], taps_.band[row][first]);
          }
        }
      }
    }
  }

  // Hands the row of results that ends in this step to those that store it.
  template <int kTurn>
  __device__ __forceinline__ void finish_row() {
    if (results_.has_row()) {
      __syncthreads();
      results_.store();
    }
    results_.gather(sums_[kTurn]);
    if (step_ == kWarm) {
      results_.enter(rows_);
    } else {
      results_.advance();
    }
    results_.finish_row();
  }

  const Phase& parameters_;
  int quads_;               // of channels, of the block
  int lane_;                // of the warp
  int column_warp_, quad_;  // the warp's place
  SlideCorrelateMmaTaps<T, Shape> taps_;
  int row_bytes_;  // of the ring
  HalfBits* shared_;
  SlideCorrelateMmaCopies<Shape, Phase> copies_;
  SlideCorrelateMmaPixels<Shape> pixels_;
  SlideCorrelateMmaResults<T, Shape, Phase> results_;
  SlideCorrelateMmaRows rows_;
  bool ended_ = false;
  int step_ = 0;   // of the share
  int stage_ = 0;  // of the ring, in bytes
  // Of the rows of results that end in this step and in later ones.
  float sums_[kWarm + 1][kTiles][4];
};

// Weights are numbers of T or wider ones: taps take many registers and are loaded in every block.
template <typename T, typename Number, typename Shape, typename Parameters>
__global__ void __launch_bounds__(Shape::kMostThreads, Shape::kBlocks)
    slide_correlate_mma(const HalfBits* __restrict__ source, const Number* __restrict__ weight,
                        Rounded<T> bias, HalfBits* __restrict__ result,
                        const __grid_constant__ Parameters given) {
  const SlideCorrelateMmaBlock block(given);
  const auto& parameters = in_phase(given, block.phase);
  using Phase = std::remove_cvref_t<decltype(parameters)>;
  source += first_source_element(parameters);
  result += first_result_element(parameters);
  SlideCorrelateMma<T, Shape, Phase> warps(source, weight, bias, result, parameters, block);
  if (warps.run()) repair_range<T, Shape::kStride>(source, weight, bias, result, given);
}

template <typename Shape, typename Parameters, typename T>
void launch_slide_product(const Correlation<T>& pass, const SlideCorrelateMmaPlan& plan,
                          const Parameters& parameters) {
  pass.weight.with_numbers([&](const auto* numbers) {
    using Number = std::remove_cvref_t<decltype(*numbers)>;
    const auto kernel = slide_correlate_mma<T, Number, Shape, Parameters>;
    require_shared_memory(kernel, plan.shared_bytes, pass.name());
    kernel<<<grid_of(plan.blocks, pass.name()), plan.threads, static_cast<size_t>(plan.shared_bytes),
             pass.stream>>>(reinterpret_cast<const HalfBits*>(pass.source), numbers, pass.bias,
                            reinterpret_cast<HalfBits*>(pass.result), parameters);
  });
  check_launch(pass.name());
}

template <int kKernel, typename T>
void launch_slide_kernel(const Correlation<T>& pass) {
  const Geometry& geometry = pass.geometry;
  const auto launch = [&](auto shape) {
    using Shape = typename decltype(shape)::type;
    const SlideCorrelateMmaPlan plan =
        plan_slide_correlate_mma<Shape>(geometry, pass.transposed, slide_device());
    if constexpr (Shape::kStride == 1) {
      if (is_dilated(geometry)) {
        return launch_slide_product<Shape>(
            pass, plan, PhasedSlideCorrelateMmaParameters(plan.cut, geometry, pass.transposed));
      }
    }
    launch_slide_product<Shape>(pass, plan, SlideCorrelateMmaParameters(plan.cut));
  };
  if (geometry.height.stride == 2) return launch(Tag<SlideCorrelateMmaShape<kKernel, 2>>{});
  launch(Tag<SlideCorrelateMmaShape<kKernel, 1>>{});
}

template <typename T>
void launch_slide_correlate_mma(const Correlation<T>& pass) {
  const int64_t longest = longest_side(pass.geometry);
  if (longest <= 3) return launch_slide_kernel<3>(pass);
  if (longest <= 5) return launch_slide_kernel<5>(pass);
  launch_slide_kernel<7>(pass);
}

}  // namespace torchgraft::depthwise::cuda
