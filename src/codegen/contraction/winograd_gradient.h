// Gradients of the weights of 3 x 3 convolutions by minimal filtering: what winograd.h does, passed
// the other way. The points of a tile take the same form, the four gradients of its results one of
// 16 numbers too; for each of the 16 planes the sum over all tiles of gradient times point is a
// matrix product (result channels by tiles, tiles by channels), and what the planes hold in the end
// is brought back to the 9 taps: 16 products a tile and pair of channels instead of 36.
//
// Which contractions have this form, and how they are divided: a work item is some channels of the
// results by some of the points over all tiles, so that no sums of several items meet. The inner
// loops: winograd_gradient_kernel.h; what is around them: winograd_gradient_driver.cpp. Cost: a few
// hundred numbers a contraction.
#pragma once
#include <cstdint>
#include <optional>

#include "codegen/contraction/winograd.h"

namespace ingot::codegen {

struct WinogradGradient {
    std::int64_t images = 0, height = 0, width = 0;  // of the results
    std::int64_t channels = 0, results = 0;          // of a point, and of a result
    std::int64_t point_step = 0, result_step = 0;    // from one to the next beside it, in elements
    std::int64_t tile_rows = 0;                      // of a block, of one image or of several
    std::int64_t item_channels = 0, item_results = 0;
    int height_of_tile = 0;  // of a register tile, in result channels; a divisor of an item's

    std::int64_t across() const { return (width + 1) / 2; }
    std::int64_t down() const { return (height + 1) / 2; }
    std::int64_t all_tile_rows() const { return images * down(); }
    std::int64_t blocks() const { return (all_tile_rows() + tile_rows - 1) / tile_rows; }
    std::int64_t tiles() const { return tile_rows * across(); }  // of a block
    std::int64_t points() const { return 2 * across() + 2; }     // beside one another, of four rows
    std::int64_t result_groups() const { return results / item_results; }
    std::int64_t channel_groups() const { return channels / item_channels; }
    /// From one plane to the next one, in elements.
    std::int64_t point_plane() const { return odd_lines(tiles() * item_channels); }
    std::int64_t result_plane() const { return odd_lines(tiles() * item_results); }
    std::int64_t sum_plane() const { return odd_lines(item_channels * item_results); }
    std::int64_t floats() const {
        return kWinogradPlanes * (point_plane() + result_plane() + sum_plane());
    }
    /// Whether an item's points, brought into their form, are those of the next item too.
    bool keeps_points() const { return blocks() == 1; }
};

/// The form, where it takes less than plain products.
std::optional<WinogradGradient> choose_winograd_gradient(const Contraction& contraction,
                                                         const ContractionPlan& plan,
                                                         const TargetInfo& target);

}  // namespace ingot::codegen
