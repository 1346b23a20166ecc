// What each kernel can compute at all: alignment, sizes that it is compiled for, what fits 32 bits and shared
// memory. Nothing here is tuned: policy.h says where a kernel pays. Each technique has a header of its own,
// host code alone, so that every limit is tested without a GPU.
#pragma once

#include "bands/supports.h"
#include "diagonals/supports.h"
#include "gather/supports.h"
#include "rows/supports.h"
#include "slide/supports.h"
#include "small_planes/supports.h"
#include "strips/supports.h"
#include "tiles/supports.h"
