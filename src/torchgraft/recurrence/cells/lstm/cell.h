// clang-format off
// The cell of torchgraft_recurrences::lstm, written by torchgraft from lstm_step.
#pragma once

// A name of its own: without one, compilers of CUDA mix it up with those in torchgraft's headers.
namespace lstm_cell {

// The cell lstm_step, printed by torchgraft from its definition in PyTorch.
struct Cell {
  static constexpr int kGates = 4;
  static constexpr int kStates = 2;
  static constexpr int kParameters = 0;
  static constexpr bool kGatesApart = false;

  // (gates_0, gates_1, gates_2, gates_3, message_gates_0, message_gates_1, message_gates_2, message_gates_3,
  // h, c) -> (gates_0, gates_1, gates_2, gates_3, h, c, message, output)
  struct Forward {
    static constexpr int kReads = 10;
    static constexpr int kWrites = 8;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T gates_0 = read[0];
      const T gates_1 = read[1];
      const T gates_2 = read[2];
      const T gates_3 = read[3];
      const T message_gates_0 = read[4];
      const T message_gates_1 = read[5];
      const T message_gates_2 = read[6];
      const T message_gates_3 = read[7];
      const T c = read[9];
      const T add = gates_0 + message_gates_0;  // aten.add
      const T add_2 = gates_1 + message_gates_1;  // aten.add
      const T add_3 = gates_2 + message_gates_2;  // aten.add
      const T add_4 = gates_3 + message_gates_3;  // aten.add
      const T sigmoid = M::sigmoid(add_2);  // aten.sigmoid
      const T mul = c * sigmoid;  // aten.mul
      const T sigmoid_2 = M::sigmoid(add);  // aten.sigmoid
      const T tanh = M::tanh(add_3);  // aten.tanh
      const T mul_2 = sigmoid_2 * tanh;  // aten.mul
      const T add_5 = mul + mul_2;  // aten.add
      const T sigmoid_3 = M::sigmoid(add_4);  // aten.sigmoid
      const T tanh_2 = M::tanh(add_5);  // aten.tanh
      const T mul_3 = sigmoid_3 * tanh_2;  // aten.mul
      written[0] = add;
      written[1] = add_2;
      written[2] = add_3;
      written[3] = add_4;
      written[4] = mul_3;
      written[5] = add_5;
      written[6] = mul_3;
      written[7] = mul_3;
    }
  };

  // (gates_0, gates_1, gates_2, gates_3, h, c, h_grad, c_grad, message_grad, output_grad) -> (gates_0_grad,
  // gates_1_grad, gates_2_grad, gates_3_grad, h_grad, c_grad, message)
  struct Backward {
    static constexpr int kReads = 10;
    static constexpr int kWrites = 7;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T gates_0 = read[0];
      const T gates_1 = read[1];
      const T gates_2 = read[2];
      const T gates_3 = read[3];
      const T h = read[4];
      const T c = read[5];
      const T h_grad = read[6];
      const T c_grad = read[7];
      const T message_grad = read[8];
      const T output_grad = read[9];
      const T sigmoid = M::sigmoid(gates_1);  // aten.sigmoid
      const T mul = c * sigmoid;  // aten.mul
      const T sigmoid_2 = M::sigmoid(gates_0);  // aten.sigmoid
      const T tanh = M::tanh(gates_2);  // aten.tanh
      const T mul_2 = sigmoid_2 * tanh;  // aten.mul
      const T add = mul + mul_2;  // aten.add
      const T sigmoid_3 = M::sigmoid(gates_3);  // aten.sigmoid
      const T tanh_2 = M::tanh(add);  // aten.tanh
      const T add_2 = h_grad + message_grad;  // aten.add
      const T add_3 = output_grad + add_2;  // aten.add
      const T mul_3 = sigmoid_3 * add_3;  // aten.mul
      const T mul_4 = tanh_2 * add_3;  // aten.mul
      const T tanh_slope = torchgraft::recurrence::tanh_slope<M>(add);  // aten.tanh_backward
      const T mul_5 = mul_3 * tanh_slope;  // aten.mul
      const T add_4 = c_grad + mul_5;  // aten.add
      const T sigmoid_slope = torchgraft::recurrence::sigmoid_slope<M>(gates_3);  // aten.sigmoid_backward
      const T mul_6 = mul_4 * sigmoid_slope;  // aten.mul
      const T mul_7 = sigmoid_2 * add_4;  // aten.mul
      const T mul_8 = tanh * add_4;  // aten.mul
      const T tanh_slope_2 = torchgraft::recurrence::tanh_slope<M>(gates_2);  // aten.tanh_backward
      const T mul_9 = mul_7 * tanh_slope_2;  // aten.mul
      const T sigmoid_slope_2 = torchgraft::recurrence::sigmoid_slope<M>(gates_0);  // aten.sigmoid_backward
      const T mul_10 = mul_8 * sigmoid_slope_2;  // aten.mul
      const T mul_11 = sigmoid * add_4;  // aten.mul
      const T mul_12 = c * add_4;  // aten.mul
      const T sigmoid_slope_3 = torchgraft::recurrence::sigmoid_slope<M>(gates_1);  // aten.sigmoid_backward
      const T mul_13 = mul_12 * sigmoid_slope_3;  // aten.mul
      written[0] = mul_10;
      written[1] = mul_13;
      written[2] = mul_9;
      written[3] = mul_6;
      written[4] = T(0.0);
      written[5] = mul_11;
      written[6] = h;
    }
  };

  // (h, c) -> (message)
  struct Message {
    static constexpr int kReads = 2;
    static constexpr int kWrites = 1;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T h = read[0];
      written[0] = h;
    }
  };

  // (h, c, h_grad, c_grad, message_grad) -> (h_grad, c_grad)
  struct MessageBackward {
    static constexpr int kReads = 5;
    static constexpr int kWrites = 2;
    template <typename M, typename T>
    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {
      const T h_grad = read[2];
      const T c_grad = read[3];
      const T message_grad = read[4];
      const T add = h_grad + message_grad;  // aten.add
      written[0] = add;
      written[1] = c_grad;
    }
  };
};

}  // namespace lstm_cell

