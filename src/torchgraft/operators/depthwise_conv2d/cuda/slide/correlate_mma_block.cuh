// What a block of slide_correlate_mma owns: its channels and columns, its phase of a dilation, its sequence
// of rows, and the pixels of results that its threads store.
#pragma once

#include "../half_math.cuh"
#include "../kernels.h"
#include "correlate_mma_plan.h"
#include "stream.cuh"

namespace torchgraft::depthwise::cuda {

struct SlideCorrelateMmaParameters : SlideCorrelateMmaCut {
  FastDivisor rows;  // result_height

  explicit SlideCorrelateMmaParameters(const SlideCorrelateMmaCut& cut)
      : SlideCorrelateMmaCut(cut), rows(cut.result_height) {}
};

// With a dilation: the sizes are those of the largest phase.
struct PhasedSlideCorrelateMmaParameters : SlideCorrelateMmaParameters {
  PhaseAxis height, width;
  int phases;  // each has blocks of its own; blockIdx.x counts them between tiles and ranges

  PhasedSlideCorrelateMmaParameters(const SlideCorrelateMmaCut& cut, const Geometry& geometry,
                                    bool transposed)
      : SlideCorrelateMmaParameters(cut),
        height(geometry.height, transposed),
        width(geometry.width, transposed),
        phases(height.result_phases() * width.result_phases()) {}
};

// The parameters of one phase, whose pixels lie apart. With these its block is one of a dense convolution.
struct SlideCorrelateMmaPhase : SlideCorrelateMmaParameters {
  PhaseAxis height, width;
  int phase_y, phase_x;

  __device__ SlideCorrelateMmaPhase(const PhasedSlideCorrelateMmaParameters& of_all, int phase)
      : SlideCorrelateMmaParameters(of_all), height(of_all.height), width(of_all.width) {
    phase_y = phase / width.result_phases();
    phase_x = phase - phase_y * width.result_phases();
    const auto count = [](int size, int first, int step) {
      return size > first ? (size - first - 1) / step + 1 : 0;
    };
    source_height = count(height.source, first_source(height, phase_y), height.step);
    source_width = count(width.source, first_source(width, phase_x), width.step);
    result_height = count(height.result, phase_y, height.step);
    result_width = count(width.result, phase_x, width.step);
    padding_y += is_before(height, phase_y);
    padding_x += is_before(width, phase_x);
  }
  // Whether source 0 of the phase would lie before the image: the phase then begins with source 1, in
  // front of which there is one more of padding.
  static __device__ int is_before(const PhaseAxis& axis, int phase) { return phase < axis.lead ? 1 : 0; }
  static __device__ int first_source(const PhaseAxis& axis, int phase) {
    return axis.source_at(phase, is_before(axis, phase));
  }
  __device__ int first_source_element() const {
    return (first_source(height, phase_y) * width.source + first_source(width, phase_x)) * channels;
  }
  __device__ int first_result_element() const { return (phase_y * width.result + phase_x) * channels; }
};

// The parameters of the dense convolution that a block belongs to: those of all, or of its phase.
__device__ inline const SlideCorrelateMmaParameters& in_phase(const SlideCorrelateMmaParameters& parameters,
                                                              int) {
  return parameters;
}
__device__ inline SlideCorrelateMmaPhase in_phase(const PhasedSlideCorrelateMmaParameters& parameters,
                                                  int phase) {
  return {parameters, phase};
}

// The first elements of a dense convolution in its images.
__device__ inline int first_source_element(const SlideCorrelateMmaParameters&) { return 0; }
__device__ inline int first_result_element(const SlideCorrelateMmaParameters&) { return 0; }
__device__ inline int first_source_element(const SlideCorrelateMmaPhase& p) {
  return p.first_source_element();
}
__device__ inline int first_result_element(const SlideCorrelateMmaPhase& p) {
  return p.first_result_element();
}

// Elements from column to column, row to row and image to image.
struct PixelSteps {
  int column, row, image;
};
__device__ inline PixelSteps source_elements(const SlideCorrelateMmaParameters& p) {
  return {p.channels, p.source_width * p.channels, p.source_height * (p.source_width * p.channels)};
}
__device__ inline PixelSteps result_elements(const SlideCorrelateMmaParameters& p) {
  return {p.channels, p.result_width * p.channels, p.result_height * (p.result_width * p.channels)};
}
__device__ inline PixelSteps source_elements(const SlideCorrelateMmaPhase& p) {
  return {p.channels * p.width.step, p.width.source * p.channels * p.height.step,
          p.height.source * p.width.source * p.channels};
}
__device__ inline PixelSteps result_elements(const SlideCorrelateMmaPhase& p) {
  return {p.channels * p.width.step, p.width.result * p.channels * p.height.step,
          p.height.result * p.width.result * p.channels};
}

// The first element of a row, in steps between rows where an image is a whole number of them.
__device__ inline int64_t source_row(const SlideCorrelateMmaParameters& p, const PixelSteps& steps,
                                     int64_t image, int row) {
  return (image * p.source_height + row) * steps.row;
}
__device__ inline int64_t result_row(const SlideCorrelateMmaParameters& p, const PixelSteps& steps,
                                     int64_t image, int row) {
  return (image * p.result_height + row) * steps.row;
}
__device__ inline int64_t source_row(const SlideCorrelateMmaPhase&, const PixelSteps& steps, int64_t image,
                                     int row) {
  return image * steps.image + static_cast<int64_t>(row) * steps.row;
}
__device__ inline int64_t result_row(const SlideCorrelateMmaPhase&, const PixelSteps& steps, int64_t image,
                                     int row) {
  return image * steps.image + static_cast<int64_t>(row) * steps.row;
}

// The place of a block among the channels, columns, phases and ranges.
struct SlideCorrelateMmaBlock {
  int first_channel, tile, range;
  int phase = 0;

  __device__ explicit SlideCorrelateMmaBlock(const PhasedSlideCorrelateMmaParameters& parameters)
      : SlideCorrelateMmaBlock(static_cast<const SlideCorrelateMmaParameters&>(parameters)) {
    const int all = range;
    range = all / parameters.phases;
    phase = all - range * parameters.phases;
  }
  __device__ explicit SlideCorrelateMmaBlock(const SlideCorrelateMmaParameters& parameters) {
    const unsigned slices = parameters.slices;
    const unsigned tiles = parameters.tiles;
    const unsigned place = blockIdx.x / slices;
    first_channel = static_cast<int>(blockIdx.x - place * slices) * parameters.octets * kOctet;
    range = static_cast<int>(place / tiles);
    tile = static_cast<int>(place - range * tiles);
  }
};

// The place of a block in its sequence of rows: in a share of it, some result rows of a group of images, and
// the source rows under them.
struct SlideCorrelateMmaRows {
  int next, last;
  int group = 0, first = 0, count = 0;
  int begin = 0, end = 0;  // of sources

  __device__ SlideCorrelateMmaRows(const SlideCorrelateMmaParameters& parameters, int range) {
    const auto bound = [&](int index) {
      return static_cast<int>(static_cast<int64_t>(parameters.granules) * index / parameters.ranges) *
             parameters.granule_rows;
    };
    next = bound(range);
    last = bound(range + 1);
  }

  // Goes on to the next share; returns whether there is one.
  template <int kStride, typename Phase>
  __device__ bool enter(const Phase& parameters) {
    if constexpr (std::is_same_v<Phase, SlideCorrelateMmaPhase>) {
      // A phase may have fewer rows than the largest one, so that a share may have none.
      do {
        if (next >= last) return false;
        group = parameters.rows.divide(next);
        first = next - group * parameters.rows.divisor();
        count = min(parameters.rows.divisor() - first, last - next);
        next += count;
        count = min(count, parameters.result_height - first);
      } while (count <= 0);
    } else {
      if (next >= last) return false;
      group = parameters.rows.divide(next);
      first = next - group * parameters.result_height;
      count = min(parameters.result_height - first, last - next);
      next += count;
    }
    const int top = first * kStride - parameters.padding_y;
    begin = max(0, top);
    end = min(parameters.source_height, top + (count - 1) * kStride + parameters.kernel_height);
    return true;
  }

  __device__ int images(const SlideCorrelateMmaParameters& parameters) const {
    return min(parameters.images, parameters.batch - group * parameters.images);
  }
};

// The eight channels of one pixel of results that a thread stores in every row.
struct SlideCorrelateMmaPlace {
  int image, column, channel;
  int slot;  // of the pixel in shared memory

  __device__ SlideCorrelateMmaPlace(const SlideCorrelateMmaParameters& parameters,
                                    const SlideCorrelateMmaBlock& block) {
    slot = static_cast<int>(threadIdx.x) / parameters.octets;
    channel = block.first_channel + (static_cast<int>(threadIdx.x) - slot * parameters.octets) * kOctet;
    image = slot / 2 / parameters.pairs;
    column = 2 * (block.tile - image) * parameters.pairs + slot;
  }
  __device__ bool is_inside(const SlideCorrelateMmaParameters& parameters) const {
    return image < parameters.images && column < parameters.result_width && channel < parameters.channels;
  }
};

// Computes those results that a thread has stored again that are NaN: only what lies in their windows.
// `source` and `result` begin with the pixels of the block's phase.
template <typename T, int kStride, typename Number, typename Parameters>
__device__ __noinline__ void repair_range(const HalfBits* source, const Number* weight, Rounded<T> bias,
                                          HalfBits* result, const Parameters& given) {
  using Math = HalfMath<T>;
  const SlideCorrelateMmaBlock block(given);
  const auto& parameters = in_phase(given, block.phase);
  const PixelSteps from = source_elements(parameters);
  const PixelSteps to = result_elements(parameters);
  const int taps = parameters.kernel_height * parameters.kernel_width;
  const SlideCorrelateMmaPlace place(parameters, block);
  SlideCorrelateMmaRows rows(parameters, block.range);
  while (rows.template enter<kStride>(parameters)) {
    if (place.image >= rows.images(parameters)) continue;
    const int64_t image = static_cast<int64_t>(rows.group) * parameters.images + place.image;
    for (int y = rows.first; y < rows.first + rows.count; ++y) {
      HalfBits* pixel = result + image * to.image + static_cast<int64_t>(y) * to.row +
                        static_cast<int64_t>(place.column) * to.column;
      for (int channel = place.channel; channel < place.channel + kOctet; ++channel) {
        if (!Math::is_nan(pixel[channel])) continue;
        float sum = bias.or_zero(true, channel);
        for (int tap = 0; tap < taps; ++tap) {
          const int row = tap / parameters.kernel_width;
          const int source_y = y * kStride - parameters.padding_y + row;
          const int source_x =
              place.column * kStride - parameters.padding_x + tap - row * parameters.kernel_width;
          if (source_y < 0 || source_y >= parameters.source_height || source_x < 0 ||
              source_x >= parameters.source_width) {
            continue;
          }
          const int place = parameters.flipped ? taps - 1 - tap : tap;
          const T number = read_rounded<T>(weight + static_cast<int64_t>(channel) * taps + place);
          sum += static_cast<float>(number) *
                 Math::to_float(source[image * from.image + static_cast<int64_t>(source_y) * from.row +
                                       static_cast<int64_t>(source_x) * from.column + channel]);
        }
        pixel[channel] = Math::from_float(sum);
      }
    }
  }
}

}  // namespace torchgraft::depthwise::cuda
