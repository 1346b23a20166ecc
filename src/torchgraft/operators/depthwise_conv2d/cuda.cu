// depthwise_conv2d, depthwise_conv1d and the two gradients of each on CUDA: registration of the host
// functions of host.h and sequences.h, and of the kernels that they call, which lie in folders of cuda/ by
// technique.

#include <torchgraft/registration.h>

#include "cuda/device.cuh"
#include "host.h"
#include "recorded.h"
#include "rival.h"
#include "sequences.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNELS(depthwise_conv2d, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv2d_input_grad, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv2d_weight_grad, cuda::kWeightGradRules)
TORCHGRAFT_KERNELS(depthwise_conv1d, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv1d_input_grad, cuda::kCorrelationRules)
TORCHGRAFT_KERNELS(depthwise_conv1d_weight_grad, cuda::kWeightGradRules)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv2d, forward_on<Cuda>, &forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv2d_input_grad, input_grad_on<Cuda>,
                         &input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv2d_weight_grad, weight_grad_on<Cuda>,
                         &weight_grad_by_pytorch)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv1d, sequences_forward_on<Cuda>,
                         &sequences_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv1d_input_grad, sequences_input_grad_on<Cuda>,
                         &sequences_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CUDA, depthwise_conv1d_weight_grad, sequences_weight_grad_on<Cuda>,
                         &sequences_weight_grad_by_pytorch)

TORCHGRAFT_RECORDED(CUDA, Cuda)

}  // namespace torchgraft::depthwise
