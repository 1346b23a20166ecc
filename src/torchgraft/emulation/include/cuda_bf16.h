// bfloat16.
#pragma once

#include "emulated_half.h"

EMULATED_HALF(__nv_bfloat16, __nv_bfloat162, ::torch::headeronly::BFloat16, bfloat16, bfloat162)
inline float2 __bfloat1622float2(__nv_bfloat162 values) { return {values.x, values.y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 value) { return {value, value}; }
