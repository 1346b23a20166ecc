// clang-format off
// The cell of torchgraft_recurrences::rnn_tanh, written by torchgraft from rnn_tanh_step.
#pragma once

// A name of its own: without one, compilers of CUDA mix it up with those in torchgraft's headers.
namespace rnn_tanh_cell {

// The cell rnn_tanh_step, printed by torchgraft from its definition in PyTorch.
struct Cell {
  static constexpr int kGates = 1;
  static constexpr int kStates = 1;
  static constexpr int kParameters = 0;
  static constexpr bool kGatesApart = false;

  // (gates_0, message_gates_0, h) -> (gates_0, h, message, output)
  struct Forward {
    static constexpr int kReads = 3;
    static constexpr int kWrites = 4;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T gates_0 = read[0];
      const T message_gates_0 = read[1];
      const T add = gates_0 + message_gates_0;  // aten.add
      const T tanh = M::tanh(add);  // aten.tanh
      written[0] = add;
      written[1] = tanh;
      written[2] = tanh;
      written[3] = tanh;
    }
  };

  // (gates_0, h, h_grad, message_grad, output_grad) -> (gates_0_grad, h_grad, message)
  struct Backward {
    static constexpr int kReads = 5;
    static constexpr int kWrites = 3;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T gates_0 = read[0];
      const T h = read[1];
      const T h_grad = read[2];
      const T message_grad = read[3];
      const T output_grad = read[4];
      const T add = h_grad + message_grad;  // aten.add
      const T add_2 = output_grad + add;  // aten.add
      const T tanh_slope = torchgraft::recurrence::tanh_slope<M>(gates_0);  // aten.tanh_backward
      const T mul = add_2 * tanh_slope;  // aten.mul
      written[0] = mul;
      written[1] = T(0.0);
      written[2] = h;
    }
  };

  // (h) -> (message)
  struct Message {
    static constexpr int kReads = 1;
    static constexpr int kWrites = 1;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T h = read[0];
      written[0] = h;
    }
  };

  // (h, h_grad, message_grad) -> (h_grad)
  struct MessageBackward {
    static constexpr int kReads = 3;
    static constexpr int kWrites = 1;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T h_grad = read[1];
      const T message_grad = read[2];
      const T add = h_grad + message_grad;  // aten.add
      written[0] = add;
    }
  };
};

}  // namespace rnn_tanh_cell

