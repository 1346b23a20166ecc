// depthwise_conv3d and its two gradients on CUDA: registration of the host functions of
// depthwise_conv2d/volumes.h, and of the kernels that they call, which lie in cuda/.

#include <torchgraft/registration.h>

#include "../depthwise_conv2d/volumes.h"
#include "cuda/device.cuh"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNELS(depthwise_conv3d, volumes::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv3d_input_grad, volumes::kInputGradRules)
TORCHGRAFT_KERNELS(depthwise_conv3d_weight_grad, volumes::kWeightGradRules)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv3d, volumes_forward_on<CudaVolumes>,
                         &volumes_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv3d_input_grad,
                         volumes_input_grad_on<CudaInputGradVolumes>, &volumes_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv3d_weight_grad, volumes_weight_grad_on<CudaVolumes>,
                         &volumes_weight_grad_by_pytorch)

}  // namespace torchgraft::depthwise
