// nms on CPU: boxes in the order of their scores, each compared with all that come after it.
//
// All is computed in double, so that float16 boxes are kept or dropped as their exact overlaps say. A box
// that is kept is compared with a row of others in two loops: the areas shared, and then the quotients. In
// one loop the compiler would contract a product and a sum, and an overlap that is exactly the threshold
// could come out above it.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/empty.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace torchgraft {
namespace {

// Another thread joins in only for at least this many boxes.
constexpr int64_t kGrain = 2048;

// Boxes in the order of their scores, a coordinate at a time.
struct Boxes {
  std::vector<double> x1, y1, x2, y2, area;

  template <typename T>
  Boxes(const T* boxes, const std::vector<int64_t>& order) {
    for (std::vector<double>* each : {&x1, &y1, &x2, &y2, &area}) each->resize(order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const T* const box = boxes + 4 * order[i];
      x1[i] = static_cast<double>(box[0]);
      y1[i] = static_cast<double>(box[1]);
      x2[i] = static_cast<double>(box[2]);
      y2[i] = static_cast<double>(box[3]);
      area[i] = (x2[i] - x1[i]) * (y2[i] - y1[i]);
    }
  }
};

// Marks those boxes in [begin, end) that overlap with a box by more than the threshold.
TORCHGRAFT_CLONES void drop_overlapping(const Boxes& boxes, int64_t best, double threshold, int64_t begin,
                                        int64_t end, double* shared, uint8_t* dropped) {
  const double x1 = boxes.x1[best], y1 = boxes.y1[best], x2 = boxes.x2[best], y2 = boxes.y2[best];
  const double area = boxes.area[best];
  const double *const left = boxes.x1.data(), *const top = boxes.y1.data();
  const double *const right = boxes.x2.data(), *const bottom = boxes.y2.data();
  for (int64_t i = begin; i < end; ++i) {
    const double width = std::min(x2, right[i]) - std::max(x1, left[i]);
    const double height = std::min(y2, bottom[i]) - std::max(y1, top[i]);
    shared[i] = std::max(0.0, width) * std::max(0.0, height);
  }
  const double* const areas = boxes.area.data();
  for (int64_t i = begin; i < end; ++i) {
    // A comparison with NaN is false: a box without an area is kept.
    dropped[i] |= shared[i] / (area + areas[i] - shared[i]) > threshold;
  }
}

// The places of scores, the largest first. As in torch.sort NaN is larger than all else, and of equal scores
// the first goes first.
template <typename T>
std::vector<int64_t> sort_descending(const T* scores, int64_t count) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
    const double one = static_cast<double>(scores[left]), other = static_cast<double>(scores[right]);
    return one > other || (std::isnan(one) && !std::isnan(other));
  });
  return order;
}

Tensor nms_cpu(Tensor boxes, Tensor scores, double iou_threshold) {
  check_dim(boxes, 2, "boxes");
  check_dim(scores, 1, "scores");
  check_same_kind(boxes, "boxes", scores, "scores");
  const int64_t count = boxes.size(0);
  TORCHGRAFT_CHECK(boxes.size(1) == 4, "boxes must be (N, 4)");
  TORCHGRAFT_CHECK(scores.size(0) == count, "there must be as many scores as boxes");
  return dispatch_floating(boxes.scalar_type(), "nms", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Tensor straight_boxes = to_contiguous(boxes), straight_scores = to_contiguous(scores);
    const std::vector<int64_t> order = sort_descending(data_of<T>(straight_scores), count);
    const Boxes sorted(data_of<T>(straight_boxes), order);

    std::vector<uint8_t> dropped(count);
    std::vector<double> shared(count);
    std::vector<int64_t> kept;
    for (int64_t best = 0; best < count; ++best) {
      if (dropped[best]) continue;
      kept.push_back(order[best]);
      parallel_for(best + 1, count, kGrain, [&](int64_t begin, int64_t end) {
        drop_overlapping(sorted, best, iou_threshold, begin, end, shared.data(), dropped.data());
      });
    }

    Tensor output = empty_contiguous({static_cast<int64_t>(kept.size())}, boxes, aoti_torch_dtype_int64());
    std::copy(kept.begin(), kept.end(), mutable_data_of<int64_t>(output));
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(gallery_nms, CPU, nms, nms_cpu)

}  // namespace torchgraft
