// Images that a convolution reads through overlapping windows, on matrix units: each point of a
// block of image rows is split once, and all taps read it there. Tiles of A are then neighbouring
// points of the image with its border, so that their rows are those of the result with some in
// between that count for nothing, as many as there are taps beside one another less one.
//
// Which contractions have this form, and how their rows are divided. The code: image_driver.cpp.
// Cost: a few expressions of each load's index.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/llvm/target.h"
#include "schedule/contraction_model.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// Bytes of a point's part of a step of k, which is a row of a tile.
inline constexpr std::int64_t kPointLine = 64;

struct ImageRows {
    std::int64_t width = 0, height = 0;  // of the result, in points
    std::int64_t images = 0;             // all outer loops of m
    std::int64_t taps_across = 1, taps_down = 1;
    std::int64_t channels = 0;  // k of a point, whole steps
    std::int64_t block = 0;     // rows of an image that are worked on together
    std::int64_t pitch() const { return width + taps_across - 1; }
    std::int64_t taps() const { return taps_across * taps_down; }
    std::int64_t blocks_of_image() const { return (height + block - 1) / block; }
    /// From the first to the last result of so many rows, in points.
    std::int64_t span(std::int64_t rows) const { return (rows - 1) * pitch() + width; }
    /// So many are split for a block; some beyond, which the last tile reads.
    std::int64_t points() const { return (block + taps_down - 1) * pitch() + kMatrixRows; }
};

/// Whether all of these loops' sizes are numbers.
bool constant_extents(const std::vector<Loop>& loops);

/// The form without its block; nothing where A is no image, its windows do not move by points, or a
/// point's channels are no multiple of `channels`.
std::optional<ImageRows> find_image(const Contraction& contraction, const ContractionPlan& plan,
                                    std::int64_t channels);

}  // namespace ingot::codegen
