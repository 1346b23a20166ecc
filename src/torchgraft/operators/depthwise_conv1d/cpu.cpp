// depthwise_conv1d and its two gradients on CPU: registration of the host functions of host.h. The kernels
// are those of depthwise_conv2d, for which a sequence is an image of one row; convolutions that PyTorch
// records are registered there, for images and sequences alike.

#include <torchgraft/registration.h>

#include "../depthwise_conv2d/cpu/device.h"
#include "host.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv1d, sequences_forward_on<Cpu>,
                         &sequences_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv1d_input_grad, sequences_input_grad_on<Cpu>,
                         &sequences_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv1d_weight_grad, sequences_weight_grad_on<Cpu>,
                         &sequences_weight_grad_by_pytorch)

}  // namespace torchgraft::depthwise
