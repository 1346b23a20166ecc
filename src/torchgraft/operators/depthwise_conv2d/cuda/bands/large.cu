// Forward and input gradient of large kernels of halves, NCHW planes: band matrices on tensor cores.
//
// A unit is 2 x 8 neighbouring results; eight units, of pairs of rows one below the other and on from image
// to image, are the columns of a product. For source row r under a pair, with kernel row r for its upper
// results and r - 1 for its lower ones,
//   A[(my, g)][k] = tap[r - my][k - g]   B[k][n] = source row r of unit n, column k
// over the 8 + kernel_width - 1 columns that the units' windows span, in octets of columns: products of
// m16n8k16 take two of them, one of m16n8k8 what is left. A block owns one channel and several rounds of
// images. Its taps lie in shared memory twice, set off by one, so that every pair of neighbours of a band is
// one aligned word. A warp owns eight units by kColumnBlocks blocks of columns: what it loads of A (an octet
// a word) serves all of them, and an octet of B, by ldmatrix, up to kOctets of them. Even rows of an image
// lie before its odd ones, so that the eight rows of an ldmatrix, two apart, lie in different banks; rows
// outside the image are one row of zeros.
//
// Bound by products: (64,128,56x56,k31) 80 of m16n8k16 for 128 results, 65 % of them of use, some 0.14 ms at
// the 0.6 of their peak that mma.sync reaches on an H200, where fp32 multiply-adds need 0.75 ms; memory 0.025
// ms.
//
// A stride or a dilation makes several dense convolutions of a pass, its phases (phases.h). A tile then holds
// the phases of an image one after another, and the bands those of the kernel. Which of them a warp takes is
// part of its work where results have phases, and a loop where phases are added up: the forward pass of a
// stride. The inner loop is the same.
//   (64,128,56x56,k31), stride 2, either pass: 4 phases of 16 x 16 taps are a third of the products of stride
//   1, some 0.04 ms; memory 0.016 ms. Dilation 2: as many products for a result as without, some 0.14 ms.
// Pixels come two bytes a thread, each with some 25 instructions: 0.02 ms of that row.
//
// Sums are kept in fp32. A product multiplies the zeros of the band with what lies outside a result's window:
// where that is not finite the result comes out NaN, and every NaN is computed again tap by tap.

#include "large.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T, int kOctets, int kColumnBlocks, typename Product>
__global__ void __launch_bounds__(kLargeWarps * 32, 2)
    bands_large(const HalfBits* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                HalfBits* __restrict__ result, Product product) {
  LargeBlock<T, kOctets, kColumnBlocks, Product>(source, weight, bias, result, product).run();
}

LargeProduct product_of(const Geometry& geometry, const PhaseAxis& height, const PhaseAxis& width,
                        bool transposed, const LargePlan& plan) {
  LargeProduct product = {};
  product.channels = static_cast<int>(geometry.output_channels());
  product.multiplier = static_cast<int>(geometry.multiplier);
  static_cast<HalfWindow&>(product) = {height.phase_source, width.phase_source, height.phase_result,
                                       width.phase_result,  height.padding,     width.padding,
                                       height.phase_kernel, width.phase_kernel, transposed};
  product.images = static_cast<int>(geometry.batch);
  product.images_of_round = plan.images_of_round;
  product.rounds_of_block = plan.rounds_of_block;
  product.chunks = plan.chunks;
  product.pairs = FastDivisor(ceil_divide(product.result_height, 2));
  product.source_row = FastDivisor(width.source);
  product.column_blocks = ceil_divide(product.result_width, kOctetSize);
  product.pitch = static_cast<int>(large_product_pitch(geometry, transposed));
  product.odd_rows = ceil_divide(product.source_height, 2);
  product.image_pitch =
      product.source_height * product.pitch * height.source_phases() * width.source_phases();
  product.band_pitch = (plan.octets + 2) * kOctetSize;
  return product;
}

PhasedProduct phases_of(const LargeProduct& product, const PhaseAxis& height, const PhaseAxis& width) {
  return {product,
          height,
          width,
          height.result_phases() * width.result_phases(),
          height.summed_phases() * width.summed_phases(),
          product.source_height * product.pitch,
          FastDivisor(height.source_phases()),
          FastDivisor(width.source_phases())};
}

template <int kOctets, int kColumnBlocks, typename Product, typename T>
void launch(const LargePlan& plan, const Product& product, const Correlation<T>& pass) {
  const auto kernel = bands_large<T, kOctets, kColumnBlocks, Product>;
  require_shared_memory(kernel, plan.bytes, pass.name());
  const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
  const int64_t blocks = int64_t{product.channels} * product.chunks;
  kernel<<<grid_of(blocks, pass.name()), kLargeWarps * 32, plan.bytes, pass.stream>>>(
      bits(pass.source), pass.weight, pass.bias, reinterpret_cast<HalfBits*>(pass.result), product);
  check_launch(pass.name());
}

template <int kOctets, typename Product, typename T>
void launch_columns(const LargePlan& plan, const Product& product, const Correlation<T>& pass) {
  if (product.column_blocks <= 2) {
    launch<kOctets, 2>(plan, product, pass);
  } else if (product.column_blocks <= 4) {
    launch<kOctets, 4>(plan, product, pass);
  } else {
    launch<kOctets, 7>(plan, product, pass);
  }
}

}  // namespace

template <typename T>
void launch_bands_large(const Correlation<T>& pass) {
  const PhaseAxis height(pass.geometry.height, pass.transposed);
  const PhaseAxis width(pass.geometry.width, pass.transposed);
  const LargePlan plan = large_plan(pass.geometry, pass.transposed, current_device().multiprocessors);
  const LargeProduct dense = product_of(pass.geometry, height, width, pass.transposed, plan);
  if (is_unit_step(pass.geometry)) {
    if (plan.octets == 3) return launch_columns<3>(plan, dense, pass);
    if (plan.octets == 5) return launch_columns<5>(plan, dense, pass);
    return launch_columns<kMostOctets>(plan, dense, pass);
  }
  const PhasedProduct phased = phases_of(dense, height, width);
  if (plan.octets == 2) return launch_columns<2>(plan, phased, pass);
  if (plan.octets == 3) return launch_columns<3>(plan, phased, pass);
  launch_columns<kMostPhaseOctets>(plan, phased, pass);
}

template void launch_bands_large(const Correlation<Half>&);
template void launch_bands_large(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
