// How bands_small cuts a pass into tiles, and how a tile lies in shared memory. Host code alone, so that
// every limit is tested without a GPU.
#pragma once

#include "../supports.h"

namespace torchgraft::depthwise::cuda {

constexpr int kWarp = 32;
constexpr int kSmallWarps = 4;      // of a block
constexpr int kSmallBlocks = 4;     // of a multiprocessor
constexpr int kUnits = 8;           // of a product: its n
constexpr int kBlockColumns = 8;    // results of a unit along a row
constexpr int kSourceColumns = 16;  // under them: a product's k
static_assert(kMostTapRows * kMostTapColumns <= 2 * kWarp, "a lane brings two taps");

// The taps of a warp's channel in shared memory: rows with zeros before and after, twice, the second time one
// element further on, so that any two neighbours lie in four bytes of one copy or the other.
constexpr int kBandPitch = 24;
constexpr int kBandCopy = kMostTapRows * kBandPitch;
constexpr int kBandElements = 2 * kBandCopy;
constexpr int kBandFirst = 8;  // where tap 0 of a row lies if rows are not shifted

// Row pairs of a band: seven or four, whichever leaves less idle.
inline int pairs_of_band(int rows) { return round_up(rows, 14) <= round_up(rows, 8) ? 7 : 4; }

inline int tap_rows_of(int kernel) { return kernel <= 3 ? 3 : kernel <= 5 ? 5 : 7; }

// Column blocks as units count them: so many that eight units are whole rows of blocks, or one.
inline int pad_column_blocks(int blocks) {
  return blocks > 4 ? round_up(blocks, kUnits) : blocks == 3 ? 4 : blocks;
}

// Where a tile lies in shared memory: steps in elements, all multiples of eight (sixteen bytes).
struct TilePitch {
  int row, image, channel;
};

// The pitches of a tile, whose image_channels planes of one channel lie side by side, that leave the fewest
// of the eight rows of a matrix that ldmatrix reads in banks of another one.
inline TilePitch band_pitch(int rows, int columns, int padded_columns, int bands, int band_rows, int images) {
  TilePitch best{};
  int fewest = kUnits + 1;
  for (int row_extra = 0; row_extra < 4 && fewest > 0; ++row_extra) {
    const int row_pitch = columns + 8 * row_extra;
    for (int image_extra = 0; image_extra < 8 && fewest > 0; ++image_extra) {
      const int image_pitch = rows * row_pitch + 8 * image_extra;
      unsigned used = 0;
      int conflicts = 0;
      for (int unit = 0; unit < kUnits; ++unit) {
        const int unit_row = unit / padded_columns;
        if (unit_row >= bands * images) break;
        const int offset = unit_row / bands * image_pitch + unit_row % bands * band_rows * row_pitch;
        const unsigned bank = 1u << ((offset / 8 + unit % padded_columns) % 8);
        conflicts += (used & bank) != 0;
        used |= bank;
      }
      if (conflicts >= fewest) continue;
      fewest = conflicts;
      best = {row_pitch, image_pitch, images * image_pitch};
    }
  }
  return best;
}

struct SmallPlan {
  int tap_rows, pairs;           // that the kernel is compiled for
  int lead;                      // column 0 of a tile is so many columns in front of its first result's
  int source_unit, result_unit;  // elements that are moved at once
  // A tile is so many images of a channel, bands of rows and blocks of columns.
  int tile_images, bands, column_blocks;
  int padded_columns;                                            // column blocks as units count them
  int tiles_x, tiles_y;                                          // of an image
  int tiles;                                                     // of all
  int source_rows, source_columns, result_rows, result_columns;  // of a tile
  bool whole_rows;  // whether all rows of a tile are one run of memory
  TilePitch pitch;
  int source_places, result_places;  // sizes of the tables of units
  int stages, stage_elements, warp_elements;
  size_t bytes;  // of shared memory that a block takes
};

// The largest unit of sources whose wide copies lie on their boundaries in shared memory, where columns are
// shifted for it, if a product's columns still hold the windows; else one element.
inline int small_source_unit(const PassAxis& width, int source_alignment) {
  int unit = 4;
  for (; unit > 1; unit /= 2) {
    const int shift = round_up(width.padding, unit) - width.padding;
    const bool holds_windows = shift + width.kernel + kBlockColumns - 1 <= kSourceColumns;
    if (holds_windows && width.source % unit == 0 && source_alignment % (2 * unit) == 0) break;
  }
  return unit;
}

class SmallPlanner {
 public:
  // `source_alignment` is a power of two, of at least eight if the address of the sources is a multiple of
  // that.
  SmallPlanner(const Geometry& geometry, bool transposed, int source_alignment)
      : height_(geometry.height, transposed),
        width_(geometry.width, transposed),
        batch_(static_cast<int>(geometry.batch)),
        channels_(static_cast<int>(geometry.channels)),
        source_alignment_(source_alignment) {}

  SmallPlan plan() {
    plan_.tap_rows = tap_rows_of(height_.kernel);
    plan_.pairs = pairs_of_band(height_.result);
    plan_.source_unit = small_source_unit(width_, source_alignment_);
    plan_.lead = round_up(width_.padding, plan_.source_unit);
    plan_.result_unit = 8;
    while (width_.result % plan_.result_unit != 0) plan_.result_unit /= 2;
    cut_columns();
    cut_rows();
    lay_out_tile();
    return plan_;
  }

 private:
  void cut_columns() {
    constexpr int kMostColumnBlocks = 24;
    const int all_blocks = ceil_divide(width_.result, kBlockColumns);
    const int wanted = ceil_divide(all_blocks, kMostColumnBlocks);
    plan_.column_blocks = wanted == 1 ? all_blocks : round_up(ceil_divide(all_blocks, wanted), kUnits);
    plan_.tiles_x = ceil_divide(all_blocks, plan_.column_blocks);
    plan_.padded_columns = pad_column_blocks(plan_.column_blocks);
    plan_.result_columns = plan_.column_blocks * kBlockColumns;
    plan_.source_columns = plan_.result_columns + kBlockColumns;
  }

  // As many bands of a plane as fit, or as many images as fill eight units.
  void cut_rows() {
    constexpr int kMostStageElements = 5 * 1024;
    const int band_rows = 2 * plan_.pairs;
    const int halo = plan_.tap_rows - 1;
    const int all_bands = ceil_divide(height_.result, band_rows);
    int bands = all_bands;
    while (bands > 1 && (bands * band_rows + halo) * plan_.source_columns > kMostStageElements) --bands;
    plan_.tiles_y = ceil_divide(all_bands, bands);
    plan_.bands = ceil_divide(all_bands, plan_.tiles_y);
    plan_.result_rows = plan_.bands * band_rows;
    plan_.source_rows = plan_.result_rows + halo;
    plan_.tile_images = plan_.tiles_x * plan_.tiles_y == 1
                            ? std::min(batch_, std::max(1, kUnits / (plan_.padded_columns * plan_.bands)))
                            : 1;
    plan_.tiles = ceil_divide(batch_, plan_.tile_images) * plan_.tiles_y * plan_.tiles_x * channels_;
  }

  void lay_out_tile() {
    constexpr int kTwiceElements = 2 * 1024;
    // If padding behind an image is as large as the kernel or larger, an input gradient has sources that no
    // result needs, behind the columns of the tile: rows are then moved one by one, and end with the tile.
    plan_.whole_rows = plan_.tiles_x == 1 && plan_.lead + width_.source <= plan_.source_columns;
    plan_.pitch = band_pitch(plan_.source_rows, plan_.source_columns, plan_.padded_columns, plan_.bands,
                             2 * plan_.pairs, plan_.tile_images);
    plan_.source_places =
        places(plan_.source_rows, plan_.source_columns, height_.source, width_.source, plan_.source_unit);
    plan_.result_places =
        places(plan_.result_rows, plan_.result_columns, height_.result, width_.result, plan_.result_unit);
    // Small tiles come one ahead.
    plan_.stage_elements = plan_.pitch.channel;
    plan_.stages = plan_.stage_elements <= kTwiceElements ? 2 : 1;
    plan_.warp_elements = kBandElements + 8 + plan_.stages * plan_.stage_elements + 8;
    constexpr int kHalfBytes = 2;
    plan_.bytes =
        kHalfBytes * (plan_.source_places + plan_.result_places + kSmallWarps * plan_.warp_elements);
  }

  // Units of the longest run of a tile, in whole sixteens of bytes.
  int places(int rows, int columns, int image_rows, int image_columns, int unit) const {
    return round_up((plan_.whole_rows ? std::min(rows, image_rows) * image_columns : columns) / unit, 8);
  }

  const PassAxis height_, width_;
  const int batch_, channels_;
  const int source_alignment_;
  SmallPlan plan_ = {};
};

}  // namespace torchgraft::depthwise::cuda
