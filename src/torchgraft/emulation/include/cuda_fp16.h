// float16.
#pragma once

#include "emulated_half.h"

EMULATED_HALF(__half, __half2, ::torch::headeronly::Half, half, half2)
inline float2 __half22float2(__half2 values) { return {values.x, values.y}; }
inline __half2 __half2half2(__half value) { return {value, value}; }
