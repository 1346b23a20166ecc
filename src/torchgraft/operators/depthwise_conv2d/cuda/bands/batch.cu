// Forward and input gradient of large kernels of halves, narrow NCHW planes of many images, stride 1: band
// matrices on tensor cores, whose other side are images.
//
// For one channel, a row of results and a row of sources below each other meet one row of taps, and an octet
// of either's columns a band matrix that depends on the distance between the two octets alone:
//   A[image][column] = source row   B[column][x] = tap[column - x + padding]   D[image][x] = result row
// Products are m16n8k16, of sixteen images with two octets, or m16n8k8 where the kernel reaches one of those
// only. Windows end where the image does: padding is neither stored nor multiplied.
//
// A block owns one channel (eight where planes are smaller than 8 x 8) of 16 images or more, whose planes lie
// in shared memory, [channel][image][row][column] with rows of whole octets, and their taps twice, set off by
// one element, so that every pair of neighbours is one aligned word. A warp owns BatchShape::rows rows of
// results of sixteen images and walks down the sources. Octets of images come by ldmatrix, and bands are
// words of taps, 2 * reach + 1 a row of taps: as sources move on by one row, a row of results needs the bands
// that the row above it needed before, so that they stay in registers, in a ring, and a step loads one row of
// taps. Results leave through shared memory where there is room, for a lane holds two columns only of an
// image.
//
// Predicted on an H200, at 600 TFLOP/s of mma.sync: (64,256,28x28,k29) 36 us of products (7 of k = 16 a pair
// of rows and sixteen images, 20 pairs a row of results), one multiprocessor reading 15 clocks of shared
// memory for 44 of products; with loading, which two blocks overlap in part, 55 us. (64,128,56x56,k31) 78 us
// of products, 105 in all. (64,512,14x14,k27) 6 us of products and 6 of memory, one after the other: 15 us.
// (64,1024,7x7,k13) is memory, 7 us, and how it is cut: 12 us. Measured: 80, 142, 37 and 24 us, where
// bands_large and tiles_correlate took 255, 329, 160 and 143: loading is hidden less than
// that.
//
// Sums are kept in fp32. A product multiplies the zeros of a band with what lies outside a result's window:
// where that is not finite the result comes out NaN, and every NaN is computed again tap by tap.

#include "batch.cuh"

namespace torchgraft::depthwise::cuda {
namespace {

template <typename T, int kShapeIndex>
__global__ void __launch_bounds__(kBatchWarps * 32, kBatchShapes[kShapeIndex].blocks)
    bands_batch(const HalfBits* __restrict__ source, Rounded<T> weight, Rounded<T> bias,
                HalfBits* __restrict__ result, BatchProduct product) {
  BatchBlock<T, kShapeIndex>(source, weight, bias, result, product).run();
}

BatchProduct product_of(const Geometry& geometry, bool transposed, const BatchShape& shape,
                        const BatchPlan& plan) {
  BatchProduct product = {};
  static_cast<HalfWindow&>(product) = half_window(geometry, transposed);
  product.images = static_cast<int>(geometry.batch);
  product.images_of_block = plan.images_of_block;
  product.chunks = plan.chunks;
  product.channels = static_cast<int>(geometry.channels);
  product.channels_of_block = plan.channels_of_block;
  const BatchTapRows tap_rows = batch_tap_rows(geometry, transposed);
  product.first_tap_row = tap_rows.first;
  product.tap_rows = tap_rows.count;
  product.band_rows = FastDivisor(product.tap_rows + 1);
  product.row_groups = ceil_divide(product.result_height, shape.rows);
  product.image_pitch = static_cast<int>(batch_image_pitch(geometry, transposed, shape));
  product.piece = plan.piece;
  product.vector = plan.vector;
  product.row_pieces = FastDivisor(product.source_width / plan.piece);
  product.source_rows = FastDivisor(product.source_height);
  const int row_end = shape.pitch() - product.source_width;
  product.has_row_end = row_end > 0;
  product.row_end = FastDivisor(std::max(1, row_end));
  product.stores_pairs = product.result_width % 2 == 0;
  return product;
}

template <typename T, int kShapeIndex = 0>
void launch(const Correlation<T>& pass, int shape_index) {
  if constexpr (kShapeIndex < std::size(kBatchShapes)) {
    if (shape_index != kShapeIndex) return launch<T, kShapeIndex + 1>(pass, shape_index);
    const auto& [source, weight, bias, result, geometry, layout, transposed, stream] = pass;
    TORCHGRAFT_CHECK(is_aligned(result, 4), pass.name(), ": a result must begin at a multiple of four bytes");
    constexpr BatchShape kShape = kBatchShapes[kShapeIndex];
    const Device& device = current_device();
    const BatchPlan plan =
        batch_plan(geometry, transposed, kShape, common_alignment(source), device.multiprocessors,
                   batch_most_bytes(kShape, device.shared_of_multiprocessor, device.shared_of_block));
    const auto kernel = bands_batch<T, kShapeIndex>;
    require_shared_memory(kernel, plan.bytes, pass.name());
    const auto bits = [](const T* pointer) { return reinterpret_cast<const HalfBits*>(pointer); };
    kernel<<<grid_of(plan.blocks, pass.name()), kBatchWarps * 32, plan.bytes, stream>>>(
        bits(source), weight, bias, reinterpret_cast<HalfBits*>(result),
        product_of(geometry, transposed, kShape, plan));
    check_launch(pass.name());
  }
}

}  // namespace

template <typename T>
void launch_bands_batch(const Correlation<T>& pass) {
  launch(pass, batch_shape(pass.geometry, pass.transposed));
}

template void launch_bands_batch(const Correlation<Half>&);
template void launch_bands_batch(const Correlation<BFloat16>&);

}  // namespace torchgraft::depthwise::cuda
