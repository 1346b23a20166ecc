// reshape_and_cache on CPU: copies each token's keys and values to its slot, in place.
//
// A thread owns some of the heads and goes through all tokens in order, so that no two threads write to one
// address even where two tokens share a slot, and the last of them stays. Caches are written to by their
// strides: they may be parts of larger tensors, and a copy would not be what the caller holds. No slot is
// written to before all of them were looked at.

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>
#include <torchgraft/in_place.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

#include <algorithm>

namespace torchgraft {
namespace {

// Another thread joins in only for at least this many elements.
constexpr int64_t kGrain = 16384;

// The sizes of a call.
struct Sizes {
  int64_t tokens, heads, head_size, blocks, block_size, width;
};

template <typename T>
void copy_head(const Tensor& key, const Tensor& value, const Tensor& key_cache, const Tensor& value_cache,
               const int64_t* slots, const Sizes& sizes, int64_t head) {
  const auto key_strides = key.strides(), value_strides = value.strides();
  const auto key_steps = key_cache.strides(), value_steps = value_cache.strides();
  const T *const keys = data_of<T>(key, "key"), *const values = data_of<T>(value, "value");
  T* const cached_keys = mutable_data_of<T>(key_cache, "key_cache");
  T* const cached_values = mutable_data_of<T>(value_cache, "value_cache");
  for (int64_t token = 0; token < sizes.tokens; ++token) {
    if (slots[token] < 0) continue;
    const int64_t block = slots[token] / sizes.block_size, slot = slots[token] % sizes.block_size;
    const T* const from_key = keys + token * key_strides[0] + head * key_strides[1];
    const T* const from_value = values + token * value_strides[0] + head * value_strides[1];
    T* const to_key = cached_keys + block * key_steps[0] + head * key_steps[1] + slot * key_steps[3];
    T* const to_value =
        cached_values + block * value_steps[0] + head * value_steps[1] + slot * value_steps[3];
    for (int64_t i = 0; i < sizes.head_size; ++i) {
      to_key[i / sizes.width * key_steps[2] + i % sizes.width * key_steps[4]] = from_key[i * key_strides[2]];
      to_value[i * value_steps[2]] = from_value[i * value_strides[2]];
    }
  }
}

void reshape_and_cache_cpu(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache,
                           Tensor slot_mapping) {
  check_dim(key, 3, "key");
  check_dim(value, 3, "value");
  check_dim(key_cache, 5, "key_cache");
  check_dim(value_cache, 4, "value_cache");
  check_dim(slot_mapping, 1, "slot_mapping");
  check_same_kind(key, "key", value, "value");
  check_same_kind(key, "key", key_cache, "key_cache");
  check_same_kind(key, "key", value_cache, "value_cache");
  check_separate(key_cache, "key_cache");
  check_separate(value_cache, "value_cache");
  TORCHGRAFT_CHECK(slot_mapping.scalar_type() == ScalarType::Long, "slot_mapping must be int64");

  const Sizes sizes = {key.size(0),       key.size(1),       key.size(2),
                       key_cache.size(0), key_cache.size(3), key_cache.size(4)};
  const auto has_sizes = [](const Tensor& tensor, std::initializer_list<int64_t> wanted) {
    return std::equal(wanted.begin(), wanted.end(), tensor.sizes().begin());
  };
  TORCHGRAFT_CHECK(key_cache.size(1) == sizes.heads && key_cache.size(2) * sizes.width == sizes.head_size,
                   "key_cache does not fit key");
  TORCHGRAFT_CHECK(has_sizes(value, {sizes.tokens, sizes.heads, sizes.head_size}), "value does not fit key");
  TORCHGRAFT_CHECK(has_sizes(value_cache, {sizes.blocks, sizes.heads, sizes.head_size, sizes.block_size}),
                   "value_cache does not fit key_cache");
  TORCHGRAFT_CHECK(slot_mapping.size(0) == sizes.tokens, "slot_mapping must have an element a token");

  const Tensor straight = to_contiguous(slot_mapping);
  const int64_t* const slots = data_of<int64_t>(straight);
  const int64_t count = sizes.blocks * sizes.block_size;
  for (int64_t token = 0; token < sizes.tokens; ++token) {
    TORCHGRAFT_CHECK(slots[token] >= -1 && slots[token] < count, "slot_mapping must lie between -1 and ",
                     count - 1, ", it holds ", slots[token]);
  }
  if (sizes.head_size == 0) return;

  // Those that lie in a cache, as what another slot holds, are copied before it is written to.
  const Tensor keys = apart_from(value_cache, apart_from(key_cache, key, "key"), "key");
  const Tensor values = apart_from(value_cache, apart_from(key_cache, value, "value"), "value");
  dispatch_floating(key.scalar_type(), "reshape_and_cache", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t elements = std::max<int64_t>(sizes.tokens * sizes.head_size, 1);
    parallel_for(0, sizes.heads, std::max<int64_t>(kGrain / elements, 1), [&](int64_t begin, int64_t end) {
      for (int64_t head = begin; head < end; ++head) {
        copy_head<T>(keys, values, key_cache, value_cache, slots, sizes, head);
      }
    });
  });
}

}  // namespace

TORCHGRAFT_KERNEL(gallery_reshape_and_cache, CPU, reshape_and_cache, reshape_and_cache_cpu)

}  // namespace torchgraft
