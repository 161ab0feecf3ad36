// Convolutions of images with 3 x 3 taps by minimal filtering: four results that lie two by two are
// found from the 4 x 4 points around them with 16 products a channel instead of 36. The points and
// the taps are brought into another form by sums and halves, multiplied there, one of the 16 planes
// after another, as matrices (tiles by channels, channels by results), and the sums brought back.
//
// Shmuel Winograd, Arithmetic Complexity of Computations (1980); for convolutions Andrew Lavin and
// Scott Gray, Fast Algorithms for Convolutional Neural Networks (2015), here F(2 x 2, 3 x 3). The
// larger tiles of that paper save more and lose too many bits; with these, and sums over short
// chains of channels, the error is that of plain products (measured: docs/architecture.md).
//
// Which contractions have this form, and how their tiles are divided. The inner loops:
// winograd_kernel.h; what is around them: winograd_driver.cpp. Cost: a few dozen integer
// expressions a contraction.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "codegen/contraction/image_rows.h"
#include "codegen/llvm/target.h"
#include "schedule/contraction_model.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// Planes of the form in which points and taps are multiplied.
inline constexpr std::int64_t kWinogradPlanes = 16, kWinogradTaps = 9;

/// Taps of so many channels, for a panel of 32 columns, take a quarter of a megabyte in all planes.
inline constexpr std::int64_t kWinogradChannels = 128;
/// Elements from one plane to the next one. The same place of all planes is used together: they
/// begin in different sets of the caches.
constexpr std::int64_t odd_lines(std::int64_t floats) { return 16 * (((floats + 15) / 16) | 1); }

/// Taps that are read where they lie, at even distances, in elements. A row's columns are
/// neighbours, or nine taps of each column are.
struct TapsInPlace {
    std::int64_t channel = 0, tap = 0;
    bool interleaved = false;
    std::int64_t column() const { return interleaved ? kWinogradTaps : 1; }
};

struct Winograd {
    ImageRows image;
    std::int64_t tile_rows = 0;       // rows of tiles of a block, of one image or of several
    int height = 0;                   // of a register tile, in tiles
    std::optional<TapsInPlace> taps;  // else brought into a panel first

    /// Tiles beside and below one another in an image; the last may reach over the border.
    std::int64_t across() const { return (image.width + 1) / 2; }
    std::int64_t down() const { return (image.height + 1) / 2; }
    std::int64_t all_tile_rows() const { return image.images * down(); }
    std::int64_t blocks() const { return (all_tile_rows() + tile_rows - 1) / tile_rows; }
    /// Of a block, as rows of the products' left sides: whole register tiles.
    std::int64_t tiles() const { return (tile_rows * across() + height - 1) / height * height; }
    /// Points that a row of tiles reads, beside one another; four times as many in all.
    std::int64_t points() const { return 2 * across() + 2; }
    /// From one tile's channels to the next one's, in elements. No power of two: rows of a register
    /// tile would fight for the same sets of the first cache.
    std::int64_t pitch() const { return image.channels + 16; }
    /// Of the points, the taps and the sums: from one plane to the next one, in elements.
    std::int64_t plane() const { return odd_lines(tiles() * pitch()); }
    std::int64_t tap_plane(std::int64_t columns) const {
        return odd_lines(channels_at_a_time() * columns);
    }
    /// So many channels' taps are in use together.
    std::int64_t channels_at_a_time() const { return std::min(image.channels, kWinogradChannels); }
    std::int64_t sum_plane(std::int64_t columns) const { return odd_lines(tiles() * columns); }
};

/// The form, where it takes less than plain products.
std::optional<Winograd> choose_winograd(const Contraction& contraction, const ContractionPlan& plan,
                                        const TargetInfo& target);

}  // namespace ingot::codegen
