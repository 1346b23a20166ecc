// clang-format off
// The cell of torchgraft_recurrences::rnn_relu, written by torchgraft from rnn_relu_step.
#pragma once

// A name of its own: without one, compilers of CUDA mix it up with those in torchgraft's headers.
namespace rnn_relu_cell {

// The cell rnn_relu_step, printed by torchgraft from its definition in PyTorch.
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
      const T relu = add <= T(0) ? T(0) : add;  // aten.relu
      written[0] = add;
      written[1] = relu;
      written[2] = relu;
      written[3] = relu;
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
      const T relu = gates_0 <= T(0) ? T(0) : gates_0;  // aten.relu
      const T add = h_grad + message_grad;  // aten.add
      const T add_2 = output_grad + add;  // aten.add
      const bool le = relu <= T(0.0);  // aten.le
      const T where = le ? T(0.0) : add_2;  // aten.where
      written[0] = where;
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

}  // namespace rnn_relu_cell

