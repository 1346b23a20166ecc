// depthwise_conv1d and its two gradients on CUDA: registration of the host functions of host.h. The kernels
// are those of depthwise_conv2d, for which a sequence is an image of one row; convolutions that PyTorch
// records are registered there, for images and sequences alike.

#include <torchgraft/registration.h>

#include "../depthwise_conv2d/cuda/device.cuh"
#include "host.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNELS(depthwise_conv1d, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv1d_input_grad, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv1d_weight_grad, cuda::kWeightGradRules)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv1d, sequences_forward_on<Cuda>,
                         &sequences_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv1d_input_grad, sequences_input_grad_on<Cuda>,
                         &sequences_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv1d_weight_grad, sequences_weight_grad_on<Cuda>,
                         &sequences_weight_grad_by_pytorch)

}  // namespace torchgraft::depthwise
