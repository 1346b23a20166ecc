// Forward and input gradient on CPU, as correlations. The lanes of a vector are channels, so every load is a
// whole vector whatever the kernel and the image's width, and padding is rows and columns that are left out:
// nothing is read for it. See rows.h for how either layout comes to lie so.
//
// A thread owns a band of rows and a slice of columns of one image (or of several, where an image has few
// channels). Here these are cut into rows, strips, patches and pairs of outputs, which the loops of
// correlation_microkernels.h then make in registers. What few taps read comes in the order of memory, all
// channels of a pixel after another, as out of order it takes a third longer; what many taps read, and the
// taps, come in pieces that stay in L1 from one row of outputs to the next. On two cores with AVX-512 a tile
// does 0.85 to 0.95 of the multiply-adds that there could be; float32 against oneDNN's forward: channels_last
// k = 3, bound by memory, 1.05 to 1.1 times, k = 5 and more 1.2 to 1.4 times; contiguous 1.2 to 40 times.
// float16 and bfloat16 in channels_last take half of the time that they took through scratch; bfloat16
// against oneDNN's forward, on a core of Zen 5: k = 3 and k = 5 0.96 to 1.4 times, k = 7 1.4 times.

#include "correlation.h"

#include <torchgraft/cpu.h>
#include <torchgraft/dispatch.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "blocks.h"
#include "correlation_kernels.h"
#include "correlation_plan.h"
#include "correlation_row.h"

namespace torchgraft::depthwise::cpu {
namespace {

// Rows of a strip: the more, the fewer rows of the source are read by two strips.
constexpr int64_t kMostStripRows = 16;
// Units of work that there should be, whatever the number of threads.
constexpr int64_t kUnits = 64;

// Correlates images of T, whose rows the loops see as elements of S.
template <typename T, typename S>
class Correlator {
 public:
  using A = accumulate_t<T>;

  Correlator(const T* source, const T* weight, const T* bias, T* destination, const Correlation& correlation,
             const Blocks& blocks)
      : source_(source),
        destination_(destination),
        correlation_(correlation),
        blocks_(blocks),
        plan_(correlation, blocks_),
        kernels_(weight, bias, correlation, blocks_) {}

  void run() const {
    const int64_t images = ceil_divide(correlation_.batch, blocks_.fold);
    const int64_t slabs = ceil_divide(correlation_.depth.destination, plan_.slab);
    const int64_t bands = ceil_divide(correlation_.height.destination, plan_.band);
    const int64_t slices = ceil_divide(correlation_.width.destination, plan_.slice);
    const int64_t pieces = images * slabs * bands * slices;
    const int64_t whole = blocks_.layout == Layout::contiguous
                              ? blocks_.count
                              : std::max<int64_t>(blocks_.channels / blocks_.lanes, 1);
    // Rather fewer units than channels that are not read in the order of memory.
    const int64_t units = plan_.vectors == blocks_.count ? kUnits / 8 : kUnits;
    const int64_t least = blocks_.layout == Layout::contiguous ? ceil_divide(whole, plan_.vectors) : 1;
    const int64_t groups = std::clamp<int64_t>(ceil_divide(units, pieces), least, whole);
    const int64_t work =
        plan_.slab * plan_.band * plan_.slice * blocks_.count * blocks_.lanes * correlation_.taps() / groups;
    parallel_for(0, pieces * groups, std::max<int64_t>(kGrain / work, 1), [&](int64_t begin, int64_t end) {
      Workspace workspace;
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t group = unit % groups;
        const int64_t column = unit / groups % slices * plan_.slice;
        const int64_t row = unit / groups / slices % bands * plan_.band;
        const int64_t plane = unit / groups / slices / bands % slabs * plan_.slab;
        const int64_t image = unit / groups / slices / bands / slabs * blocks_.fold;
        // The last block of channels may make again what the one before has made: on the same thread.
        const int64_t last_block = group + 1 == groups ? blocks_.count : whole * (group + 1) / groups;
        for (int64_t block = whole * group / groups; block < last_block;) {
          const int64_t vectors = blocks_.together(block, last_block, plan_.vectors, plan_.are_sums_whole());
          correlate_piece(
              {image, Range{plane, plane + plan_.slab}.clipped(correlation_.depth.destination),
               Range{row, row + plan_.band}.clipped(correlation_.height.destination),
               Range{column, column + plan_.slice}.clipped(correlation_.width.destination), block, vectors},
              workspace);
          block += vectors;
        }
      }
    });
  }

 private:
  // Some planes, rows and columns of the destination, in some vectors of channels.
  struct Piece {
    int64_t image;
    Range planes;
    Range rows;
    Range columns;
    int64_t block;  // the first vector
    int64_t vectors;
  };

  // A plane of the source that a plane of the destination meets, and the plane of the kernel that it meets it
  // with.
  struct MetPlane {
    Rows<const T, S>* source;
    int64_t first_row;  // of the source's, which are numbered through all of its planes
    const A* kernel;
  };

  struct Workspace {
    std::vector<Rows<const T, S>> sources;  // of each source, the planes that the piece may meet
    std::vector<char> is_open;              // whether their rows were brought in
    std::vector<MetPlane> met_planes;       // by the plane of the destination that is made
    Rows<const T, S> no_source;             // in the place of planes where none is met
    Rows<T, S> destination;                 // of that plane
    int64_t first_output_row;               // of it; rows are numbered through all planes
    // What a line reads and writes; the lines point here.
    std::vector<const S*> source_rows;
    std::vector<const A*> kernel_rows;
    std::vector<S*> output_rows;
    std::vector<Row<A, S>> lines;  // what one row of the destination is made of
  };

  void correlate_piece(const Piece& piece, Workspace& workspace) const {
    const Direction& depth = correlation_.depth;
    const Direction& height = correlation_.height;
    const Direction& width = correlation_.width;
    int64_t plane_taps = 0;
    const Range planes = depth.source_range(piece.planes, plane_taps);
    workspace.sources.resize(correlation_.sources() * planes.size());
    workspace.is_open.assign(workspace.sources.size(), false);
    for (int64_t plane = piece.planes.begin; plane < piece.planes.end; ++plane) {
      meet_planes(piece, plane, planes, workspace);
      workspace.first_output_row = plane * height.destination;
      workspace.destination.open(
          piece.vectors,
          [&](int64_t vector) {
            return blocks_.channels_of(piece.block + vector, destination_, piece.image,
                                       correlation_.destination_channels,
                                       depth.destination * height.destination * width.destination,
                                       [](int64_t channel) { return channel; });
          },
          blocks_.block_lanes(), width.destination, piece.rows.shifted(workspace.first_output_row),
          piece.columns, piece.rows.size());
      make_plane(piece, workspace);
      workspace.destination.flush();
    }
  }

  // Finds the planes of the source that a plane of the destination meets, and brings their rows in. `planes`
  // are those that planes of the piece may meet.
  void meet_planes(const Piece& piece, int64_t plane, Range planes, Workspace& workspace) const {
    const Direction& depth = correlation_.depth;
    const Phase& phase = depth.phase(plane);
    workspace.met_planes.clear();
    for (int64_t s = 0; s < correlation_.sources(); ++s) {
      for (int64_t tap = 0; tap < phase.taps; ++tap) {
        const int64_t met = phase.position(depth.output(plane), tap);
        if (!planes.contains(met)) continue;
        const int64_t place = s * planes.size() + met - planes.begin;
        if (!workspace.is_open[place]) open_plane(piece, s, met, workspace.sources[place]);
        workspace.is_open[place] = true;
        workspace.met_planes.push_back(
            {&workspace.sources[place], met * correlation_.height.source,
             kernels_.plane(piece.block, s, phase.first_tap + tap * phase.kernel_step)});
      }
    }
  }

  void open_plane(const Piece& piece, int64_t source, int64_t plane, Rows<const T, S>& rows) const {
    const Direction& height = correlation_.height;
    const Direction& width = correlation_.width;
    int64_t row_taps = 0;
    int64_t column_taps = 0;
    const Range source_rows = height.source_range(piece.rows, row_taps);
    const Range source_columns = width.source_range(piece.columns, column_taps);
    rows.open(
        piece.vectors,
        [&](int64_t vector) {
          return blocks_.channels_of(
              piece.block + vector, source_, piece.image, correlation_.source_channels,
              correlation_.depth.source * height.source * width.source,
              [&](int64_t channel) { return correlation_.source_channel(channel, source); });
        },
        blocks_.block_lanes(), width.source, source_rows.shifted(plane * height.source), source_columns,
        row_taps);
  }

  void make_plane(const Piece& piece, Workspace& workspace) const {
    plan_lines(piece, workspace);
    if (workspace.met_planes.empty()) {
      make_rows(piece, workspace);
    } else if (are_pairs<A>(correlation_)) {
      make_pairs(piece, workspace);
    } else if (const int64_t strip_rows = rows_of_strips(piece, workspace)) {
      make_strips(piece, strip_rows, workspace);
    } else if (const int64_t patch_rows = rows_of_patches(workspace)) {
      make_patches(piece, patch_rows, workspace);
    } else {
      make_rows(piece, workspace);
    }
  }

  // Those of a row's taps, `tap_step` columns apart, through which any of its pixels reads one of `width`
  // columns: tap 0 of the pixels reads columns from `first` to `first + span`.
  static Range met_taps(int64_t first, int64_t span, int64_t tap_step, int64_t width, int64_t taps) {
    // Of most rows all taps are: a division takes longer than all else here.
    Range met = {0, taps};
    if (first + span < 0) met.begin = std::min(ceil_divide(-first - span, tap_step), taps);
    if (first + (taps - 1) * tap_step >= width) {
      met.end = std::max(ceil_divide(width - first, tap_step), met.begin);
    }
    return met;
  }

  // How one row of the destination is made, phase by phase, but for where its rows lie.
  void plan_lines(const Piece& piece, Workspace& workspace) const {
    const Direction& width = correlation_.width;
    const Range columns = piece.columns;
    const int64_t lanes = blocks_.block_lanes();
    const int64_t phases = width.phases.size();
    const Rows<const T, S>& source =
        workspace.met_planes.empty() ? workspace.no_source : *workspace.met_planes[0].source;
    const int64_t output_step = workspace.destination.column_step();
    const int64_t last_lane = blocks_.begin(piece.block + piece.vectors - 1) - blocks_.begin(piece.block);
    const int64_t kernel_rows =
        correlation_.sources() * correlation_.depth.kernel * correlation_.height.kernel;
    // A strip has a stride of two at most.
    workspace.source_rows.resize(kMostPatchRows * kernel_rows + 2 * kMostStripRows);
    workspace.kernel_rows.resize(kernel_rows);
    workspace.output_rows.resize(kMostStripRows);
    workspace.lines.clear();
    for (int64_t column = columns.begin; column < std::min(columns.begin + phases, columns.end); ++column) {
      const Phase& phase = width.phase(column);
      const int64_t count = ceil_divide(columns.end - column, phases);
      const Remainders remainders(phase.step, phase.tap_step, phase.taps, count);
      for (int64_t part = 0; part < remainders.parts; ++part) {
        const int64_t position =
            phase.position(width.output(column), 0) + part * phase.step - source.first_column();
        const int64_t skipped = remainders.skipped(position);
        const int64_t source_width = ceil_divide(source.width() - skipped, remainders.stretch);
        const int64_t first_position = floor_divide(position, remainders.stretch);
        const int64_t step = remainders.parts * phase.step / remainders.stretch;
        const int64_t tap_step = phase.tap_step / remainders.stretch;
        const int64_t line_count = ceil_divide(count - part, remainders.parts);
        // A kernel wider than the row has taps that no pixel reads the source through.
        const Range taps =
            met_taps(first_position, (line_count - 1) * step, tap_step, source_width, phase.taps);
        workspace.lines.push_back(
            {.lanes = lanes,
             .vectors = piece.vectors,
             .source_vectors = source.vectors(last_lane),
             .output_vectors = workspace.destination.vectors(last_lane),
             .vector_step = correlation_.sources() * correlation_.taps() * blocks_.lanes,
             .kernel_offset = (phase.first_tap + taps.begin * phase.kernel_step) * lanes,
             .source_offset = skipped * source.column_step(),
             .source_step = remainders.stretch * source.column_step(),
             .kernel_step = phase.kernel_step * lanes,
             .width = source_width,
             .first_position = first_position + taps.begin * tap_step,
             .step = step,
             .tap_step = tap_step,
             .taps = taps.size(),
             .bias = kernels_.bias(piece.block),
             .bias_step = blocks_.lanes,
             .output_offset = (column + part * phases - workspace.destination.first_column()) * output_step,
             .output_step = remainders.parts * phases * output_step,
             .count = line_count,
             .in_parts = plan_.in_parts,
             .sources = workspace.source_rows.data(),
             .kernels = workspace.kernel_rows.data(),
             .output_rows = workspace.output_rows.data()});
      }
    }
  }

  void run_row(const Row<A, S>& row) const {
    if constexpr (std::is_same_v<S, float>) {
      if (blocks_.block_lanes() < blocks_.lanes) return make_row_of_half_vectors(row);
    }
    make_row(row);
  }

  // The pair that `element` belongs to: its first element, and the position that this one reads.
  static std::pair<int64_t, int64_t> pair_of(const Direction& direction, int64_t element) {
    const bool is_first = direction.phase(element).taps == 1;
    const int64_t other = is_first ? element : element + 1;
    const int64_t position = direction.phase(other).position(direction.output(other), 0);
    return is_first ? std::pair(element, position) : std::pair(element - 1, position - 1);
  }

  void make_pairs(const Piece& piece, Workspace& workspace) const {
    const auto [first_column, first_position] = pair_of(correlation_.width, piece.columns.begin);
    const MetPlane& plane = workspace.met_planes[0];
    Row<A, S>& line = workspace.lines[0];
    line.shape = Shape::pairs;
    line.source_offset = 0;
    line.first_position = first_position - plane.source->first_column();
    line.width = plane.source->width();
    line.first_output = first_column - piece.columns.begin;
    line.output_offset =
        (piece.columns.begin - workspace.destination.first_column()) * workspace.destination.column_step();
    line.output_step = workspace.destination.column_step();
    line.count = piece.columns.size();
    for (int64_t y = 0; y < 3; ++y) workspace.kernel_rows[y] = plane.kernel + y * kernels_.row_elements();
    auto [row, position] = pair_of(correlation_.height, piece.rows.begin);
    for (; row < piece.rows.end; row += 2, ++position) {
      for (int64_t i = 0; i < 2; ++i) {
        workspace.source_rows[i] = plane.source->row_or_null(plane.first_row + position + i);
        workspace.output_rows[i] = workspace.destination.row_or_null(workspace.first_output_row + row + i);
      }
      run_row(line);
    }
  }

  // Rows of a strip, as many lines apart as taps are; 0 where strips cannot be made.
  int64_t rows_of_strips(const Piece& piece, const Workspace& workspace) const {
    if (!are_strips<A>(correlation_, blocks_)) return 0;
    for (const Row<A, S>& line : workspace.lines) {
      if (line.tap_step != 1 || line.taps != 3 || line.count < kLeastStrip) return 0;
    }
    const int64_t count = ceil_divide(piece.rows.size(), correlation_.height.phases[0].tap_step);
    return ceil_divide(count, ceil_divide(count, kMostStripRows));
  }

  void make_strips(const Piece& piece, int64_t most_rows, Workspace& workspace) const {
    const Phase& phase = correlation_.height.phases[0];
    const MetPlane& plane = workspace.met_planes[0];
    const int64_t apart = phase.tap_step;
    for (int64_t tap = 0; tap < phase.taps; ++tap) {
      workspace.kernel_rows[tap] =
          plane.kernel + (phase.first_tap + tap * phase.kernel_step) * kernels_.row_elements();
    }
    for (int64_t part = 0; part < apart; ++part) {
      const int64_t count = ceil_divide(piece.rows.size() - part, apart);
      for (int64_t row = 0; row < count; row += most_rows) {
        const int64_t strip_rows = std::min(most_rows, count - row);
        const int64_t element = piece.rows.begin + part + row * apart;
        for (int64_t i = 0; i < (strip_rows - 1) * phase.step + phase.taps; ++i) {
          workspace.source_rows[i] =
              plane.source->row_or_null(plane.first_row + phase.position(element, 0) + i * apart);
        }
        for (int64_t r = 0; r < strip_rows; ++r) {
          workspace.output_rows[r] =
              workspace.destination.row(workspace.first_output_row + element + r * apart);
        }
        for (Row<A, S>& line : workspace.lines) {
          line.shape = Shape::strip;
          line.rows = strip_rows;
          run_row(line);
        }
      }
    }
  }

  // Rows of a patch; 0 where rows are made one by one.
  int64_t rows_of_patches(const Workspace& workspace) const {
    if (!std::is_same_v<S, float> || blocks_.lanes != kMostLanes) return 0;
    int64_t most = 0;
    for (const Row<A, S>& line : workspace.lines) {
      // Longer rows of a dilation of two are cut into those of neighbouring taps.
      const bool is_dilated = line.tap_step == 2 && line.step == 1 && (line.taps == 3 || line.taps == 5);
      if (!is_dilated && (line.tap_step != 1 || line.step > 2 || line.taps < 2)) return 0;
      if (line.count < kLeastPatch || line.count > kMostPatch) return 0;
      most = std::max(most, line.count);
    }
    return patch_rows(most);
  }

  void make_patches(const Piece& piece, int64_t most_rows, Workspace& workspace) const {
    const Direction& height = correlation_.height;
    const Range rows = piece.rows;
    const int64_t phases = height.phases.size();
    // As many of the kernel's rows as stay in L1, and as a part of a sum has.
    const int64_t kernel_rows = plan_.rows_of_patches;
    for (int64_t first = rows.begin; first < std::min(rows.begin + phases, rows.end); ++first) {
      const Phase& phase = height.phase(first);
      const int64_t count = ceil_divide(rows.end - first, phases);
      const int64_t made = ceil_divide(count, ceil_divide(count, most_rows));
      for (int64_t row = 0; row < count; row += made) {
        const int64_t patch_rows = std::min(made, count - row);
        for (int64_t r = 0; r < most_rows; ++r) {
          workspace.output_rows[r] =
              r < patch_rows
                  ? workspace.destination.row(workspace.first_output_row + first + (row + r) * phases)
                  : nullptr;
        }
        const int64_t output = height.output(first) + row;
        for (int64_t first_tap = 0; first_tap == 0 || first_tap < phase.taps; first_tap += kernel_rows) {
          const int64_t met =
              find_kernel_rows(phase, {first_tap, std::min(first_tap + kernel_rows, phase.taps)},
                               {output, output + patch_rows}, most_rows, workspace);
          for (Row<A, S>& line : workspace.lines) {
            line.shape = Shape::patch;
            line.rows = most_rows;
            line.kernel_rows = met;
            line.accumulate = first_tap > 0;
            run_row(line);
          }
        }
      }
    }
  }

  void make_rows(const Piece& piece, Workspace& workspace) const {
    const Direction& height = correlation_.height;
    // Some of the kernel's rows at a time, so that they and the rows they meet stay in L1.
    for (int64_t first_tap = 0; first_tap == 0 || first_tap < plan_.most_taps;
         first_tap += plan_.kernel_rows) {
      for (int64_t element = piece.rows.begin; element < piece.rows.end; ++element) {
        const Phase& phase = height.phase(element);
        const int64_t output = height.output(element);
        const int64_t met =
            find_kernel_rows(phase, {first_tap, std::min(first_tap + plan_.kernel_rows, phase.taps)},
                             {output, output + 1}, 1, workspace);
        if (first_tap > 0 && met == 0) continue;
        S* const outputs = workspace.destination.row(workspace.first_output_row + element);
        for (Row<A, S>& line : workspace.lines) {
          line.kernel_rows = met;
          line.accumulate = first_tap > 0;
          line.outputs = outputs + line.output_offset;
          run_row(line);
        }
      }
    }
  }

  // Finds the rows of the kernel, among `taps` of a phase, that meet the source under one of its `outputs`,
  // and for each of them `rows` rows of the source, as many as a Row has: null where an output meets padding
  // and where there are fewer outputs. Returns how many rows of the kernel these are.
  int64_t find_kernel_rows(const Phase& phase, Range taps, Range outputs, int64_t rows,
                           Workspace& workspace) const {
    int64_t met = 0;
    for (const MetPlane& plane : workspace.met_planes) {
      const A* kernel =
          plane.kernel + (phase.first_tap + taps.begin * phase.kernel_step) * kernels_.row_elements();
      for (int64_t tap = taps.begin; tap < taps.end;
           ++tap, kernel += phase.kernel_step * kernels_.row_elements()) {
        int64_t position = phase.position(outputs.begin, tap);
        bool is_met = false;
        for (int64_t r = 0; r < rows; ++r, position += phase.step) {
          const S* const source_row =
              r < outputs.size() ? plane.source->row_or_null(plane.first_row + position) : nullptr;
          workspace.source_rows[met * rows + r] = source_row;
          is_met = is_met || source_row != nullptr;
        }
        if (is_met) workspace.kernel_rows[met++] = kernel;
      }
    }
    return met;
  }

  const T* source_;
  T* destination_;
  const Correlation& correlation_;
  const Blocks blocks_;
  const CorrelationPlan<T, S> plan_;
  const PackedKernels<T> kernels_;
};

}  // namespace

template <typename T>
void correlate(const T* source, const T* weight, const T* bias, T* destination,
               const Correlation& correlation, Layout layout) {
  const Blocks blocks = make_blocks<T>(layout, correlation.source_channels, correlation.destination_channels,
                                       correlation.batch);
  if constexpr (sizeof(T) == 2) {
    if (are_converted_in_place<T>(correlation, blocks)) {
      return Correlator<T, T>(source, weight, bias, destination, correlation, blocks).run();
    }
  }
  Correlator<T, accumulate_t<T>>(source, weight, bias, destination, correlation, blocks).run();
}

template void correlate(const double*, const double*, const double*, double*, const Correlation&, Layout);
template void correlate(const float*, const float*, const float*, float*, const Correlation&, Layout);
template void correlate(const Half*, const Half*, const Half*, Half*, const Correlation&, Layout);
template void correlate(const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*, const Correlation&,
                        Layout);

}  // namespace torchgraft::depthwise::cpu
