// The shapes of the kernels that are a whole recurrence: what a block owns, what it keeps on its chip, and
// how blocks meet. Host code alone, for supports.h; how the kernels work is told in their own files.
#pragma once

#include <torchgraft/numbers.h>

#include <cstdint>

namespace torchgraft::lltm::cuda {

// The folder of a kernel, or a part of it, in either direction.
enum class Technique {
  few_units,    // weight_hh in the registers of each block, in float
  on_chip,      // weight_hh in registers, in float
  on_chip_mma,  // weight_hh in registers, on tensor cores
  steps,        // a product of halves and a kernel a step
  grid,         // weight_hh in shared memory, in float
  elementwise,  // a product in float or double and an elementwise kernel a step
};

// Blocks and units of each: a cluster of 8x32 is one of up to eight blocks of 32 units.
enum class Kernel {
  few_units_32,
  few_units_64,
  on_chip_block_96,
  on_chip_block_128,
  on_chip_cluster_8x32,
  on_chip_cluster_4x64,
  on_chip_cluster_16x32,
  on_chip_mma_block_128,
  on_chip_mma_cluster_4x32,
  on_chip_mma_cluster_8x32,
  on_chip_mma_cluster_4x64_one_row,
  on_chip_mma_cluster_2x128,
  on_chip_mma_cluster_8x64_one_row,
  on_chip_mma_cluster_8x64,
  on_chip_mma_grid_16x32,
  on_chip_mma_grid_32x32,
  steps,
  steps_in_parts,
  grid_1,
  grid_2,
  grid_4,
  grid_8,
  elementwise,
};

// What a group of blocks is: one block that meets no other; a cluster, whose blocks meet through shared
// memory; or some blocks of a cooperative grid, which meet through device memory.
enum class Group { block, cluster, grid };

// What a step needs of device memory is copied to shared memory so many steps ahead, since registers hold
// weight_hh. A thread copies what it uses.
constexpr int kStages = 2;

// Units of a row that a warp computes at a time, one a lane.
constexpr int kWarpUnits = 32;

// For a group that may have any number of rows.
constexpr int64_t kAnyRows = INT64_MAX;

// The shapes that a kernel is compiled for.
template <typename... Shapes>
struct ShapeList {};

// ---------------------------------------------------------------- few units, in float

// A block has a few rows and all units of theirs, kParts threads a unit, which share out the depth of its
// products. So many blocks have room on a multiprocessor at once, as the compiler is told.
template <Kernel kOwnKernel, int kUnitsOfBlock, int kPartsOfDepth, int kBlocksOfMultiprocessor>
struct FewUnits {
  static constexpr Technique kTechnique = Technique::few_units;
  static constexpr Kernel kKernel = kOwnKernel;
  static constexpr int kUnits = kUnitsOfBlock;
  static constexpr int kMostUnits = kUnits;
  static constexpr int kParts = kPartsOfDepth;
  static constexpr int kPart = kUnits / kParts;
  static constexpr int kBlock = kUnits * kParts;
  static constexpr int kBlocks = kBlocksOfMultiprocessor;
  static constexpr int kMostRowsOfBlock = 2;
  // The bytes of a number of each unit in shared memory, where parts of the depth begin in different banks.
  static constexpr uint32_t kPitch = 4 * (kUnits + 4 * (kParts - 1));
};

struct FewUnits32 : FewUnits<Kernel::few_units_32, 32, 1, 12> {};
struct FewUnits64 : FewUnits<Kernel::few_units_64, 64, 2, 3> {};
using FewUnitsShapes = ShapeList<FewUnits32, FewUnits64>;

// ---------------------------------------------------------------- on chip, in float

// A tile is rows that are multiplied at once. While some warps compute the units of one tile, and its results
// are on their way, the others multiply the next.
constexpr int kMostTileRows = 3;
// The rows of a tile, such that a group has `tiles` of them if it has that many rows.
constexpr int tile_rows_of(int group_rows, int tiles) {
  const int rows = (group_rows + tiles - 1) / tiles;
  return rows < kMostTileRows ? rows : kMostTileRows;
}

// The bytes of the counted barriers of a group's tiles, `barriers` pairs each.
constexpr int barrier_bytes_of(int group_rows, int tiles, int barriers) {
  const int rows = tile_rows_of(group_rows, tiles);
  return 16 * barriers * ((group_rows + rows - 1) / rows);
}

// A block's units are kUnitWarps times 32, and its depth kDepthWarps times kPart.
template <Kernel kOwnKernel, int kUnitWarpsOfBlock, int kDepthWarpsOfBlock, int kDepthOfWarp,
          Group kGroupOfBlocks>
struct OnChipForward {
  static constexpr Technique kTechnique = Technique::on_chip;
  static constexpr Kernel kKernel = kOwnKernel;
  static constexpr int kUnitWarps = kUnitWarpsOfBlock;
  static constexpr int kDepthWarps = kDepthWarpsOfBlock;
  static constexpr int kPart = kDepthOfWarp;
  static constexpr Group kGroup = kGroupOfBlocks;
  static constexpr int kUnits = 32 * kUnitWarps;
  static constexpr int kDepth = kPart * kDepthWarps;
  static constexpr int kMostUnits = kDepth;
  static constexpr int64_t kMostRows = kAnyRows;
  static constexpr int kWarps = kUnitWarps * kDepthWarps;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kSums = kMostTileRows * kDepthWarps * 3 * kUnits;  // numbers of a tile
  static constexpr int kTiles = 2;
  // A warp waits for its part of the depth only.
  static constexpr int kBarriers = kDepthWarps;
  static constexpr int kRowsAtOnce = kWarps / kUnitWarps;  // a row a warp, or several warps a row

  static_assert(kPart % 4 == 0 && 3 * kPart * kBlock <= 49152, "what registers hold");
  static_assert(kGroup != Group::block || kDepth == kUnits, "one block has all units");

  static int64_t shared_bytes(int64_t rows, int64_t) {
    const int64_t of_row = 2 * kDepth + (3 * kStages + 1) * kUnits;
    return barrier_bytes_of(static_cast<int>(rows), kTiles, kBarriers) +
           4 * (rows * of_row + 2 * kSums + 3 * kUnits);
  }
};

struct ForwardBlock96 : OnChipForward<Kernel::on_chip_block_96, 3, 4, 24, Group::block> {};
struct ForwardBlock128 : OnChipForward<Kernel::on_chip_block_128, 4, 2, 64, Group::block> {};
struct ForwardCluster8x32 : OnChipForward<Kernel::on_chip_cluster_8x32, 1, 8, 32, Group::cluster> {};
struct ForwardCluster4x64 : OnChipForward<Kernel::on_chip_cluster_4x64, 2, 4, 64, Group::cluster> {};
struct ForwardCluster16x32 : OnChipForward<Kernel::on_chip_cluster_16x32, 1, 8, 64, Group::cluster> {};
using OnChipForwardShapes =
    ShapeList<ForwardBlock96, ForwardBlock128, ForwardCluster8x32, ForwardCluster4x64, ForwardCluster16x32>;

// A block's own units are kUnitWarps times 32. A warp makes sums for the units of its lanes, four each, and
// kParts lanes share out the depth, the gates of the block's own units, four at a time.
template <Kernel kOwnKernel, int kWarpsOfBlock, int kUnitWarpsOfBlock, int kPartsOfDepth,
          Group kGroupOfBlocks>
struct OnChipBackward {
  static constexpr Technique kTechnique = Technique::on_chip;
  static constexpr Kernel kKernel = kOwnKernel;
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kUnitWarps = kUnitWarpsOfBlock;
  static constexpr int kParts = kPartsOfDepth;
  static constexpr Group kGroup = kGroupOfBlocks;
  static constexpr int kUnits = 32 * kUnitWarps;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kQuads = 32 / kParts;
  static constexpr int kUnitsOfWarp = 4 * kQuads;
  static constexpr int kMostUnits = kWarps * kUnitsOfWarp;
  static constexpr int64_t kMostRows = kAnyRows;
  static constexpr int kChunks = (3 * kUnits + 4 * kParts - 1) / (4 * kParts);
  static constexpr int kDepth = 4 * kParts * kChunks;
  // A tile more than forward, where what crosses blocks is waited for before the next tile is multiplied.
  static constexpr int kTiles = kGroup == Group::block ? 2 : 3;
  static constexpr int kBarriers = 1;
  static constexpr int kRowsAtOnce = kWarps / kUnitWarps;

  static_assert(kWarps % kUnitWarps == 0, "a warp's rows have the same units");
  static_assert(16 * kChunks * kBlock <= 49152, "what registers hold");
  static_assert(kGroup != Group::block || kMostUnits == kUnits, "one block has all units");

  static int64_t shared_bytes(int64_t rows, int64_t blocks) {
    const int64_t of_row = 2 * blocks * kUnits + (5 * kStages + 1) * kUnits;
    return barrier_bytes_of(static_cast<int>(rows), kTiles, kBarriers) +
           4 * (rows * of_row + 2 * kMostTileRows * kDepth);
  }
};

struct BackwardBlock96 : OnChipBackward<Kernel::on_chip_block_96, 12, 3, 16, Group::block> {};
struct BackwardBlock128 : OnChipBackward<Kernel::on_chip_block_128, 8, 4, 8, Group::block> {};
struct BackwardCluster8x32 : OnChipBackward<Kernel::on_chip_cluster_8x32, 8, 1, 4, Group::cluster> {};
struct BackwardCluster4x64 : OnChipBackward<Kernel::on_chip_cluster_4x64, 8, 2, 4, Group::cluster> {};
struct BackwardCluster16x32 : OnChipBackward<Kernel::on_chip_cluster_16x32, 8, 1, 2, Group::cluster> {};
using OnChipBackwardShapes = ShapeList<BackwardBlock96, BackwardBlock128, BackwardCluster8x32,
                                       BackwardCluster4x64, BackwardCluster16x32>;

// ---------------------------------------------------------------- on chip, on tensor cores

// Rows of the batch in a tile of eight columns, two each.
constexpr int kTileRows = 4;

// A warp has 16 units and kTiles times 16 of the depth. kKept tiles of weight_hh lie in registers, the others
// in shared memory.
template <Kernel kOwnKernel, int kTilesOfWarp, int kDepthWarpsOfBlock, int kTilesInRegisters,
          Group kGroupOfBlocks, int kUnitWarpsOfBlock = 2, bool kOneRowOfWarp = false>
struct MmaForward {
  static constexpr Technique kTechnique = Technique::on_chip_mma;
  static constexpr Kernel kKernel = kOwnKernel;
  static constexpr bool kOneRow = kOneRowOfWarp;  // a warp computes at most one row of the group
  static constexpr int kTiles = kTilesOfWarp;
  static constexpr int kDepthWarps = kDepthWarpsOfBlock;
  static constexpr int kUnitWarps = kUnitWarpsOfBlock;
  static constexpr int kKept = kTilesInRegisters;
  static constexpr Group kGroup = kGroupOfBlocks;
  static constexpr int kUnits = 16 * kUnitWarps;
  static constexpr int kGates = 3 * kUnits;
  static constexpr int kWarps = kUnitWarps * kDepthWarps;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kDepth = 16 * kTiles * kDepthWarps;
  static constexpr int kMostUnits = kDepth;
  // Of a row: h in both halves, and the sums of all parts of the depth, padded so that the four rows of a
  // tile lie in different banks.
  static constexpr int kRow = 2 * kDepth;
  static constexpr int kSumsPitch = kDepthWarps * kGates + 8;
  // How many blocks of a cluster eight lanes write to.
  static constexpr int kPeers = kGroup == Group::cluster ? (kDepth / kUnits + 3) / 4 : 1;
  // The warps of a row, and the rows that a block's warps compute at once.
  static constexpr int kWarpsOfRow = kUnits / kWarpUnits;
  static constexpr int kRowsAtOnce = kWarps / kWarpsOfRow;
  static constexpr int64_t kMostRows = kOneRow ? kRowsAtOnce : kAnyRows;
  static constexpr int kBuffers = kGroup == Group::grid ? 1 : 2;
  // Where blocks meet by counted bytes alone, a warp may write the sums of the next step while another reads.
  static constexpr int kSumBuffers = kGroup == Group::cluster ? 2 : 1;
  // Where weight_hh leaves few registers, tiles are multiplied one by one.
  static constexpr bool kRegistersAreFull = 12 * kKept * kBlock == 49152;
  static constexpr int64_t kBarrierBytes = 128;  // two barriers, and a cache line is whole
  static constexpr int64_t kWeightBytes = int64_t{3} * (kTiles - kKept) * kBlock * 16;

  static_assert(kTiles % 2 == 0 && kKept % 2 == 0, "two tiles a load of a matrix");
  static_assert(kBlock <= 512 && 12 * kKept * kBlock <= 49152, "what registers hold");
  static_assert(kWarps % kWarpsOfRow == 0, "a warp's rows have the same units");
  static_assert(kGroup != Group::block || kDepth <= kUnits, "one block has all units");

  static int64_t shared_bytes(int64_t rows, int64_t) {
    const int64_t padded = round_up(rows, kTileRows);
    const int64_t of_row = int64_t{kBuffers} * kRow * 2 + int64_t{kSumBuffers} * kSumsPitch * 4;
    return kBarrierBytes + kWeightBytes + padded * (of_row + 4) + (rows * (3 * kStages + 1) + 6) * kUnits * 4;
  }
};

struct MmaForwardBlock128 : MmaForward<Kernel::on_chip_mma_block_128, 8, 1, 8, Group::block, 8> {};
struct MmaForwardCluster4x64OneRow
    : MmaForward<Kernel::on_chip_mma_cluster_4x64_one_row, 8, 2, 8, Group::cluster, 4, true> {};
struct MmaForwardCluster2x128 : MmaForward<Kernel::on_chip_mma_cluster_2x128, 16, 1, 16, Group::cluster, 8> {
};
struct MmaForwardCluster8x64OneRow
    : MmaForward<Kernel::on_chip_mma_cluster_8x64_one_row, 16, 2, 16, Group::cluster, 4, true> {};
struct MmaForwardCluster8x64 : MmaForward<Kernel::on_chip_mma_cluster_8x64, 16, 2, 16, Group::cluster, 4> {};
struct MmaForwardGrid16x32 : MmaForward<Kernel::on_chip_mma_grid_16x32, 8, 4, 8, Group::grid> {};
struct MmaForwardGrid32x32 : MmaForward<Kernel::on_chip_mma_grid_32x32, 16, 4, 16, Group::grid> {};
using MmaForwardShapes =
    ShapeList<MmaForwardBlock128, MmaForwardCluster4x64OneRow, MmaForwardCluster2x128,
              MmaForwardCluster8x64OneRow, MmaForwardCluster8x64, MmaForwardGrid16x32, MmaForwardGrid32x32>;

// A warp has kTiles times 16 units of the product and all of its depth, the gates of the block's own units.
// kKept tiles of the depth of weight_hh lie in registers, the others in shared memory.
template <Kernel kOwnKernel, int kTilesOfWarp, int kWarpsOfBlock, int kTilesInRegisters, Group kGroupOfBlocks,
          int kWarpsOfARow = 1>
struct MmaBackward {
  static constexpr Technique kTechnique = Technique::on_chip_mma;
  static constexpr Kernel kKernel = kOwnKernel;
  static constexpr int kTiles = kTilesOfWarp;
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kKept = kTilesInRegisters;
  static constexpr Group kGroup = kGroupOfBlocks;
  static constexpr int kWarpsOfRow = kWarpsOfARow;
  static constexpr int kRowsAtOnce = kWarps / kWarpsOfRow;
  static constexpr int kUnits = kWarpUnits * kWarpsOfRow;
  static constexpr int kDepth = 3 * kUnits;
  static constexpr int kDepthTiles = kDepth / 16;
  // A row of the gradients of gates, padded so that eight rows of a matrix begin in different banks.
  static constexpr int kPitch = kDepth + 8;
  static constexpr int kBlock = 32 * kWarps;
  static constexpr int kPrefetched = 4;  // numbers of a unit and step
  static constexpr int kUnitsOfWarp = 16 * kTiles;
  static constexpr int kMostUnits = kWarps * kUnitsOfWarp;
  static constexpr int64_t kMostRows = kAnyRows;
  static constexpr int kTilesAtOnce = kTiles < 4 ? kTiles : 4;
  // A row of a warp's results, padded so that four rows begin in different banks.
  static constexpr int kResultsPitch = kUnitsOfWarp + (kTiles == 1 ? 24 : 8);
  static constexpr int64_t kBarrierBytes = kGroup == Group::cluster ? 16 : 0;  // of two barriers
  static constexpr int64_t kWeightBytes = int64_t{kTiles} * (kDepthTiles - kKept) * kBlock * 16;
  static constexpr int64_t kResultBytes = int64_t{kWarps} * kTileRows * kResultsPitch * 4;

  static_assert(kBlock <= 512 && 4 * kTiles * kKept * kBlock <= 49152, "what registers hold");
  static_assert(kTiles % kTilesAtOnce == 0);
  static_assert(kWarps % kWarpsOfRow == 0, "a warp's rows have the same units");

  static int64_t shared_bytes(int64_t rows, int64_t blocks) {
    const int64_t padded = round_up(rows, kTileRows);
    const int64_t received = kGroup != Group::grid ? 2 * blocks * padded * kUnits * 4 : 0;
    return kBarrierBytes + kWeightBytes + kResultBytes + received +
           2 * padded * (2 * kPitch * 2 + 4 * kWarpsOfRow) + rows * (kPrefetched * kStages + 1) * kUnits * 4;
  }
};

struct MmaBackwardCluster4x32 : MmaBackward<Kernel::on_chip_mma_cluster_4x32, 1, 8, 6, Group::cluster> {};
struct MmaBackwardCluster8x32 : MmaBackward<Kernel::on_chip_mma_cluster_8x32, 2, 8, 6, Group::cluster> {};
struct MmaBackwardCluster2x128 : MmaBackward<Kernel::on_chip_mma_cluster_2x128, 2, 8, 24, Group::cluster, 4> {
};
struct MmaBackwardCluster8x64 : MmaBackward<Kernel::on_chip_mma_cluster_8x64, 4, 8, 12, Group::cluster, 2> {};
struct MmaBackwardGrid16x32 : MmaBackward<Kernel::on_chip_mma_grid_16x32, 4, 8, 6, Group::grid> {};
struct MmaBackwardGrid32x32 : MmaBackward<Kernel::on_chip_mma_grid_32x32, 4, 16, 4, Group::grid> {};
using MmaBackwardShapes = ShapeList<MmaBackwardCluster4x32, MmaBackwardCluster8x32, MmaBackwardCluster2x128,
                                    MmaBackwardCluster8x64, MmaBackwardGrid16x32, MmaBackwardGrid32x32>;

// ---------------------------------------------------------------- on the grid, in float

// Rows of the batch that a warp multiplies at a time with so many columns: the sums must stay in registers.
constexpr int grid_rows_of(int columns) { return columns <= 4 ? 8 : columns <= 12 ? 4 : 2; }

constexpr int padded_depth(int depth) { return (depth + 127) / 128 * 128; }

// How many of a block's warps share the depth of a row.
constexpr int parts_of(int warps, int batch, int rows) {
  const int groups = (batch + rows - 1) / rows;
  int parts = 1;
  while (parts * 2 * groups <= warps) parts *= 2;
  return parts;
}

// A block has so many units. The product has a column for each; going forward three, one a gate.
template <Kernel kOwnKernel, int kUnitsOfBlock>
struct Grid {
  static constexpr Kernel kKernel = kOwnKernel;
  static constexpr Group kGroup = Group::grid;
  static constexpr int kUnits = kUnitsOfBlock;
  static constexpr int kWarps = 16;
  static constexpr int kBlock = 32 * kWarps;

  static constexpr int columns(bool backward) { return backward ? kUnits : 3 * kUnits; }

  static int64_t shared_bytes(int64_t batch, int64_t units, bool backward) {
    const int depth = static_cast<int>(backward ? 3 * units : units);
    const int64_t parts = parts_of(kWarps, static_cast<int>(batch), grid_rows_of(columns(backward)));
    return 4 * columns(backward) * (padded_depth(depth) + parts * batch);
  }
};

struct Grid1 : Grid<Kernel::grid_1, 1> {};
struct Grid2 : Grid<Kernel::grid_2, 2> {};
struct Grid4 : Grid<Kernel::grid_4, 4> {};
struct Grid8 : Grid<Kernel::grid_8, 8> {};
using GridShapes = ShapeList<Grid1, Grid2, Grid4, Grid8>;

}  // namespace torchgraft::lltm::cuda
