// depthwise_conv2d and its two gradients on CPU: registration of the host functions of host.h. The kernels
// are in cpu/forward.cpp, cpu/input_grad.cpp and cpu/weight_grad.cpp.

#include <torchgraft/registration.h>

#include "cpu/device.h"
#include "host.h"
#include "recorded.h"
#include "rival.h"

namespace torchgraft::depthwise {

TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv2d, forward_on<Cpu>, &forward_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv2d_input_grad, input_grad_on<Cpu>,
                         &input_grad_by_pytorch)
TORCHGRAFT_KERNEL_BESIDE(torchgraft, CPU, depthwise_conv2d_weight_grad, weight_grad_on<Cpu>,
                         &weight_grad_by_pytorch)
TORCHGRAFT_RECORDED(CPU, Cpu)

}  // namespace torchgraft::depthwise
