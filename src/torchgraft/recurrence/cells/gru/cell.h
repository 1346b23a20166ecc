// clang-format off
// The cell of torchgraft_recurrences::gru, written by torchgraft from gru_step.
#pragma once

// A name of its own: without one, compilers of CUDA mix it up with those in torchgraft's headers.
namespace gru_cell {

// The cell gru_step, printed by torchgraft from its definition in PyTorch.
struct Cell {
  static constexpr int kGates = 3;
  static constexpr int kStates = 1;
  static constexpr int kParameters = 0;
  static constexpr bool kGatesApart = true;

  // (gates_0, gates_1, gates_2, message_gates_0, message_gates_1, message_gates_2, message_bias_0,
  // message_bias_1, message_bias_2, h) -> (message_gates_0, message_gates_1, message_gates_2, h, message,
  // output)
  struct Forward {
    static constexpr int kReads = 10;
    static constexpr int kWrites = 6;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T gates_0 = read[0];
      const T gates_1 = read[1];
      const T gates_2 = read[2];
      const T message_gates_0 = read[3];
      const T message_gates_1 = read[4];
      const T message_gates_2 = read[5];
      const T message_bias_0 = read[6];
      const T message_bias_1 = read[7];
      const T message_bias_2 = read[8];
      const T h = read[9];
      const T add = message_gates_0 + message_bias_0;  // aten.add
      const T add_2 = message_gates_1 + message_bias_1;  // aten.add
      const T add_3 = message_gates_2 + message_bias_2;  // aten.add
      const T add_4 = gates_0 + add;  // aten.add
      const T sigmoid = M::sigmoid(add_4);  // aten.sigmoid
      const T add_5 = gates_1 + add_2;  // aten.add
      const T sigmoid_2 = M::sigmoid(add_5);  // aten.sigmoid
      const T mul = add_3 * sigmoid;  // aten.mul
      const T add_6 = gates_2 + mul;  // aten.add
      const T tanh = M::tanh(add_6);  // aten.tanh
      const T sub = T(1.0) - sigmoid_2;  // aten.sub
      const T mul_2 = tanh * sub;  // aten.mul
      const T mul_3 = h * sigmoid_2;  // aten.mul
      const T add_7 = mul_2 + mul_3;  // aten.add
      written[0] = add;
      written[1] = add_2;
      written[2] = add_3;
      written[3] = add_7;
      written[4] = add_7;
      written[5] = add_7;
    }
  };

  // (gates_0, gates_1, gates_2, message_gates_0, message_gates_1, message_gates_2, h, h_grad, message_grad,
  // output_grad) -> (gates_0_grad, gates_1_grad, gates_2_grad, message_gates_0_grad, message_gates_1_grad,
  // message_gates_2_grad, h_grad, message)
  struct Backward {
    static constexpr int kReads = 10;
    static constexpr int kWrites = 8;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T gates_0 = read[0];
      const T gates_1 = read[1];
      const T gates_2 = read[2];
      const T message_gates_0 = read[3];
      const T message_gates_1 = read[4];
      const T message_gates_2 = read[5];
      const T h = read[6];
      const T h_grad = read[7];
      const T message_grad = read[8];
      const T output_grad = read[9];
      const T add = gates_0 + message_gates_0;  // aten.add
      const T sigmoid = M::sigmoid(add);  // aten.sigmoid
      const T add_2 = gates_1 + message_gates_1;  // aten.add
      const T sigmoid_2 = M::sigmoid(add_2);  // aten.sigmoid
      const T mul = message_gates_2 * sigmoid;  // aten.mul
      const T add_3 = gates_2 + mul;  // aten.add
      const T tanh = M::tanh(add_3);  // aten.tanh
      const T sub = T(1.0) - sigmoid_2;  // aten.sub
      const T add_4 = h_grad + message_grad;  // aten.add
      const T add_5 = output_grad + add_4;  // aten.add
      const T mul_2 = sigmoid_2 * add_5;  // aten.mul
      const T mul_3 = h * add_5;  // aten.mul
      const T mul_4 = sub * add_5;  // aten.mul
      const T mul_5 = tanh * add_5;  // aten.mul
      const T neg = -mul_5;  // aten.neg
      const T add_6 = mul_3 + neg;  // aten.add
      const T tanh_slope = torchgraft::recurrence::tanh_slope<M>(add_3);  // aten.tanh_backward
      const T mul_6 = mul_4 * tanh_slope;  // aten.mul
      const T mul_7 = sigmoid * mul_6;  // aten.mul
      const T mul_8 = message_gates_2 * mul_6;  // aten.mul
      const T sigmoid_slope = torchgraft::recurrence::sigmoid_slope<M>(add_2);  // aten.sigmoid_backward
      const T mul_9 = add_6 * sigmoid_slope;  // aten.mul
      const T sigmoid_slope_2 = torchgraft::recurrence::sigmoid_slope<M>(add);  // aten.sigmoid_backward
      const T mul_10 = mul_8 * sigmoid_slope_2;  // aten.mul
      written[0] = mul_10;
      written[1] = mul_9;
      written[2] = mul_6;
      written[3] = mul_10;
      written[4] = mul_9;
      written[5] = mul_7;
      written[6] = mul_2;
      written[7] = h;
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

}  // namespace gru_cell

