// Which family of kernels serves a convolution on CUDA: asked in order, the first that can does. What each
// family is for, and what it reaches, is told in its own file.
#pragma once

#include <torchgraft/layout.h>

#include "cuda_gather.h"
#include "cuda_planes.h"
#include "cuda_slide_channels_last.h"
#include "cuda_slide_weight_grad.h"
#include "cuda_small_planes.h"
#include "cuda_strips.h"
#include "cuda_tensor_core.cuh"
#include "cuda_tensor_core_large.h"
#include "cuda_tensor_core_weight_grad.cuh"
#include "cuda_weight_grad_general.h"
#include "cuda_weight_grad_strips.h"
#include "geometry.h"

namespace torchgraft::depthwise::cuda {

// Of a kernel that is bound by memory; one with more is by arithmetic.
constexpr int64_t kFewTaps = 7 * 7;

enum class Family {
  tensor_core,        // products of band matrices, of halves
  large_tensor_core,  // the same for large kernels, NCHW
  small_planes,       // NCHW, planes of 7 x 7 to 28 x 28 moved whole
  strips,             // NCHW, small kernels
  large_planes,       // NCHW, large kernels
  slide,              // NHWC, small kernels
  general,            // anything that fits 32 bits
  direct,             // anything
};

// What matters of the images beside their sizes.
struct Images {
  Layout layout;
  int element_bytes;  // eight: float64, which is for checking gradients, not for speed
  int alignment;      // of their pointers: the greatest power of two, at most 16
  bool tensor_cores;  // whether the device has them, for halves
};

// Of the forward pass or, transposed, of the input gradient.
inline Family choose(const Geometry& geometry, const Images& images, bool transposed) {
  const bool aligned = images.alignment == 16;
  const bool planes = images.layout == Layout::contiguous;
  if (images.element_bytes < 8) {
    if (images.element_bytes == 2 && images.tensor_cores &&
        serves_tensor_core(geometry, images.layout, transposed, aligned)) {
      return Family::tensor_core;
    }
    if (images.element_bytes == 2 && images.tensor_cores && planes && geometry.taps() > kFewTaps &&
        serves_tensor_core_large(geometry, transposed)) {
      return Family::large_tensor_core;
    }
    if (planes && serves_small_planes(geometry, aligned)) return Family::small_planes;
    if (planes && serves_strips(geometry, transposed)) return Family::strips;
    if (planes && serves_large_planes(geometry, transposed)) return Family::large_planes;
    if (!planes && serves_slide_channels_last(geometry, images.element_bytes, images.alignment)) {
      return Family::slide;
    }
  }
  return serves_gather(geometry, transposed) ? Family::general : Family::direct;
}

inline Family choose_weight_grad(const Geometry& geometry, const Images& images) {
  const bool planes = images.layout == Layout::contiguous;
  if (images.element_bytes < 8) {
    if (images.element_bytes == 2 && images.tensor_cores &&
        serves_tensor_core_weight_grad(geometry, images.layout)) {
      return Family::tensor_core;
    }
    if (planes && serves_weight_grad_small_planes(geometry, images.alignment == 16, images.element_bytes)) {
      return Family::small_planes;
    }
    if (planes && serves_weight_grad_strips(geometry)) return Family::strips;
    if (planes && serves_large_weight_grad_planes(geometry)) return Family::large_planes;
    if (!planes && serves_slide_weight_grad(geometry, images.element_bytes, images.alignment)) {
      return Family::slide;
    }
  }
  return serves_weight_grad_general(geometry) ? Family::general : Family::direct;
}

}  // namespace torchgraft::depthwise::cuda
