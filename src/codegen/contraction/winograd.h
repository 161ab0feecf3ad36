// Convolutions of images with 3 x 3 taps by minimal filtering: four results that lie two by two are
// found from the 4 x 4 points around them with 16 products a channel instead of 36. The points and
// the taps are brought into another form by sums and halves, multiplied there, one of the 16 planes
// after another, as matrices (tiles by channels, channels by results), and the sums brought back.
//
// Shmuel Winograd, Arithmetic Complexity of Computations (1980); for convolutions Andrew Lavin and
// Scott Gray, Fast Algorithms for Convolutional Neural Networks (2015), here F(2 x 2, 3 x 3). The
// larger tiles of that paper save more and lose too many bits; with these, and sums over short
// chains of channels, the error is 1.2 to 1.5 times that of the vendor's libraries.
//
// Which contractions have this form, and how their tiles are divided. The inner loops:
// winograd_kernel.h; what is around them: winograd_driver.cpp. Cost: a few dozen integer
// expressions a contraction.
#pragma once
#include <cstdint>
#include <optional>

#include "codegen/contraction/image_rows.h"
#include "codegen/llvm/target.h"
#include "schedule/contraction_model.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// Planes of the form in which points and taps are multiplied.
inline constexpr std::int64_t kWinogradPlanes = 16;

struct Winograd {
    ImageRows image;
    std::int64_t tile_rows = 0;  // rows of tiles of a block, of one image or of several
    int height = 0;              // of a register tile, in tiles

    /// Tiles beside and below one another in an image; the last may reach over the border.
    std::int64_t across() const { return (image.width + 1) / 2; }
    std::int64_t down() const { return (image.height + 1) / 2; }
    std::int64_t all_tile_rows() const { return image.images * down(); }
    std::int64_t blocks() const { return (all_tile_rows() + tile_rows - 1) / tile_rows; }
    /// Of a block, as rows of the products' left sides: whole register tiles.
    std::int64_t tiles() const {
        return (tile_rows * across() + height - 1) / height * height;
    }
    /// Points that a row of tiles reads, beside one another; four times as many in all.
    std::int64_t points() const { return 2 * across() + 2; }
    /// From one tile's channels to the next one's, in elements. No power of two: rows of a register
    /// tile would fight for the same sets of the first cache.
    std::int64_t pitch() const { return image.channels + 16; }
    std::int64_t plane() const { return tiles() * pitch(); }
};

/// The form, where it takes less than the plain products, whose blocks have `block_rows` rows.
std::optional<Winograd> choose_winograd(const Contraction& contraction, const ContractionPlan& plan,
                                        const TargetInfo& target);

}  // namespace ingot::codegen
