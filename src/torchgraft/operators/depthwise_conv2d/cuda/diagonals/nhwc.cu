// Weight gradient on tensor cores (diagonals.cuh): NHWC images.
//
// A block owns sixteen neighbouring channels and a chunk of the tiles of the images: eight segments of rows,
// whole planes of several images or bands of large ones. It walks through a tile by octet columns, each once:
// a thread loads eight pixels of eight channels of one row, sixteen bytes each, while the column before is
// worked on, turns them around in registers, and writes each channel's octet to shared memory. The windows of
// an octet column of the output gradient lie in two of input, the newest and the one before. A warp owns two
// channels and some rows of the kernel.

#include "nhwc_columns.cuh"

// Compiled for less, the kernel is a trap and uses nothing of this file.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma nv_diag_suppress 177
#endif

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T, typename Block, int kRowGroups>
class NhwcBlock {
  using Sums = DiagonalSums<Block>[kChannelsOfWarp];

 public:
  __device__ __forceinline__ NhwcBlock(const uint16_t* output_grad, const uint16_t* input, float* partial,
                                       const NhwcParameters& parameters)
      : parameters_(parameters), output_grad_(output_grad), input_(input), partial_(partial) {
    chunk_ = parameters.slabs.divide(static_cast<int>(blockIdx.x));
    first_channel_ = (static_cast<int>(blockIdx.x) - chunk_ * parameters.slabs.divisor()) * kChannelsOfBlock;
    begin_ = static_cast<int>(chunk_ * parameters.chunks.units_of_chunk);
    end_ = static_cast<int>(
        min(static_cast<int64_t>(begin_) + parameters.chunks.units_of_chunk, parameters.chunks.units));
    shared_sums_ = shared_memory<float>();
    shared_ = shared_address(shared_sums_);
    input_bytes_ = kChannelsOfBlock * parameters.input.channel_rows * kOctetBytes;
    grad_bytes_ = kChannelsOfBlock * parameters.grad.channel_rows * kOctetBytes;
    grad_stages_ = shared_ + kInputStages * input_bytes_;
    zeros_ = grad_stages_ + kGradStages * grad_bytes_;
  }

  __device__ __forceinline__ void run() {
    clear_octets(shared_, kInputStages * input_bytes_ + kGradStages * grad_bytes_ + kZeroBytes);
    find_operands();
    Sums sums = {};
    sum_steps(sums);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kChannelsOfWarp; ++i) {
      store_sums(sums[i],
                 shared_sums_ + (row_group_ * kChannelsOfBlock + warp_channel_ + i) * Block::kFloats);
    }
    __syncthreads();
    store_taps();
  }

 private:
  // Finds where this lane reads, without stage and channel.
  __device__ __forceinline__ void find_operands() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    row_group_ = warp / kWarpsOfRowGroup;
    warp_channel_ = warp % kWarpsOfRowGroup * kChannelsOfWarp;
    const int segment = lane % kSegments;
    const int plane = parameters_.segments.divide(segment);
    exists_ = plane < parameters_.planes;
    const int row = (segment - plane * parameters_.segments.divisor()) * kSegment;
    input_offset_ = (warp_channel_ * parameters_.input.channel_rows + plane * parameters_.input.plane_rows +
                     row + lane / 16) *
                    kOctetBytes;
    grad_offset_ = (warp_channel_ * parameters_.grad.channel_rows +
                    (exists_ ? plane * parameters_.grad.plane_rows + row : 0) +
                    (kRowGroups - 1 - row_group_) * Block::kTapRows + lane / 8) *
                   kOctetBytes;
    second_octet_ = lane / 8 % 2 != 0;
  }

  // Adds the products of all tiles, an octet column a step. The columns of two steps ahead are on their way
  // in registers, and those of the next one in shared memory.
  __device__ __forceinline__ void sum_steps(Sums& sums) const {
    ColumnLoader loader(parameters_, output_grad_, input_, first_channel_, begin_, end_);
    Pixels pixels;
    const int steps = (end_ - begin_) * (parameters_.strip_octets + 1);
    loader.load(pixels);
    __syncthreads();
    loader.store(pixels, shared_, grad_stages_);
    loader.load(pixels);
    __syncthreads();
    int step_of_tile = 0;
    uint32_t before = shared_;
    uint32_t newest = shared_;
    uint32_t grad_stage = grad_stages_;
#pragma unroll 1
    for (int step = 0;; ++step) {
      if (step_of_tile > 0) add_column(sums, second_octet_ ? newest : before, grad_stage);
      if (++step_of_tile > parameters_.strip_octets) step_of_tile = 0;
      if (step + 1 == steps) break;
      before = newest;
      newest += input_bytes_;
      if (newest == grad_stages_) newest = shared_;
      grad_stage = grad_stage == grad_stages_ ? grad_stages_ + grad_bytes_ : grad_stages_;
      loader.store(pixels, newest, grad_stage);
      loader.load(pixels);
      __syncthreads();
    }
  }

  // Adds the products of one octet column of the output gradient.
  __device__ __forceinline__ void add_column(Sums& sums, uint32_t input_stage, uint32_t grad_stage) const {
#pragma unroll
    for (int i = 0; i < kChannelsOfWarp; ++i) {
      const uint32_t channel_offset = i * parameters_.input.channel_rows * kOctetBytes;
      add_products<T>(sums[i], exists_ ? input_stage + input_offset_ + channel_offset : zeros_, 0, 0,
                      grad_stage + grad_offset_ + i * parameters_.grad.channel_rows * kOctetBytes);
    }
  }

  // Sums the diagonals of what the warps left in shared memory, and stores the gradients of the taps.
  __device__ __forceinline__ void store_taps() const {
    const int channels = min(kChannelsOfBlock, parameters_.channels - first_channel_);
    const int taps = parameters_.kernel_height * parameters_.kernel_width;
    float* to = partial_ + (static_cast<int64_t>(chunk_) * parameters_.channels + first_channel_) * taps;
    for (int i = static_cast<int>(threadIdx.x); i < channels * taps; i += static_cast<int>(blockDim.x)) {
      const int channel = i / taps;
      const int tap_row = i % taps / parameters_.kernel_width;
      const int tap_column = i % parameters_.kernel_width;
      const int group = tap_row / Block::kTapRows;
      to[i] = diagonal_sum<Block>(shared_sums_ + (group * kChannelsOfBlock + channel) * Block::kFloats,
                                  tap_row - group * Block::kTapRows, tap_column);
    }
  }

  const NhwcParameters& parameters_;
  const uint16_t* const output_grad_;
  const uint16_t* const input_;
  float* const partial_;
  int chunk_, begin_, end_;  // of the block's tiles
  int first_channel_;
  float* shared_sums_;
  uint32_t shared_, grad_stages_, zeros_;
  uint32_t input_bytes_, grad_bytes_;  // of a stage
  int row_group_, warp_channel_;       // of the warp
  bool exists_;                        // whether the lane's segment does
  uint32_t input_offset_, grad_offset_;
  bool second_octet_;
};

template <typename T, typename Block, int kRowGroups>
__global__ void __launch_bounds__(kRowGroups * kWarpsOfRowGroup * 32, kRowGroups == 1 ? 2 : 1)
    diagonals_nhwc(const uint16_t* __restrict__ output_grad, const uint16_t* __restrict__ input,
                   float* __restrict__ partial, const __grid_constant__ NhwcParameters parameters) {
// mma.sync m16n8k16: not chosen where this is compiled for less.
#if __CUDA_ARCH__ >= 800
  NhwcBlock<T, Block, kRowGroups>(output_grad, input, partial, parameters).run();
#else
  __trap();
#endif
}

ColumnSource source_of(const NhwcTile& tile) {
  return {tile.height,     tile.width,         FastDivisor(tile.loaded_rows),
          tile.source_row, tile.source_column, tile.row,
          tile.plane_rows, tile.channel_rows};
}

NhwcParameters parameters_of(const Geometry& geometry, const NhwcPlan& plan, int load_bytes) {
  return {.input = source_of(plan.input),
          .grad = source_of(plan.grad),
          .batch = static_cast<int>(geometry.batch),
          .channels = static_cast<int>(geometry.channels),
          .load_bytes = load_bytes,
          .slabs = FastDivisor(plan.slabs),
          .planes = plan.planes,
          .strips = FastDivisor(plan.strips),
          .bands = FastDivisor(plan.bands),
          .strip_octets = plan.strip_octets,
          .band_rows = plan.segments * kSegment,
          .chunks = make_chunks(plan.tiles, 1, plan.most_chunks),
          .segments = FastDivisor(plan.segments),
          .kernel_height = static_cast<int>(geometry.height.kernel),
          .kernel_width = static_cast<int>(geometry.width.kernel)};
}

template <typename T, typename Block, int kRowGroups>
void launch(const WeightGrad<T>& pass) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const Device& device = current_device();
  const NhwcPlan plan =
      NhwcPlanner(geometry, kRowGroups * Block::kTapRows, device.multiprocessors, device.shared_of_block)
          .plan();
  TORCHGRAFT_CHECK(plan.tiles <= INT32_MAX / (plan.octets + 1), pass.kName,
                   ": the tensors are too large for one launch");
  const NhwcParameters parameters = parameters_of(
      geometry, plan, copied_piece(geometry.channels, sizeof(T), common_alignment(output_grad, input)));
  constexpr int64_t kSums = int64_t{kRowGroups} * kChannelsOfBlock * Block::kFloats * sizeof(float);
  const int64_t bytes = std::max(plan.bytes, kSums);
  const auto kernel = diagonals_nhwc<T, Block, kRowGroups>;
  require_shared_memory(kernel, bytes, pass.kName);
  kernel<<<grid_of(int64_t{plan.slabs} * parameters.chunks.count, pass.kName),
           kRowGroups * kWarpsOfRowGroup * 32, static_cast<size_t>(bytes), stream>>>(
      reinterpret_cast<const uint16_t*>(output_grad), reinterpret_cast<const uint16_t*>(input), workspace,
      parameters);
  check_launch(pass.kName);
  launch_sum_chunks(workspace, weight_grad, geometry, parameters.chunks.count, stream);
}

}  // namespace

template <typename T>
void launch_diagonals_nhwc(const WeightGrad<T>& pass) {
  static_assert(kMostChannelsLastTapColumns == TapBlock<7, 2>::most_columns(0));
  static_assert(kMostChannelsLastTapRows == 2 * TapBlock<5, 2>::kTapRows);
  const int64_t rows = pass.geometry.height.kernel;
  if (rows <= 3) return launch<T, TapBlock<3, 2>, 1>(pass);
  if (rows <= 5) return launch<T, TapBlock<5, 2>, 1>(pass);
  if (rows <= 7) return launch<T, TapBlock<7, 2>, 1>(pass);
  launch<T, TapBlock<5, 2>, 2>(pass);
}

template void launch_diagonals_nhwc(const WeightGrad<Half>&);
template void launch_diagonals_nhwc(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
