// furthest_point_sampling on CPU: a cloud a thread, and one pass through its points for each that is chosen.
//
// A pass computes each point's distance to the point chosen last, keeps the least that it has had, and finds
// the largest of these. All is computed in double, whatever comes in, so that no choice depends on how a
// distance is rounded. Of equal distances the first point is chosen, as torch.argmax chooses it; a distance
// that is NaN is larger than all others there, and here.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/empty.h>
#include <torchgraft/registration.h>
#include <torchgraft/rows.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace torchgraft {
namespace {

// Points of a cloud, a coordinate at a time, and the least distance of each to any that was chosen.
struct Cloud {
  std::vector<double> x, y, z, distance;

  template <typename T>
  Cloud(const T* points, int64_t count) : x(count), y(count), z(count), distance(count) {
    for (int64_t i = 0; i < count; ++i) {
      x[i] = static_cast<double>(points[3 * i]);
      y[i] = static_cast<double>(points[3 * i + 1]);
      z[i] = static_cast<double>(points[3 * i + 2]);
    }
    std::fill(distance.begin(), distance.end(), std::numeric_limits<double>::infinity());
  }
};

TORCHGRAFT_CLONES void approach(Cloud& cloud, int64_t last) {
  const double x = cloud.x[last], y = cloud.y[last], z = cloud.z[last];
  const double *const xs = cloud.x.data(), *const ys = cloud.y.data(), *const zs = cloud.z.data();
  double* const distance = cloud.distance.data();
  const int64_t count = static_cast<int64_t>(cloud.distance.size());
  for (int64_t i = 0; i < count; ++i) {
    const double dx = xs[i] - x, dy = ys[i] - y, dz = zs[i] - z;
    const double found = dx * dx + dy * dy + dz * dz;
    // Once NaN, always NaN.
    distance[i] = found >= distance[i] || std::isnan(distance[i]) ? distance[i] : found;
  }
}

int64_t furthest(const std::vector<double>& distance) {
  size_t best = 0;
  for (size_t i = 0; i < distance.size() && !std::isnan(distance[best]); ++i) {
    if (distance[i] > distance[best] || std::isnan(distance[i])) best = i;
  }
  return static_cast<int64_t>(best);
}

Tensor furthest_point_sampling_cpu(Tensor points, int64_t count) {
  check_dim(points, 3, "points");
  TORCHGRAFT_CHECK(points.size(2) == 3, "points must be (batch, points, 3)");
  TORCHGRAFT_CHECK(count >= 0 && count <= points.size(1), "count must lie between 0 and ", points.size(1));
  return dispatch_floating(points.scalar_type(), "furthest_point_sampling", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const Rows clouds = rows_of(points, "points", 2);
    Tensor output = empty_contiguous({clouds.count, count}, points, aoti_torch_dtype_int64());
    if (count == 0) return output;

    const T* const from = data_of<T>(clouds.tensor, "points");
    int64_t* const to = mutable_data_of<int64_t>(output);
    parallel_for(0, clouds.count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t cloud_number = begin; cloud_number < end; ++cloud_number) {
        Cloud cloud(from + cloud_number * clouds.columns, clouds.columns / 3);
        int64_t* const chosen = to + cloud_number * count;
        chosen[0] = 0;
        for (int64_t i = 1; i < count; ++i) {
          approach(cloud, chosen[i - 1]);
          chosen[i] = furthest(cloud.distance);
        }
      }
    });
    return output;
  });
}

}  // namespace

TORCHGRAFT_KERNEL(gallery_furthest_point_sampling, CPU, furthest_point_sampling, furthest_point_sampling_cpu)

}  // namespace torchgraft
