// depthwise_conv2d and its two gradients on CUDA: registration of the host functions of host.h, and of the
// kernels that serve them, which lie in rooms of cuda/ by technique.

#include <torchgraft/registration.h>

#include "cuda/device.cuh"
#include "host.h"
#include "recorded.h"
#include "rival.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNELS(depthwise_conv2d, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv2d_input_grad, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv2d_weight_grad, cuda::kWeightGradRules)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv2d, forward_on<Cuda>, &forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv2d_input_grad, input_grad_on<Cuda>,
                         &input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv2d_weight_grad, weight_grad_on<Cuda>,
                         &weight_grad_by_pytorch)
TORCHGRAFT_RECORDED(CUDA, Cuda)

}  // namespace torchgraft::depthwise
