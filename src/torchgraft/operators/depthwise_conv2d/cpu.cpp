// depthwise_conv1d, depthwise_conv2d, depthwise_conv3d and the two gradients of each on CPU: registration of
// the host functions of host.h, sequences.h and volumes.h. The kernels are in cpu/forward.cpp,
// cpu/input_grad.cpp and cpu/weight_grad.cpp.

#include <torchgraft/registration.h>

#include "cpu/device.h"
#include "host.h"
#include "recorded.h"
#include "rival.h"
#include "sequences.h"
#include "volumes.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv2d, forward_on<Cpu>, &forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv2d_input_grad, input_grad_on<Cpu>,
                         &input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv2d_weight_grad, weight_grad_on<Cpu>,
                         &weight_grad_by_pytorch)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv1d, sequences_forward_on<Cpu>,
                         &sequences_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv1d_input_grad, sequences_input_grad_on<Cpu>,
                         &sequences_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv1d_weight_grad, sequences_weight_grad_on<Cpu>,
                         &sequences_weight_grad_by_pytorch)

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv3d, volumes_forward_on<Cpu>,
                         &volumes_forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv3d_input_grad, volumes_input_grad_on<Cpu>,
                         &volumes_input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv3d_weight_grad, volumes_weight_grad_on<Cpu>,
                         &volumes_weight_grad_by_pytorch)

TORCHGRAFT_RECORDED(CPU, Cpu)

}  // namespace torchgraft::depthwise
