// depthwise_conv3d and its two gradients on CPU: registration of the host functions of host.h. The kernels
// are those of depthwise_conv2d, which take volumes; convolutions that PyTorch records are registered there.

#include <torchgraft/registration.h>

#include "../depthwise_conv2d/cpu/device.h"
#include "host.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv3d, volumes_forward_on<Cpu>,
                         &volumes_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv3d_input_grad, volumes_input_grad_on<Cpu>,
                         &volumes_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv3d_weight_grad, volumes_weight_grad_on<Cpu>,
                         &volumes_weight_grad_by_pytorch)

}  // namespace torchgraft::depthwise
