// Weight gradient on tensor cores (diagonals.cuh): NCHW planes.
//
// A block owns a few neighbouring channels, one where planes are large, and a chunk of the tiles of their
// planes: whole planes of several images, or bands and strips of large ones. Tiles come with cp.async,
// sixteen, eight or four bytes at a time as the width of the planes allows, two bytes through registers where
// it is odd; the next tile is on its way while one is worked on. The input lies in its octets shifted to the
// right by the padding, rounded up to what can be copied at once. A warp owns some rows of the kernel of one
// channel; warps that own the same share the octet columns of the tile.
//
// A stride or a dilation makes several dense weight gradients of it, its phases (phases.h). Those of a stride
// give different taps, and each has blocks of its own, which read every n-th pixel of the input; those of a
// dilation are added up, and a block takes one after another like more images. Such pixels come two bytes at
// a time, through registers. (64,128,56x56,k31): with stride 2, four phases of 16 x 16 taps are 0.4 of the
// products of stride 1, some 0.07 ms, and with dilation 2 as many, some 0.2 ms.

#include "nchw.cuh"

// Compiled for less, the kernel is a trap and uses nothing of this file.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#pragma nv_diag_suppress 177
#endif

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T, typename Block, int kBlocksOfMultiprocessor, typename Parameters>
__global__ void __launch_bounds__(kMostNchwWarps * 32, kBlocksOfMultiprocessor)
    diagonals_nchw(const uint16_t* __restrict__ output_grad, const uint16_t* __restrict__ input,
                   float* __restrict__ partial, const __grid_constant__ Parameters parameters) {
// mma.sync m16n8k16 and cp.async: not chosen where this is compiled for less.
#if __CUDA_ARCH__ >= 800
  NchwBlock<T, Block, Parameters>(output_grad, input, partial, parameters).run();
#else
  __trap();
#endif
}

NchwParameters parameters_of(const Geometry& geometry, const NchwPlan& plan) {
  return {
      .input = TileSource(plan.input),
      .grad = TileSource(plan.grad),
      .batch = static_cast<int>(geometry.batch),
      .channels = static_cast<int>(geometry.channels),
      .channel_blocks = FastDivisor(ceil_divide(static_cast<int>(geometry.channels), plan.channels_of_block)),
      .channels_of_block = FastDivisor(plan.channels_of_block),
      .planes = plan.planes,
      .strips = FastDivisor(plan.strips),
      .bands = FastDivisor(plan.bands),
      .strip_columns = plan.strip_octets * kOctet,
      .band_rows = plan.segments * kSegment,
      .chunks = make_chunks(plan.tiles, 1, plan.most_chunks),
      .segments = FastDivisor(plan.segments),
      .octets = FastDivisor(plan.strip_octets),
      .splits = FastDivisor(plan.splits),
      .row_groups = FastDivisor(plan.row_groups),
      .row_blocks = FastDivisor(plan.row_blocks),
      .column_blocks = FastDivisor(plan.column_blocks),
      .kernel_height = static_cast<int>(geometry.height.kernel),
      .kernel_width = static_cast<int>(geometry.width.kernel),
      .columns_of_block = plan.columns_of_block,
      .shift = plan.shift};
}

// Adds to the parameters of a phase the images and the kernel that it belongs to.
PhasedNchwParameters phases_of(const NchwParameters& parameters, const Geometry& geometry, int tap_phases) {
  const PhaseAxis height(geometry.height, /*transposed=*/false);
  const PhaseAxis width(geometry.width, /*transposed=*/false);
  PhasedNchwParameters phased = {parameters, height, width, FastDivisor(tap_phases),
                                 height.result_phases() * width.result_phases()};
  phased.input.height = height.source;
  phased.input.width = width.source;
  phased.input.plane = static_cast<int>(geometry.input_pixels());
  phased.input.image = geometry.channels * geometry.input_pixels();
  phased.grad.height = height.result;
  phased.grad.width = width.result;
  phased.grad.plane = static_cast<int>(geometry.output_pixels());
  phased.grad.image = geometry.channels * geometry.output_pixels();
  return phased;
}

template <typename Block>
NchwPlan plan_of(const NchwSizes& sizes) {
  const Device& device = current_device();
  const NchwPlan plan = NchwPlanner<Block>(sizes, device.multiprocessors, device.shared_of_block).plan();
  TORCHGRAFT_CHECK(plan.tiles <= INT32_MAX,
                   "depthwise_conv2d_weight_grad: the tensors are too large for one launch");
  return plan;
}

template <typename T, typename Block, int kBlocksOfMultiprocessor, typename Parameters>
void launch(const WeightGrad<T>& pass, const NchwPlan& plan, const Parameters& parameters) {
  const auto& [output_grad, input, weight_grad, workspace, geometry, layout, stream] = pass;
  const auto kernel = diagonals_nchw<T, Block, kBlocksOfMultiprocessor, Parameters>;
  require_shared_memory(kernel, static_cast<int64_t>(plan.bytes), pass.kName);
  const int64_t blocks = plan.blocks_of_chunk * parameters.chunks.count;
  kernel<<<grid_of(blocks, pass.kName), plan.threads, plan.bytes, stream>>>(
      reinterpret_cast<const uint16_t*>(output_grad), reinterpret_cast<const uint16_t*>(input), workspace,
      parameters);
  check_launch(pass.kName);
  launch_sum_chunks(workspace, weight_grad, geometry, parameters.chunks.count, stream);
}

// A thread has registers for three blocks of the widest taps on a multiprocessor, and four of others.
template <typename T, typename Block>
void launch_phases(const WeightGrad<T>& pass, const NchwSizes& sizes) {
  const NchwPlan plan = plan_of<Block>(sizes);
  launch<T, Block, Block::kOctets <= 3 ? 4 : 3>(
      pass, plan, phases_of(parameters_of(sizes.geometry, plan), pass.geometry, sizes.tap_phases));
}

}  // namespace

template <typename T>
void launch_diagonals_nchw(const WeightGrad<T>& pass) {
  const NchwSizes sizes =
      nchw_sizes(pass.geometry, common_alignment(pass.input), common_alignment(pass.output_grad));
  const Extent& width = sizes.geometry.width;
  const int64_t rows = sizes.geometry.height.kernel;
  // An odd padding and an even width are one column apart from being copied two elements at once.
  const bool pairs = sizes.input_alignment > 1;
  const int shift = pairs ? static_cast<int>(width.padding % 2) : 0;
  if (!is_unit_step(pass.geometry)) {
    if (width.kernel <= TapBlock<7, 2>::most_columns(shift))
      return launch_phases<T, TapBlock<7, 2>>(pass, sizes);
    if (width.kernel <= TapBlock<7, 3>::most_columns(shift))
      return launch_phases<T, TapBlock<7, 3>>(pass, sizes);
    return launch_phases<T, TapBlock<8, 5>>(pass, sizes);
  }
  const auto launch_dense = [&](auto block, auto blocks_of_multiprocessor) {
    const NchwPlan plan = plan_of<decltype(block)>(sizes);
    launch<T, decltype(block), blocks_of_multiprocessor>(pass, plan, parameters_of(sizes.geometry, plan));
  };
  using Many = std::integral_constant<int, 5>;
  using Few = std::integral_constant<int, 4>;
  if (width.kernel <= TapBlock<7, 2>::most_columns(shift)) {
    if (rows <= 3) return launch_dense(TapBlock<3, 2>{}, Many{});
    if (rows <= 5 || rows == 9 || rows == 10) return launch_dense(TapBlock<5, 2>{}, Many{});
    return launch_dense(TapBlock<7, 2>{}, Many{});
  }
  if (width.kernel <= TapBlock<7, 3>::most_columns(shift)) return launch_dense(TapBlock<7, 3>{}, Few{});
  launch_dense(TapBlock<8, 5>{}, std::integral_constant<int, 3>{});
}

template void launch_diagonals_nchw(const WeightGrad<Half>&);
template void launch_diagonals_nchw(const WeightGrad<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
